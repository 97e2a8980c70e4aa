"""Compute the log-likelihood of texts that follow a text, as a question's options follow it.

All rows are packed as prefix trees (`causal_logprobs`), so what questions and their options begin
with is computed once, and only the options' tokens are looked up in the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from raybias.engine.backbone import LoadedBackbone, TextEncoder
from raybias.engine.packing import Row
from raybias.engine.scoring.causal_logprobs import TokenScorer, Values

#: A text, and what follows it.
Continued = tuple[str, str]


@dataclass(frozen=True)
class ContinuationRow:
    """The tokens of a text with what follows, which begins at place `since`."""

    tokens: Row
    since: int


def continuation_rows(
    encoder: TextEncoder, texts: Sequence[Continued], *, begin: bool = False
) -> list[ContinuationRow]:
    """Tokenise texts together with what follows them.

    What follows are the tokens behind as many as the text has alone, as lm-evaluation-harness
    counts them; blanks at the end of a text go to what follows, where tokenizers have them.

    Parameters
    ----------
    begin: put the begin token first instead of what the backbone's policy says, so that the first
        token of a text has a likelihood too.

    Raises
    ------
    ModelError: a text without any token.
    """
    moved = [(text.rstrip(), text[len(text.rstrip()) :] + after) for text, after in texts]

    def encode(each: list[str]) -> list[list[int]]:
        if not begin:
            return encoder.encode(each)
        rows = encoder.tokenizer(each, add_special_tokens=False)["input_ids"] if each else []
        return [[encoder.prompt_token_id, *row] for row in rows]

    wholes = encode([text + after for text, after in moved])
    heads = list(dict.fromkeys(text for text, _ in moved if text))
    lengths = dict(zip(heads, map(len, encode(heads)), strict=True))
    return [
        # The first token has no likelihood of its own, and the last always follows.
        ContinuationRow(row, max(1, min(lengths.get(text, 1), len(row) - 1)))
        for row, (text, _) in zip(wholes, moved, strict=True)
    ]


class ContinuationScorer:
    """Score what follows texts with one causal model."""

    def __init__(self, backbone: LoadedBackbone) -> None:
        self.backbone = backbone
        self.scorer = TokenScorer(backbone)

    def log_probs(self, rows: Sequence[ContinuationRow]) -> list[Values]:
        """Compute the natural log-probabilities of each row's tokens from `since` on.

        Raises
        ------
        WorkFailed: a single row does not fit the device's memory.
        """
        return self.prepare(rows)()

    def prepare(self, rows: Sequence[ContinuationRow]) -> Callable[[], list[Values]]:
        """Pack rows, which needs no device; return what computes `log_probs` of them."""
        return self.scorer.prepare([row.tokens for row in rows], [row.since for row in rows])

    def sums(self, rows: Sequence[ContinuationRow]) -> list[float]:
        """Add them up."""
        return added_up(self.log_probs(rows))


def added_up(rows: Sequence[Values]) -> list[float]:
    """Add up the log-probabilities of each row."""
    return [float(np.sum(values, dtype=np.float64)) for values in rows]
