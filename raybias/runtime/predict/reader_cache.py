"""Keep one reader of a backbone loaded at a time, over weights that its methods share."""

from __future__ import annotations

from threading import Lock
from typing import TYPE_CHECKING, Any

from raybias.engine.context import ModelContext
from raybias.storage import Store

if TYPE_CHECKING:
    from raybias.runtime.workers import Served


class ReaderCache:
    """The reader of the method that was used last.

    A change of method frees what the last one kept between shards (prefix caches); the weights
    that methods share stay loaded.

    Parameters
    ----------
    store: the study's OUT, which holds the runs' adapters or prompts.
    """

    def __init__(self, context: ModelContext, store: Store) -> None:
        self.context, self.store = context, store
        self._held: tuple[str, Any] | None = None
        self._changing = Lock()

    def of(self, method: Served) -> Any:
        """Load the method's reader, or return it if it is loaded.

        Raises
        ------
        ModelError: the backbone cannot be loaded, or not for this method.
        """
        with self._changing:
            if self._held is None or self._held[0] != method.name:
                self._held = None
                self._held = method.name, method.reader(self.context, self.store)
            return self._held[1]
