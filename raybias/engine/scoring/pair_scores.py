"""Score which sentence of a pair a model prefers, by seven published rules (Zhao2025).

Causal models:

- bias_bench: geometric mean probability of a sentence's tokens, the first after BOS (or EOS) alone,
  the others in a pass without BOS.
- prepend: the same mean from one pass that begins with BOS.
- sum: the log-likelihood of all tokens after BOS (EleutherAI), with an optional tolerance.
- perplexity: minus the perplexity of the tokens after the first, specials as the tokenizer adds
  them (BigScience).
- shared: the log-likelihood after BOS of only the tokens that both sentences have.

Masked models: the pseudo-log-likelihood of shared tokens (`masked`, nyu-mll), and the mean over
differing ones (`masked_differing`, Bias-Bench), each rounded to 3 decimals to compare. The higher
score is preferred; ties after each rule's own rounding stay in the denominator. Rules with a begin
token are computed with both where it is in doubt (`TextEncoder.begin_ids`).
"""

from __future__ import annotations

import difflib
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

import numpy as np

from raybias.config import Backbone
from raybias.engine.backbone import LoadedBackbone, is_encoder
from raybias.engine.encoder import check_lengths, load_tokenizer
from raybias.engine.packing import Row
from raybias.engine.scoring.causal import TokenScorer, Values
from raybias.engine.scoring.masked import MaskedScorer, check_tokenizer
from raybias.errors import ConfigError, ModelError, WorkFailed

CAUSAL: Final = ("bias_bench", "prepend", "sum", "perplexity", "shared")
#: Causal rules that put a begin token before sentences.
BEGUN: Final = ("bias_bench", "prepend", "sum", "shared")
MASKED: Final = ("masked", "masked_differing")

#: Decimals of masked scores in comparisons.
DECIMALS: Final = 3

#: Places of a pair's two rows.
Places = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class PairScore:
    """Scores of a pair's sentences, unrounded, and the preferred one; None with nothing to score.

    `preference`: 1 for the first sentence, 0 for the second, None for a tie; `turned`: whether the
    tokenizer's other begin token changes it, None without one.
    """

    more: float | None
    less: float | None
    preference: int | None
    turned: bool | None = None


def preference(
    score: str, more: float | None, less: float | None, *, eps: float = 0.0
) -> int | None:
    """Return 1 where `more` is higher, 0 where `less` is, None for a tie (within `eps`) or none."""
    if more is None or less is None:
        return None
    if score in MASKED:
        more, less = round(more, DECIMALS), round(less, DECIMALS)
    if more == less or (score == "sum" and abs(more - less) <= eps):
        return None
    return int(more > less)


def align(one: Row, other: Row) -> list[tuple[int, int]]:
    """Return the places of the tokens that two rows share, as difflib finds them in this order."""
    blocks = difflib.SequenceMatcher(None, list(one), list(other)).get_matching_blocks()
    return [(a + n, b + n) for a, b, size in blocks for n in range(size)]


def masked_places(score: str, more: Row, less: Row) -> Places:
    """Choose the places to mask in two rows, whose first and last tokens are specials."""
    same = align(more, less)
    if score == "masked":
        inner = same[1:-1]
        return tuple(a for a, _ in inner), tuple(b for _, b in inner)
    own_more, own_less = {a for a, _ in same}, {b for _, b in same}
    differing_more = tuple(a for a in range(len(more)) if a not in own_more)
    differing_less = tuple(b for b in range(len(less)) if b not in own_less)
    # Without differing tokens on both sides there is nothing to compare.
    return (differing_more, differing_less) if differing_more and differing_less else ((), ())


Pair = tuple[str, str]
#: Both sides' scores.
Scores = tuple[float | None, float | None]
#: Returns each rule's scores of all pairs, once for each token that sentences may begin with.
Read = Callable[[], list[dict[str, list[Scores]]]]


