"""WinoBias, sentences in which a pronoun stands for one of two occupations, and a user's own.

Line i of a `pro` file and line i of its `anti` file make a pair; they may differ in more than
the pronoun, and two pairs are of other sentences altogether: published texts are not mended.
Where three mentions are bracketed, the first is the occupation and the second the
pronoun that is asked about, as PromptSource takes them (Zhao2025; spec of its prompts).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal

import polars as pl

from raybias.errors import DataError
from raybias.probes.column_checks import column, filled
from raybias.probes.pairs.crows_pairs import ORIGINAL
from raybias.probes.readers import polars_schema, read_frame, read_lines
from raybias.schema import COREFERENCES
from raybias.storage import Store, split_uri

Split = Literal["dev", "test"]

WINO_TYPES: Final = ("type1", "type2")
CONDITIONS: Final = ("pro", "anti")
#: The type of a user's own sentences, unless their file says otherwise.
OWN_TYPE: Final = "own"
_MENTION: Final = re.compile(r"\[([^\[\]]+)\]")
_DETERMINERS: Final = ("the", "a", "an")
_PRONOUNS: Final = frozenset(
    (
        *("he", "him", "his", "himself", "she", "her", "hers", "herself"),
        *("they", "them", "their", "theirs", "themselves"),
    )
)


def coreference_items(store: Store, *, split: Split = "test") -> pl.DataFrame:
    """The sentences of one split (schema.COREFERENCES, style "original").

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


def own_coreferences(uri: str) -> pl.DataFrame:
    """Read one CSV, TSV or Parquet file of sentences with a pronoun (schema.COREFERENCES).

    Needs pair_id, condition (pro or anti), text, pronoun and referent; every pair has one sentence
    of each condition. Without wino_type all are of type "own". Of a file with a column `style`
    the rows "original" are taken.

    Raises
    ------
    DataError: no such file or column, an empty cell, a condition that is neither, a pair that
        lacks or repeats one or is of two types, a pronoun or referent that is not in the text, or
        no rows.
    """
    store, name = split_uri(uri)
    frame = read_frame(store, name)
    if "style" in frame.columns:
        frame = frame.filter(pl.col("style") == ORIGINAL)
    if frame.is_empty():
        raise DataError("holds no sentences", where=uri)
    if "wino_type" not in frame.columns:
        frame = frame.with_columns(pl.lit(OWN_TYPE).alias("wino_type"))
    needed = ("pair_id", "condition", "text", "pronoun", "referent", "wino_type")
    items = pl.DataFrame(
        {each: filled(column(frame, each, where=uri), where=uri) for each in needed}
    )
    _check_own(items, where=uri)
    return items.with_columns(
        pl.format("{}/{}", "pair_id", "condition").alias("item_id"),
        pl.lit(ORIGINAL).alias("style"),
    ).select(polars_schema(COREFERENCES).names())


def _check_own(items: pl.DataFrame, *, where: str) -> None:
    for row, item in enumerate(items.iter_rows(named=True), start=1):
        place = f"{where} row {row}"
        if item["condition"] not in CONDITIONS:
            raise DataError(
                f"condition {item['condition']!r} is neither pro nor anti",
                where=place,
                cure="mend it",
            )
        for name in ("pronoun", "referent"):
            if not re.search(rf"(?<!\w){re.escape(item[name])}(?!\w)", item["text"], re.IGNORECASE):
                raise DataError(
                    f"{name} {item[name]!r} is not in the text", where=place, cure="mend either"
                )
    for pair_id, part in items.group_by("pair_id", maintain_order=True):
        if sorted(part["condition"]) != sorted(CONDITIONS) or part["wino_type"].n_unique() > 1:
            raise DataError(
                f"pair {pair_id[0]!r} is {', '.join(part['condition'])} of type"
                f" {', '.join(part['wino_type'].unique(maintain_order=True))}",
                where=where,
                cure="give each pair one pro and one anti sentence of the same type",
            )


def _read(lines: list[str], *, where: str) -> Iterator[tuple[str, str, str]]:
    """Text, referent and pronoun of each line."""
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
    """The first mention; two lines of the files leave its determiner outside the brackets."""
    referent = mention[1].strip()
    before = sentence[: mention.start()].split()
    if referent.split()[0].lower() in _DETERMINERS or not before:
        return referent
    return f"{before[-1]} {referent}" if before[-1].lower() in _DETERMINERS else referent
