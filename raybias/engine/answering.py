"""Answer prompts in text with weights in hand: the reference of what other providers do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from raybias.engine.answers import Answers, Key, Second, Writing, Written
from raybias.engine.backbone import LoadedBackbone
from raybias.engine.encoder import TextEncoder
from raybias.engine.generation.decode_loop import Continuation, Generated
from raybias.engine.generation.generator import TextGenerator
from raybias.engine.generation.sampling import Sampling
from raybias.engine.scoring.causal import TokenScorer
from raybias.engine.scoring.continuations import added_up, continuation_rows
from raybias.engine.verbalizer import summed

if TYPE_CHECKING:
    from raybias.engine.packing import Row


class EngineAnswers(Answers):
    """What one loaded backbone writes, and how likely it finds texts; see `Answers`."""

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
        """Write an answer after each prompt, in their order.

        Raises
        ------
        ModelError: a prompt that leaves no room for its answer.
        """
        return self.begin_write(prompts, keys, how)()

    def begin_write(
        self, prompts: Sequence[str], keys: Sequence[Key], how: Writing
    ) -> Callable[[], list[Written]]:
        """Tokenise prompts; return what does the rest of `write`."""
        rows = self._reader(how).encode(prompts)

        def write() -> list[Written]:
            made = self._writer.generate(
                rows,
                keys,
                sampling=self._sampling(how),
                max_new_tokens=how.most,
                label_ids=how.label_ids,
            )
            return self._written(rows, made, how)

        return write

    def write_twice(
        self, prompts: Sequence[str], keys: Sequence[Key], how: Writing, then: Second
    ) -> tuple[list[Written], list[Written]]:
        """Write after each prompt, and after the second one; what both begin with is read once."""
        return self.begin_write_twice(prompts, keys, how, then)()

    def begin_write_twice(
        self, prompts: Sequence[str], keys: Sequence[Key], how: Writing, then: Second
    ) -> Callable[[], tuple[list[Written], list[Written]]]:
        """Tokenise the first prompts; return what does the rest of `write_twice`."""
        reader = self._reader(how)

        def second(numbers: Sequence[int], written: Sequence[Sequence[int]]) -> list[Row]:
            texts = zip(numbers, map(self._decode, written), strict=True)
            return [*reader.encode([then.prompt(number, text) for number, text in texts])]

        rows = reader.encode(prompts)

        def write() -> tuple[list[Written], list[Written]]:
            first, last = self._writer.generate_twice(
                rows,
                keys,
                then=Continuation(second, then.keys, then.most),
                sampling=self._sampling(how),
                max_new_tokens=how.most,
                label_ids=how.label_ids,
            )
            return self._written(rows, first, how), self._written([()] * len(rows), last, how)

        return write

    def likelihoods(
        self, texts: Sequence[tuple[str, str]], *, chat: bool = False
    ) -> tuple[list[float], int]:
        """Compute the natural log-likelihood of each second text behind its first."""
        return self.begin_likelihoods(texts, chat=chat)()

    def begin_likelihoods(
        self, texts: Sequence[tuple[str, str]], *, chat: bool = False
    ) -> Callable[[], tuple[list[float], int]]:
        """Tokenise and pack texts; return what does the rest of `likelihoods`."""
        rows = continuation_rows(self.encoder.for_chat if chat else self.encoder, texts)
        read, tokens = self._scorer.prepare(rows), sum(len(row) for row, _ in rows)
        return lambda: (added_up(read()), tokens)

    def _reader(self, how: Writing) -> TextEncoder:
        """Return the tokenizer; chat templates write special tokens by themselves."""
        return self.encoder.for_chat if how.chat else self.encoder

    def _sampling(self, how: Writing) -> Sampling:
        return Sampling.of(self.backbone.model, temperature=how.temperature)

    def _decode(self, tokens: Sequence[int]) -> str:
        """Decode generated tokens, special ones left out."""
        return str(self.backbone.tokenizer.decode(list(tokens), skip_special_tokens=True))

    def _written(
        self, rows: Sequence[Row], made: Sequence[Generated], how: Writing
    ) -> list[Written]:
        return [
            Written(
                self._decode(each.tokens),
                summed(each.label_log_probs, how.labels),
                len(row) + len(each.tokens),
            )
            for row, each in zip(rows, made, strict=True)
        ]
