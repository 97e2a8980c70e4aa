"""Compute log-likelihoods of texts after texts, and score the sentences of triples.

Rows are packed as prefix trees (`causal`); only the options' tokens are looked up in the
vocabulary. The sentences of a triple are scored as StereoSet's authors do (Nadeem et al. 2021).
Causal models: the mean log-probability of a sentence's tokens after the begin token, or after its
context where it follows one (not their published ratio of two means). Masked models: the mean
log-probability of the tokens of the word that stands for BLANK in the context, each masked, those
before it shown and those after it left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from raybias.config import Backbone
from raybias.engine.backbone import LoadedBackbone, is_encoder
from raybias.engine.encoder import TextEncoder, load_tokenizer
from raybias.engine.packing import Row
from raybias.engine.scoring.causal import TokenScorer, Values
from raybias.engine.scoring.masked import MaskedScorer, check_tokenizer
from raybias.errors import ModelError

#: A text and its continuation.
Continued = tuple[str, str]


def continuation_rows(
    encoder: TextEncoder, texts: Sequence[Continued], *, begin: bool = False
) -> list[tuple[Row, int]]:
    """Tokenise each text with its continuation; return the rows, and the places where those begin.

    A continuation is the tokens beyond as many as the text has alone, as lm-evaluation-harness
    counts them; it takes the blanks at the end of the text. `begin`: put the begin token first,
    whatever the backbone's policy, so that the first token of a text has a likelihood too.
    Raises ModelError: a text without any token.
    """
    moved = [(text.rstrip(), text[len(text.rstrip()) :] + after) for text, after in texts]

    def encode(each: list[str]) -> list[list[int]]:
        if not begin:
            return encoder.encode(each)
        return [[encoder.prompt_token_id, *row] for row in encoder.ids(each, specials=False)]

    wholes = encode([text + after for text, after in moved])
    heads = list(dict.fromkeys(text for text, _ in moved if text))
    lengths = dict(zip(heads, map(len, encode(heads)), strict=True))
    return [
        # The first token has no likelihood of its own, and the last always follows.
        (row, max(1, min(lengths.get(text, 1), len(row) - 1)))
        for row, (text, _) in zip(wholes, moved, strict=True)
    ]


def added_up(rows: Sequence[Values]) -> list[float]:
    """Add up the log-probabilities of each row."""
    return [float(np.sum(values, dtype=np.float64)) for values in rows]


BLANK: Final = "BLANK"
#: A context, empty where there is none, and a sentence.
Said = tuple[str, str]


def check_sentences(spec: Backbone, sentences: Sequence[tuple[str, str, str]]) -> None:
    """Refuse, for a masked model, (item, context, text) that fills in no word, by a ModelError."""
    if not is_encoder(spec):
        return
    check_tokenizer(load_tokenizer(spec))
    wrong = [item for item, *said in sentences if BLANK not in said[0] or not filled_in(*said)]
    if wrong:
        raise ModelError(
            f"is a masked model, and {len(wrong)} sentences do not fill in the {BLANK} of a context"
            f" (first: item {wrong[0]})",
            where=spec.id,
            cure="use a causal model for these triples, or leave them out",
        )


class SentenceScorer:
    """Score sentences with one causal or masked model."""

    def __init__(self, backbone: LoadedBackbone) -> None:
        self.backbone = backbone
        masked = is_encoder(backbone.spec)
        self._scorer = MaskedScorer(backbone) if masked else TokenScorer(backbone)

    def prepare(self, sentences: Sequence[Said]) -> Callable[[], tuple[list[float], int]]:
        """Pack (context, sentence) pairs; return the call for their scores and tokens read."""
        if isinstance(self._scorer, MaskedScorer):
            groups = [
                self._masked(context, filled_in(context, said)) for context, said in sentences
            ]
            read = self._scorer.prepare(groups)
            rows = [row for group in groups for row, _ in group]
        else:
            # A blank is filled in by the sentence; any other context comes before it.
            texts = [
                ("", said) if not context or BLANK in context else (context, f" {said}")
                for context, said in sentences
            ]
            requests = continuation_rows(self.backbone.encoder, texts, begin=True)
            read = self._scorer.prepare(requests)
            rows = [row for row, _ in requests]
        tokens = sum(map(len, rows))
        return lambda: ([_mean(values) for values in read()], tokens)

    def _masked(self, context: str, word: str) -> list[tuple[Row, int]]:
        """Return, for each token of a word, the row that ends the word with it, and its place."""
        tokenizer = self.backbone.tokenizer
        before, after = context.split(BLANK, 1)
        # The mask token marks the place, whatever the tokenizer does with blanks around it.
        marked: Row = tokenizer(f"{before}{tokenizer.mask_token}{after}")["input_ids"]
        place = list(marked).index(tokenizer.mask_token_id)
        spaced = f" {word}" if before.endswith(" ") else word
        word_ids = tokenizer(spaced, add_special_tokens=False)["input_ids"]
        return [
            ([*marked[:place], *word_ids[: n + 1], *marked[place + 1 :]], place + n)
            for n in range(len(word_ids))
        ]


def filled_in(context: str, sentence: str) -> str:
    """Return the words of a sentence that stand for BLANK in its context; empty where none do.

    The words around the blank may differ in case and punctuation, as StereoSet's do.
    """
    before, after = (part.split() for part in context.split(BLANK, 1))
    words = sentence.split()
    # Punctuation at the blank ("BLANK.") is no word of its own.
    stuck = bool(after) and not context.split(BLANK, 1)[1].startswith(" ")
    tail = after[0] if stuck else ""
    count = len(after) - stuck
    found = " ".join(words[len(before) : len(words) - count])
    return found.removesuffix(tail) if tail else found.rstrip(".,!?;:")


def _mean(values: Values) -> float:
    return float(np.mean(values, dtype=np.float64)) if len(values) else float("nan")
