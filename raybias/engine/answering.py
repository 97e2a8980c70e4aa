"""Answer prompts with loaded weights: the reference of every other provider."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

from raybias.engine.answers import Answers, Key, Writing, Written
from raybias.engine.backbone import LoadedBackbone
from raybias.engine.sampling import Sampling
from raybias.engine.scoring.causal import TokenScorer
from raybias.engine.scoring.continuations import added_up, continuation_rows
from raybias.engine.text_generator import TextGenerator
from raybias.engine.verbalizer import summed


class EngineAnswers(Answers):
    """Answers of one loaded backbone; see `Answers`."""

    def __init__(self, backbone: LoadedBackbone) -> None:
        self.backbone = backbone
        self.encoder = backbone.encoder

    @cached_property
    def _writer(self) -> TextGenerator:
        return TextGenerator(self.backbone)

    @cached_property
    def _scorer(self) -> TokenScorer:
        return TokenScorer(self.backbone)

    def write(self, prompts: Sequence[str], keys: Sequence[Key], how: Writing) -> list[Written]:
        """Write an answer after each prompt; ModelError where a prompt leaves no room for it."""
        return self.begin_write(prompts, keys, how)()

    def begin_write(
        self, prompts: Sequence[str], keys: Sequence[Key], how: Writing
    ) -> Callable[[], list[Written]]:
        """Tokenise prompts; the call that is returned does the rest."""
        rows = (self.encoder.for_chat if how.chat else self.encoder).encode(prompts)
        sampling = Sampling.of(self.backbone.model, temperature=how.temperature)

        def write() -> list[Written]:
            made = self._writer.generate(
                rows,
                keys,
                sampling=sampling,
                max_new_tokens=how.most,
                label_ids=how.label_ids,
            )
            decode = self.backbone.tokenizer.decode
            return [
                Written(
                    str(decode([*each.tokens], skip_special_tokens=True)),
                    summed(each.label_log_probs, how.labels),
                    len(row) + len(each.tokens),
                )
                for row, each in zip(rows, made, strict=True)
            ]

        return write

    def likelihoods(
        self, texts: Sequence[tuple[str, str]], *, chat: bool = False
    ) -> tuple[list[float], int]:
        """Compute the natural log-likelihood of each second text after its first."""
        return self.begin_likelihoods(texts, chat=chat)()

    def begin_likelihoods(
        self, texts: Sequence[tuple[str, str]], *, chat: bool = False
    ) -> Callable[[], tuple[list[float], int]]:
        """Tokenise and pack texts; the call that is returned does the rest."""
        rows = continuation_rows(self.encoder.for_chat if chat else self.encoder, texts)
        read, tokens = self._scorer.prepare(rows), sum(len(row) for row, _ in rows)
        return lambda: (added_up(read()), tokens)
