"""Loads a backbone with what answers shards by its methods, whole or shared with other ranks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from threading import Lock
from typing import TYPE_CHECKING

import torch

from raybias.config import Backbone as Spec
from raybias.config import Coreference, Method, PairScore, Prompted, SoftPrompt, Tuned
from raybias.engine.backbone import Backbone, load_backbone
from raybias.engine.generation import TextGenerator
from raybias.engine.learners import load_learner, load_shared
from raybias.engine.pair_scores import PairScorer, pair_loader
from raybias.engine.verbalizer import verbalizer_ids
from raybias.probes import prompts
from raybias.runtime.answers import Answerer, PromptedAnswers, TunedAnswers
from raybias.runtime.pair_answers import CoreferenceAnswers, PairAnswers
from raybias.storage import Store

if TYPE_CHECKING:
    from raybias.engine.learners import Sharding


class Answerers:
    """Loads a backbone with what answers any run of a method on it, one method at a time.

    Methods that leave a backbone as it is read the weights that the one before loaded.

    Parameters
    ----------
    words: the study's label words.
    store: the study's OUT, which holds the runs' adapters or prompts.
    tokens_per_batch: token budget of one forward pass.
    sharding: how the backbone is shared with other ranks, where it is.
    """

    def __init__(
        self,
        spec: Spec,
        words: Sequence[str],
        store: Store,
        *,
        device: str | torch.device,
        tokens_per_batch: int,
        sharding: Sharding | None = None,
    ) -> None:
        self.spec, self.words, self.store = spec, tuple(words), store
        self.device, self.tokens_per_batch = torch.device(device), tokens_per_batch
        self.sharding = sharding
        self._frozen = cache(self._load)
        self._held: tuple[str, Answerer] | None = None
        self._changing = Lock()

    def of(self, method: Method) -> Answerer:
        """What answers by a method; what the one before kept for its next shard is forgotten.

        Raises
        ------
        ModelError: the backbone cannot be loaded, or not for this method.
        """
        with self._changing:
            if self._held is None or self._held[0] != method.name:
                self._held = None
                self._held = method.name, self._make(method)
            return self._held[1]

    def _load(self, load: Callable[..., Backbone]) -> Backbone:
        return load_shared(load, self.spec, device=self.device, sharding=self.sharding)

    def _make(self, method: Method) -> Answerer:
        budget = self.tokens_per_batch
        if isinstance(method, Tuned):
            learner = load_learner(
                self.spec,
                method,
                self.words,
                device=self.device,
                tokens_per_batch=budget,
                sharding=self.sharding,
                backbone=self._frozen(load_backbone) if isinstance(method, SoftPrompt) else None,
            )
            return TunedAnswers(learner, self.store)
        if isinstance(method, PairScore):
            model = self._frozen(pair_loader(self.spec, method.scores))
            return PairAnswers(
                PairScorer(model, method.scores, eps=method.eps, tokens_per_batch=budget)
            )
        backbone = self._frozen(load_backbone)
        generator = TextGenerator(backbone, tokens_per_batch=budget)
        if isinstance(method, Coreference):
            return CoreferenceAnswers(generator, method)
        if not isinstance(method, Prompted):
            raise TypeError(f"no answers of {type(method).__name__}")
        label_ids = verbalizer_ids(backbone.tokenizer, prompts.answer_words(method, self.words))
        return PromptedAnswers(generator, method, self.words, label_ids, self.store)
