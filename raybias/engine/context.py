"""One backbone in one process: which, where, how much at a time, and with whom it is shared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Protocol

import torch

from raybias.engine.backbone import LoadedBackbone, load_backbone
from raybias.engine.batching import Collective

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from raybias.config import Backbone


class Sharding(Protocol):
    """Shards models over the ranks of a group."""

    @property
    def group(self) -> Collective | None:
        """The ranks, where they share every batch."""

    def loading(self) -> Any:
        """Return a context in which a model is sharded while it is loaded."""

    def begin(self, model: PreTrainedModel, *, whole: bool) -> None:
        """Have a loaded model gather its weights; `whole` where its own forward is called."""


class ModelContext:
    """What every trainer and predictor of one backbone in one process has in common.

    Parameters
    ----------
    words: the study's label words, in label order.
    tokens_per_batch: token budget of one forward pass.
    sharding: how the backbone is shared with other ranks, where it is.
    """

    def __init__(
        self,
        spec: Backbone,
        words: Sequence[str],
        *,
        device: str | torch.device = "cpu",
        tokens_per_batch: int = 4096,
        sharding: Sharding | None = None,
    ) -> None:
        self.spec, self.words = spec, tuple(words)
        self.device, self.tokens_per_batch = torch.device(device), tokens_per_batch
        self.sharding = sharding
        self._loaded = cache(self._load)

    @property
    def group(self) -> Collective | None:
        """The ranks that share every batch, where there are any."""
        return None if self.sharding is None else self.sharding.group

    def backbone(self, load: Callable[..., LoadedBackbone] = load_backbone) -> LoadedBackbone:
        """Load the frozen backbone with `load(spec, device=...)`, once for all that ask.

        Raises
        ------
        ModelError: not found, no safetensors weights, or another architecture than asked for.
        """
        return self._loaded(load)

    def _load(self, load: Callable[..., LoadedBackbone]) -> LoadedBackbone:
        if self.sharding is None:
            return load(self.spec, device=self.device)
        with self.sharding.loading():
            backbone = load(self.spec, device=self.device)
        self.sharding.begin(backbone.model, whole=False)
        return backbone
