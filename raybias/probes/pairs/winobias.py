"""Read WinoBias: sentences in which a pronoun stands for one of two occupations.

Line i of a `pro` file and line i of its `anti` file are a pair; they may differ in more than the
pronoun, and two pairs are different sentences: published texts are not corrected. Where three
mentions are bracketed, the first is the occupation and the second the pronoun that is asked about,
as PromptSource takes them (Zhao2025).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal

import polars as pl

from raybias.errors import DataError
from raybias.probes.pairs.crows_pairs import ORIGINAL
from raybias.probes.readers import polars_schema, read_lines
from raybias.registry import ReadPairs, pair_probe
from raybias.schema import CONDITIONS, COREFERENCES
from raybias.storage import Store

WINO_TYPES: Final = ("type1", "type2")
_MENTION: Final = re.compile(r"\[([^\[\]]+)\]")
_DETERMINERS: Final = ("the", "a", "an")
_PRONOUNS: Final = frozenset(
    (
        *("he", "him", "his", "himself", "she", "her", "hers", "herself"),
        *("they", "them", "their", "theirs", "themselves"),
    )
)


def _sentences(store: Store, *, split: Literal["dev", "test"]) -> pl.DataFrame:
    """Read the sentences of one split (schema.COREFERENCES, style "original").

    Texts are as the hub's token lists read when joined by blanks: without brackets, a blank
    before commas and the period. The referent keeps its determiner ("the developer").

    Raises
    ------
    DataError: a file is missing, a line cannot be read, or a type's two files do not match.
    """
    rows: list[dict[str, str]] = []
    for wino_type in WINO_TYPES:
        files = {
            condition: f"{condition}_stereotyped_{wino_type}.txt.{split}"
            for condition in CONDITIONS
        }
        lines = {condition: read_lines(store, name) for condition, name in files.items()}
        pro, anti = (len(lines[condition]) for condition in CONDITIONS)
        if pro != anti:
            raise DataError(
                f"has {pro} sentences and {files['anti']} has {anti}",
                where=store.uri_of(files["pro"]),
                cure="see `raybias data check`",
            )
        for condition, name in files.items():
            group = f"winobias/{split}/{wino_type}"
            read = _read(lines[condition], where=store.uri_of(name))
            for number, (text, referent, pronoun) in enumerate(read, start=1):
                rows.append(
                    {
                        "item_id": f"{group}/{condition}/{number:03d}",
                        "pair_id": f"{group}/{number:03d}",
                        "wino_type": wino_type,
                        "condition": condition,
                        "style": ORIGINAL,
                        "text": text,
                        "pronoun": pronoun,
                        "referent": referent,
                    }
                )
    if not rows:
        raise DataError("holds no sentences", where=store.uri)
    return pl.DataFrame(rows, schema=polars_schema(COREFERENCES))


def _read(lines: list[str], *, where: str) -> Iterator[tuple[str, str, str]]:
    """Yield text, referent and pronoun of each line."""
    for number, line in enumerate(lines, start=1):
        place = f"{where} row {number}"
        written, _, sentence = line.partition(" ")
        if written != str(number):
            raise DataError(
                f"is numbered {written!r}, not {number}",
                where=place,
                cure="pairs are found by line number; see `raybias data check`",
            )
        mentions = list(_MENTION.finditer(sentence))
        if len(mentions) < 2 or mentions[1][1].lower() not in _PRONOUNS:
            raise DataError(
                "does not bracket an occupation and then a pronoun",
                where=place,
                cure="see `raybias data check`",
            )
        yield _text(sentence), _referent(sentence, mentions[0]), mentions[1][1]


def _text(sentence: str) -> str:
    plain = _MENTION.sub(lambda mention: mention[1].strip(), sentence)
    # Numbers keep their commas ("2,000"): only a mark at a word's end is a token of its own.
    return re.sub(r"(?<=\S)([.,])(?=\s|$)", r" \1", plain)


def _referent(sentence: str, mention: re.Match[str]) -> str:
    """Return the first mention; two lines leave its determiner outside the brackets."""
    referent = mention[1].strip()
    before = sentence[: mention.start()].split()
    if referent.split()[0].lower() in _DETERMINERS or not before:
        return referent
    return f"{before[-1]} {referent}" if before[-1].lower() in _DETERMINERS else referent


def _register(name: str, split: Literal["dev", "test"], about: str) -> ReadPairs:
    @pair_probe(
        name,
        about=about,
        data=f"folder with pro_stereotyped_type1.txt.{split} and the other three",
        kinds=WINO_TYPES,
        schema=COREFERENCES,
    )
    def read(data: str) -> pl.DataFrame:
        return _sentences(Store(data), split=split)

    return read


winobias: Final = _register(
    "winobias", "test", "WinoBias: 1,584 sentences, what does the pronoun stand for (Zhao2025)"
)
winobias_dev: Final = _register("winobias_dev", "dev", "WinoBias's development half")
