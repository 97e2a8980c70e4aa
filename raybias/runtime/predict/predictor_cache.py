"""Keep one predictor of a backbone loaded at a time, over weights that its methods share."""

from __future__ import annotations

from threading import Lock
from typing import Any

from raybias.config import Method
from raybias.engine.context import ModelContext
from raybias.storage import Store


class PredictorCache:
    """Loads the predictor of a method when it is asked for, and drops the one before.

    Methods that leave the backbone as it is read the weights that the one before loaded; what
    that one kept for its next shard (prefix caches) is freed.

    Parameters
    ----------
    store: the study's OUT, which holds the runs' adapters or prompts.
    """

    def __init__(self, context: ModelContext, store: Store) -> None:
        self.context, self.store = context, store
        self._held: tuple[str, Any] | None = None
        self._changing = Lock()

    def of(self, method: Method) -> Any:
        """Return the method's predictor.

        Raises
        ------
        ModelError: the backbone cannot be loaded, or not for this method.
        """
        with self._changing:
            if self._held is None or self._held[0] != method.name:
                self._held = None
                self._held = method.name, method.predictor(self.context, self.store)
            return self._held[1]
