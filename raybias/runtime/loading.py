"""Loads a backbone with what answers shards by a method, whole or shared with other ranks."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from raybias.config import Backbone, Coreference, Method, PairScore, Prompted, Tuned
from raybias.engine.backbone import load_backbone
from raybias.engine.generation import TextGenerator
from raybias.engine.learners import load_learner, load_shared
from raybias.engine.pair_scores import PairScorer, load_pair_backbone
from raybias.engine.verbalizer import verbalizer_ids
from raybias.runtime.answers import Answerer, PromptedAnswers, TunedAnswers, answer_words
from raybias.runtime.pair_answers import CoreferenceAnswers, PairAnswers
from raybias.storage import Store

if TYPE_CHECKING:
    from raybias.engine.learners import Sharding


def load_answerer(
    spec: Backbone,
    method: Method,
    words: Sequence[str],
    store: Store,
    *,
    device: str | torch.device,
    tokens_per_batch: int,
    sharding: Sharding | None = None,
) -> Answerer:
    """What answers any run of a method on a backbone.

    Parameters
    ----------
    words: the study's label words.
    store: the study's OUT, which holds the runs' adapters or prompts.
    sharding: how the backbone is shared with other ranks, where it is.

    Raises
    ------
    ModelError: the backbone cannot be loaded, or not for this method.
    """
    if isinstance(method, Tuned):
        learner = load_learner(
            spec,
            method,
            words,
            device=device,
            tokens_per_batch=tokens_per_batch,
            sharding=sharding,
        )
        return TunedAnswers(learner, store)
    shared = partial(load_shared, device=torch.device(device), sharding=sharding)
    if isinstance(method, PairScore):
        model = shared(load_pair_backbone, spec, method.scores)
        return PairAnswers(
            PairScorer(model, method.scores, eps=method.eps, tokens_per_batch=tokens_per_batch)
        )
    backbone = shared(load_backbone, spec)
    generator = TextGenerator(backbone, tokens_per_batch=tokens_per_batch)
    if isinstance(method, Coreference):
        return CoreferenceAnswers(generator, method)
    if not isinstance(method, Prompted):
        raise TypeError(f"no answers of {type(method).__name__}")
    label_ids = verbalizer_ids(backbone.tokenizer, answer_words(method, words))
    return PromptedAnswers(generator, method, tuple(words), label_ids, store)
