"""Count how often a corpus marks the probe's nouns with a group's terms.

A term marks a noun where it stands right before it ("black people"), or right behind it
if it is one of those ("people with dyslexia"). Texts become lower-case words, so that one
regular expression per attribute finds nouns together with their marks. Counts of parts of a
corpus add up.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from raybias.config import Probe
from raybias.errors import DataError
from raybias.probes import base_items, probe_templates
from raybias.probes.markedness import marked_noun
from raybias.probes.registries import probes
from raybias.probes.slots import follows_its_noun, noun_phrase
from raybias.schema import CORPUS, EXTRA_GROUPS

#: What `find` returns: which vocabulary, the words found, how often.
FOUND: Final = pl.Schema({"vocabulary": pl.Int32, "words": pl.String, "n": pl.Int64})

_PERSON: Final = "person"
#: Endings and what becomes of them; the first that a noun has counts.
_PLURALS: Final = (
    (r"\bperson$", "people"),
    (r"\bthief$", "thieves"),
    (r"man$", "men"),
    (r"(?<![aeiou])y$", "ies"),
    (r"(s|sh|ch|x)$", r"\1es"),
    (r"$", "s"),
)
_SINGULARS: Final = (
    (r"\bpeople$", "person"),
    (r"\bthieves$", "thief"),
    (r"men$", "man"),
    (r"ies$", "y"),
    (r"(ss|sh|ch|x)es$", r"\1"),
    (r"(?<![sui])s$", ""),
)


@dataclass(frozen=True)
class Vocabulary:
    """The terms and nouns of one attribute."""

    attribute: str
    terms: tuple[tuple[str, str], ...]
    """Group and term, as listed."""
    nouns: tuple[str, ...]
    """Lower-case and singular."""

    def pattern(self) -> str:
        """Return an expression for a noun with the terms around it, in the words of `find`.

        Its groups are the term before, the noun and the term behind.
        """
        before = _any(term for _, term in self.terms if not follows_its_noun(term))
        behind = _any(term for _, term in self.terms if follows_its_noun(term))
        nouns = _any(form for noun in self.nouns for form in _forms(noun))
        return rf"(?: ({before}) )? ({nouns}) (?: ({behind}) )?"


def vocabularies(probe: Probe) -> list[Vocabulary]:
    """Collect the terms of a probe's items and the nouns behind them, by attribute.

    An attribute without any such noun, as first names are, is left out.

    Raises
    ------
    DataError: the probe's data is missing or malformed, or no attribute has both.
    """
    items = base_items(probe).filter(~pl.col("group").is_in(EXTRA_GROUPS))
    items = items.filter(pl.col("term").fill_null("").str.strip_chars() != "")
    found: list[Vocabulary] = []
    for (attribute,), own in items.group_by("attribute", maintain_order=True):
        nouns = _nouns_of(probe, str(attribute), own)
        terms = own.select("group", "term").unique(maintain_order=True).rows()
        if nouns:
            lemmas = sorted({_with_ending(noun.lower(), _SINGULARS) for noun in nouns} | {_PERSON})
            found.append(Vocabulary(str(attribute), tuple(terms), tuple(lemmas)))
    if not found:
        raise DataError(
            "has no terms that stand before a noun",
            where=f"probe {probe.name}",
            cure="an own file needs a column `term` with words that its texts hold",
        )
    return found


def find(texts: pl.Series, patterns: Sequence[str]) -> pl.DataFrame:
    """Count what the patterns of several vocabularies match in some texts (`FOUND`).

    Parameters
    ----------
    texts: one document each; null is none. No match crosses from one to the next.
    patterns: of `Vocabulary.pattern`.
    """
    words = _words(texts.cast(pl.String).fill_null(""))
    return pl.concat(
        words.str.extract_all(pattern)
        .explode(empty_as_null=False)
        .rename("words")
        .value_counts(name="n")
        .select(vocabulary=pl.lit(number, pl.Int32), words="words", n=pl.col("n").cast(pl.Int64))
        for number, pattern in enumerate(patterns)
    )


def counts(known: Sequence[Vocabulary], found: pl.DataFrame) -> pl.DataFrame:
    """Sum matches per term and noun of an attribute (schema.CORPUS), zeros included.

    Parameters
    ----------
    known: the vocabularies that `found` speaks of.
    found: parts of `find`, put together in any way.
    """
    rows: list[tuple[object, ...]] = []
    for number, vocabulary in enumerate(known):
        part = found.filter(vocabulary=number).group_by("words").agg(pl.col("n").sum())
        marked, bare = _taken_apart(vocabulary, dict(part.rows()))
        rows += [
            (vocabulary.attribute, group, term, noun, marked[plain, noun], bare[noun])
            for group, term in vocabulary.terms
            for plain in [_plain(term)]
            for noun in vocabulary.nouns
        ]
    return pl.DataFrame(rows, schema=pl.Schema(CORPUS), orient="row")


def _taken_apart(
    vocabulary: Vocabulary, found: Mapping[str, int]
) -> tuple[Counter[tuple[str, str]], Counter[str]]:
    """Count (term, noun) and the bare noun; both in plain words."""
    parts = re.compile(vocabulary.pattern())
    lemmas = {_plain(form): noun for noun in vocabulary.nouns for form in _forms(noun)}
    marked: Counter[tuple[str, str]] = Counter()
    bare: Counter[str] = Counter()
    for words, n in found.items():
        match = parts.fullmatch(words)
        if match is None:
            raise ValueError(f"{words!r} is nothing that this vocabulary finds")
        noun = lemmas[_plain(match[2])]
        terms = {_plain(term) for term in (match[1], match[3]) if term}
        for term in terms:
            marked[term, noun] += n
        if not terms:
            bare[noun] += n
    return marked, bare


def _nouns_of(probe: Probe, attribute: str, items: pl.DataFrame) -> set[str]:
    if probes[probe.source].templates is not None:
        nouns = {marked_noun(each) for each in probe_templates(probe, [attribute])[attribute]}
    else:
        pairs = items.select("text", "term").rows()
        nouns = {noun_phrase(text.partition(term)[2]) for text, term in pairs if term in text}
    return {noun for noun in nouns if noun}


def _words(texts: pl.Series) -> pl.Series:
    """Split texts into lower-case words, each between two blanks; punctuation is a word too.

    A word that shared its blank with the next could not be found beside it.
    """
    return (
        " "
        + texts.str.to_lowercase()
        .str.replace_all(r"['\x{2019}]s\b", "")
        .str.replace_all(r"[^\w\s-]+|-{2,}", " . ")
        .str.strip_chars()
        .str.replace_all(r"\s+", "  ")
        + " "
    )


def _plain(phrase: str) -> str:
    """Reduce a phrase to its words, however it was hyphenated."""
    return " ".join(_words(pl.Series([phrase]))[0].replace("-", " ").split())


def _any(phrases: Iterable[str]) -> str:
    """Build an expression for any of the phrases, longest first; hyphens may join words."""
    words = {tuple(_words(pl.Series([phrase]))[0].split()) for phrase in phrases}
    ordered = sorted(words, key=lambda each: (-len(each), each))
    joined = ("(?:  |-)".join(map(re.escape, each)) for each in ordered)
    # No phrase must match nothing: two hyphens are punctuation, so no word holds nine.
    return f"(?:{'|'.join(joined) or '-{9}'})"


def _forms(noun: str) -> tuple[str, ...]:
    plural = _with_ending(noun, _PLURALS)
    return (noun, plural, "persons") if noun == _PERSON else (noun, plural)


def _with_ending(noun: str, endings: Iterable[tuple[str, str]]) -> str:
    """Change the ending of a noun, or of the last of its words, as listed."""
    for ending, new in endings:
        if re.search(ending, noun):
            return re.sub(ending, new, noun, count=1)
    return noun
