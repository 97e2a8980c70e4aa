"""Rewrite pairs with a model: each side by itself, or one side with the edit copied to the other.

Two sides differ in spans of words, such as "black" and "white"; where a rewritten side still has
its spans, whole and in order, replacing them by the other side's makes the other side.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Final, Literal

import polars as pl

from raybias.probes.published.crows_pairs import SIDES
from raybias.probes.registries import styles
from raybias.probes.styles.rules import check_style
from raybias.probes.templates import capital
from raybias.schema import REWRITTEN_PAIRS
from raybias.seeding import generator

Key = tuple[str | int, ...]
#: Sentences and the key of each one's random numbers -> what each could become, adequate ones
#: only and best first, with how adequate it is.
Rewrite = Callable[[Sequence[str], Sequence[Key]], list[list[tuple[str, float]]]]
_CHANGED: Final = (*SIDES, "adequacy_more", "adequacy_less", "kept")
#: Marks are no words: the ones of the new sentence hold for both sides.
_WORD: Final = re.compile(r"\w+(?:['\u2019-]\w+)*")
_Opcode = tuple[str, int, int, int, int]
#: First and last word, in one side and in the other.
_Span = tuple[int, int, int, int]
_Row = tuple[str, str, str]
#: sent_more, sent_less, and how adequate each is; None for a side that was mirrored.
_Made = tuple[str, str, float | None, float | None]


def rewritten_pairs(
    pairs: pl.DataFrame,
    style: str,
    rewrite: Rewrite,
    *,
    paired: Literal["separate", "mirror"],
    seed: int,
) -> pl.DataFrame:
    """Put original pairs (schema.PAIRS) into the style that `rewrite` makes (REWRITTEN_PAIRS).

    `separate` rewrites each side, and keeps both originals where a side has no adequate rewriting
    or the sides come out equal (Zhao2025); `mirror` rewrites a drawn side and copies the edit to
    the other, with the best rewriting that allows it. Draws are keyed by (seed, style, pair_id), so
    a table may be cut anywhere. A style that has a rule, or is not registered, is a `ConfigError`.
    """
    check_style(style, [name for name, each in styles.items() if each.rule is None])
    rows: list[_Row] = pairs.select("pair_id", *SIDES).rows()
    keys: list[Key] = [(seed, "rewrite", style, pair_id) for pair_id, _, _ in rows]
    make = _separate if paired == "separate" else _mirror
    made = make(rows, keys, rewrite)
    new = [
        (*(found or (more, less, None, None)), found is None)
        for found, (_, more, less) in zip(made, rows, strict=True)
    ]
    schema = pl.Schema(REWRITTEN_PAIRS)
    changed = {name: schema[name] for name in _CHANGED}
    return (
        pairs.drop("kept", *SIDES)
        .with_columns(pl.DataFrame(new, schema=changed, orient="row"), style=pl.lit(style))
        .select(schema.names())
    )


def _separate(rows: Sequence[_Row], keys: Sequence[Key], rewrite: Rewrite) -> list[_Made | None]:
    texts = [text for _, *sides in rows for text in sides]
    found = rewrite(texts, [key for key in keys for _ in SIDES])
    best = [each[0] if each else None for each in found]
    return [
        (more[0], less[0], more[1], less[1])
        if more and less and more[0].strip() != less[0].strip()
        else None
        for more, less in zip(best[::2], best[1::2], strict=True)
    ]


def _mirror(rows: Sequence[_Row], keys: Sequence[Key], rewrite: Rewrite) -> list[_Made | None]:
    # Which side a model wrote must not go with which side is sent_more, nor must swapping the
    # sides change a pair: the draw is among the sides in alphabetical order.
    drawn = [
        int(sorted(sides)[int(generator(*key, "side").integers(2))] != sides[0])
        for (_, *sides), key in zip(rows, keys, strict=True)
    ]
    found = rewrite([row[1 + side] for row, side in zip(rows, drawn, strict=True)], keys)
    made: list[_Made | None] = []
    for (_, more, less), side, each in zip(rows, drawn, found, strict=True):
        source, other = (less, more) if side else (more, less)
        tried = ((text, mirrored(source, other, text), score) for text, score in each)
        pairs: Iterator[_Made] = (
            (new, text, None, score) if side else (text, new, score, None)
            for text, new, score in tried
            if new is not None
        )
        made.append(next(pairs, None))
    return made


@dataclass(frozen=True)
class _Text:
    text: str
    spans: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, text: str) -> _Text:
        return cls(text, tuple(match.span() for match in _WORD.finditer(text)))

    @property
    def words(self) -> list[str]:
        return [self.text[start:end].lower() for start, end in self.spans]

    def cut(self, first: int, last: int) -> slice:
        """Return the characters of words[first:last]."""
        return slice(self.spans[first][0], self.spans[last - 1][1])


def mirrored(source: str, other: str, rewritten: str) -> str | None:
    """Rewrite the side `other` as `source` was rewritten; None where the edit cannot be copied.

    That is where a span in which the sides differ was changed, moved, repeated or torn apart, or
    the new sides would not differ as the old ones do.
    """
    old, twin, new = _Text.of(source), _Text.of(other), _Text.of(rewritten)
    spans = _differences(old.words, twin.words)
    # Each word that only one side has in a span must be there as often as before.
    before, after = Counter(old.words), Counter(new.words)
    own = {word for a1, a2, b1, b2 in spans
           for word in {*old.words[a1:a2]} - {*twin.words[b1:b2]}}  # fmt: skip
    if not spans or any(before[word] != after[word] for word in own):
        return None
    # Where each word of the old sentence that stayed is in the new one.
    place_of = {
        a1 + n: b1 + n
        for kind, a1, a2, b1, _ in _opcodes(old.words, new.words)
        if kind == "equal"
        for n in range(a2 - a1)
    }
    parts: list[str] = []
    done = 0
    for a1, a2, b1, b2 in spans:
        places = [place_of.get(n) for n in range(a1, a2)]
        first = places[0]
        if first is None or places != list(range(first, first + a2 - a1)):
            return None
        cut = new.cut(first, first + a2 - a1)
        put = _recased(other[twin.cut(b1, b2)], source[old.cut(a1, a2)], rewritten[cut])
        if put is None or cut.start < done:
            return None
        parts += [rewritten[done : cut.start], put]
        done = cut.stop
    made = "".join(parts) + rewritten[done:]
    same = _changes(new.words, _Text.of(made).words) == _changes(old.words, twin.words)
    return made if same else None


def _opcodes(a: list[str], b: list[str]) -> list[_Opcode]:
    return list(SequenceMatcher(None, a, b, autojunk=False).get_opcodes())


def _changes(a: list[str], b: list[str]) -> list[tuple[list[str], list[str]]]:
    """List the words in which two sentences differ, without their positions."""
    return [(a[a1:a2], b[b1:b2]) for kind, a1, a2, b1, b2 in _opcodes(a, b) if kind != "equal"]


def _differences(a: list[str], b: list[str]) -> list[_Span]:
    """Find where two sentences differ; a span that is empty on one side takes in a neighbour."""
    spans: list[_Span] = []
    for kind, *span in _opcodes(a, b):
        if kind == "equal":
            continue
        a1, a2, b1, b2 = _filled(span[0], span[1], span[2], span[3])
        if a2 > len(a) or b2 > len(b):
            return []
        if spans and a1 < spans[-1][1]:
            a1, _, b1, _ = spans.pop()
        spans.append((a1, a2, b1, b2))
    return spans


def _filled(a1: int, a2: int, b1: int, b2: int) -> _Span:
    """Extend a span that is empty on a side by the word before it, or behind it at a beginning."""
    if a1 < a2 and b1 < b2:
        return a1, a2, b1, b2
    if a1 and b1:
        return a1 - 1, a2, b1 - 1, b2
    return a1, a2 + 1, b1, b2 + 1


def _recased(put: str, before: str, after: str) -> str | None:
    """Apply to `put` the change of case from `before` to `after`; None for any other change."""
    changes = (str, str.lower, str.upper, lambda text: text[:1].lower() + text[1:], capital)
    return next((change(put) for change in changes if change(before) == after), None)