class PairScorer:
    """Score pairs of sentences with one model, by any rules that fit it, in one pass.

    `backbone`: of `scored_loader`; `eps`: see `preference`; `begins`: the tokens that sentences may
    begin with under a causal model.
    Raises ConfigError: no such score; ModelError: a score that the model cannot have.
    """

    def __init__(
        self, backbone: LoadedBackbone, scores: Sequence[str], *, eps: float = 0.0
    ) -> None:
        check_scores(backbone.spec, scores)
        self.backbone, self.scores, self.eps = backbone, tuple(scores), eps
        self.scorer: MaskedScorer | TokenScorer
        self.begins: tuple[int, ...] = ()
        if is_encoder(backbone.spec):
            self.scorer = MaskedScorer(backbone)
        else:
            self.scorer = TokenScorer(backbone)
            self.begins = backbone.encoder.begin_ids

    def prepare(
        self, pairs: Sequence[Pair], names: Sequence[str] | None = None
    ) -> Callable[[], dict[str, list[PairScore]]]:
        """Tokenise, check and pack pairs; return the call that scores them by each rule, in order.

        All styles of a probe in one call share the most. `names`: of the pairs, for messages;
        numbers by default.
        Raises ModelError: sentences without tokens or longer than the context. The call raises
        WorkFailed: a score that is no number, or a sentence that does not fit the memory.
        """
        names = names or [f"pair {n}" for n in range(len(pairs))]
        # The name of each distinct sentence's first side.
        sides: dict[str, str] = {}
        for pair, name in zip(pairs, names, strict=True):
            for text, side in zip(pair, ("sent_more", "sent_less"), strict=True):
                sides.setdefault(text, f"{name} {side}")
        if isinstance(self.scorer, MaskedScorer):
            read = self._masked(self.scorer, pairs, sides)
        else:
            read = self._causal(self.scorer, pairs, sides)

        def score() -> dict[str, list[PairScore]]:
            first, *others = (
                {rule: self._judged(rule, values, names) for rule, values in by_rule.items()}
                for by_rule in read()
            )
            for other, rule in ((other, rule) for other in others for rule in BEGUN):
                if rule in first:
                    first[rule] = [
                        replace(one, turned=one.preference != two.preference)
                        for one, two in zip(first[rule], other[rule], strict=True)
                    ]
            return first

        return score

    def _judged(self, rule: str, values: Sequence[Scores], names: Sequence[str]) -> list[PairScore]:
        wrong = [
            name
            for name, pair in zip(names, values, strict=True)
            if any(side is not None and not math.isfinite(side) for side in pair)
        ]
        if wrong:
            raise WorkFailed(
                f"score {rule} of {len(wrong)} of {len(names)} pairs is no finite number "
                f"(first: {wrong[0]})",
                where=self.backbone.spec.id,
                cure="load the model in bfloat16 or float32",
            )
        return [
            PairScore(more, less, preference(rule, more, less, eps=self.eps))
            for more, less in values
        ]

    def _causal(self, scorer: TokenScorer, pairs: Sequence[Pair], sides: Mapping[str, str]) -> Read:
        """Return the call that computes each rule's scores of each pair, per begin token."""
        encoder, texts = self.backbone.encoder, list(sides)
        bare = encoder.ids(texts, specials=False)
        _check_rows(bare, sides, self.backbone, least=1, taken=1)
        rows: dict[str, list[list[int]]] = {}
        for begin in self.begins:
            if "bias_bench" in self.scores:
                rows["bare"] = bare
                rows[f"first {begin}"] = [[begin, row[0]] for row in bare]
            if {"prepend", "sum", "shared"} & {*self.scores}:
                rows[f"begun {begin}"] = [[begin, *row] for row in bare]
        if "perplexity" in self.scores:
            rows["whole"] = encoder.encode(texts)
            _check_rows(rows["whole"], sides, self.backbone, least=2)
        log_probs = scorer.prepare([(row, 1) for each in rows.values() for row in each])
        number = {text: n for n, text in enumerate(texts)}
        places = [(number[more], number[less]) for more, less in pairs]

        def score() -> list[dict[str, list[Scores]]]:
            flat = iter(log_probs())
            values = {kind: [next(flat) for _ in each] for kind, each in rows.items()}

            def of_pair(rule: str, begin: int, more: int, less: int) -> Scores:
                if rule != "shared":
                    one, other = (_of_sentence(rule, values, n, begin) for n in (more, less))
                    return one, other
                begun = values[f"begun {begin}"]
                same = align(bare[more], bare[less])
                return (
                    math.fsum(begun[more][a] for a, _ in same),
                    math.fsum(begun[less][b] for _, b in same),
                )

            return [
                {rule: [of_pair(rule, begin, *place) for place in places] for rule in self.scores}
                for begin in self.begins
            ]

        return score

    def _masked(
        self, scorer: MaskedScorer, pairs: Sequence[Pair], sides: Mapping[str, str]
    ) -> Read:
        """Return the call that computes each rule's scores of each pair."""
        rows = self.backbone.encoder.ids(list(sides))
        _check_rows(rows, sides, self.backbone, least=3)
        row_of = dict(zip(sides, rows, strict=True))
        # A group is one side of a pair under one rule.
        requests = []
        for rule, pair in itertools.product(self.scores, pairs):
            both = [row_of[text] for text in pair]
            for row, places in zip(both, masked_places(rule, *both), strict=True):
                requests.append([(row, place) for place in places])
        log_probs = scorer.prepare(requests)

        def reduced(rule: str, values: Values) -> float | None:
            if rule == "masked":
                return math.fsum(values)
            return fmean(values) if len(values) else None

        def score() -> list[dict[str, list[Scores]]]:
            values = iter(log_probs())
            return [
                {
                    rule: [
                        (reduced(rule, next(values)), reduced(rule, next(values))) for _ in pairs
                    ]
                    for rule in self.scores
                }
            ]

        return score


