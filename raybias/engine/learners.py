"""Loads a backbone with the learner of a method on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol

import torch

from raybias.config import Backbone as Spec
from raybias.config import Full, Lora, SoftPrompt, Tuned
from raybias.engine.backbone import Backbone, load_backbone
from raybias.engine.batching import Collective
from raybias.engine.classifier import load_classifier
from raybias.engine.full import FullLearner
from raybias.engine.learner import Learner
from raybias.engine.lora import LoraLearner
from raybias.engine.scoring import LabelScorer
from raybias.engine.soft_prompt import PromptLearner
from raybias.engine.verbalizer import verbalizer_ids

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Sharding(Protocol):
    """Shards models over the ranks of a group."""

    @property
    def group(self) -> Collective | None:
        """The ranks, where they share every batch."""

    def loading(self) -> Any:
        """A context in which a model is sharded while it is loaded."""

    def begin(self, model: PreTrainedModel, *, whole: bool) -> None:
        """Have a loaded model gather its weights; `whole` where its own forward is called."""


def load_learner(
    spec: Spec,
    method: Tuned,
    words: Sequence[str],
    *,
    device: str | torch.device = "cpu",
    tokens_per_batch: int = 4096,
    sharding: Sharding | None = None,
    backbone: Backbone | None = None,
) -> Learner:
    """The learner of a tuned method on a backbone.

    Parameters
    ----------
    words: the study's label words.
    sharding: how the backbone is shared with other ranks, where it is.
    backbone: for a soft prompt, which leaves it as it is, where it is loaded already.

    Raises
    ------
    ModelError: the backbone cannot be loaded, or not for this method.
    """
    place = torch.device(device)
    group = None if sharding is None else sharding.group
    if isinstance(method, SoftPrompt):
        if backbone is None:
            backbone = load_shared(load_backbone, spec, device=place, sharding=sharding)
        label_ids = verbalizer_ids(backbone.tokenizer, words)
        scorer = LabelScorer(backbone, label_ids, tokens_per_batch=tokens_per_batch, group=group)
        return PromptLearner(scorer, method)
    if isinstance(method, Full):
        classifier = load_classifier(spec, method, words, device=place, dtype="float32")
        half = spec.dtype != "float32"
        return FullLearner(classifier, method, half=half, tokens_per_batch=tokens_per_batch)
    if isinstance(method, Lora):
        with nullcontext() if sharding is None else sharding.loading():
            classifier = load_classifier(
                spec,
                method,
                words,
                device=place,
                dtype=spec.dtype,
                begin=None if sharding is None else sharding.begin,
            )
        return LoraLearner(classifier, method, tokens_per_batch=tokens_per_batch, group=group)
    raise TypeError(f"no learner of {type(method).__name__}")


def load_shared(
    load: Callable[..., Backbone], spec: Spec, *, device: torch.device, sharding: Sharding | None
) -> Backbone:
    """What `load(spec, device=device)` loads, sharded where that is wanted."""
    if sharding is None:
        return load(spec, device=device)
    with sharding.loading():
        backbone = load(spec, device=device)
    sharding.begin(backbone.model, whole=False)
    return backbone