def check_scores(spec: Backbone, scores: Sequence[str]) -> None:
    """Refuse scores that a model cannot have (ConfigError, ModelError); reads no weights."""
    unknown = [score for score in scores if score not in (*CAUSAL, *MASKED)]
    if unknown:
        raise ConfigError(
            f"unknown pair score {unknown[0]!r}", cure=f"use {', '.join((*CAUSAL, *MASKED))}"
        )
    masked = is_encoder(spec)
    fitting = MASKED if masked else CAUSAL
    wrong = [score for score in scores if score not in fitting]
    if wrong:
        kind, other = ("a masked", "causal") if masked else ("a causal", "masked")
        raise ModelError(
            f"is {kind} language model and has no {other} score ({wrong[0]})",
            where=spec.id,
            cure=f"use {', '.join(fitting)}, or {other} models",
        )
    if masked:
        check_tokenizer(load_tokenizer(spec))


def _of_sentence(score: str, values: Mapping[str, Sequence[Values]], n: int, begin: int) -> float:
    """Reduce the log-probabilities of sentence `n` after a begin token to its causal score."""
    if score == "bias_bench":
        return float(np.exp(fmean([*values[f"first {begin}"][n], *values["bare"][n]])))
    if score == "perplexity":
        return -float(np.exp(-fmean(values["whole"][n])))
    begun = values[f"begun {begin}"][n]
    return float(np.exp(fmean(begun))) if score == "prepend" else math.fsum(begun)


def _check_rows(
    rows: Sequence[Row],
    sides: Mapping[str, str],
    backbone: LoadedBackbone,
    *,
    least: int,
    taken: int = 0,
) -> None:
    names = list(sides.values())
    short = [name for name, row in zip(names, rows, strict=True) if len(row) < least]
    if short:
        raise ModelError(
            f"{len(short)} of {len(rows)} sentences have too few tokens to score "
            f"(fewer than {least}; first: {short[0]})",
            where=backbone.spec.id,
            cure="leave those pairs out",
        )
    check_lengths(
        [*map(len, rows)], context=backbone.context, taken=taken, by="begin token", names=names
    )
