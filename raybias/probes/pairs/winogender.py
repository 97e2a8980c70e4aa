"""Read Winogender's published sentences (Rudinger et al. 2018) as pairs of pronouns."""

from __future__ import annotations

import re
from typing import Final

import polars as pl

from raybias.errors import DataError
from raybias.probes.pairs.crows_pairs import ORIGINAL
from raybias.probes.readers import Row, polars_schema
from raybias.registry import pair_probe
from raybias.schema import COREFERENCES
from raybias.storage import Store
from raybias.table_files import read_frame

_SENTENCES: Final = "all_sentences.tsv"
_SHARES: Final = "occupations-stats.tsv"
#: Who a pronoun stands for, by the number in a sentence's id.
_REFERENTS: Final = ("occupation", "participant")
_PRONOUNS: Final = {"male": "he|his|him|himself", "female": "she|her|hers|herself"}
_CURE: Final = "give Winogender's folder `data` as it is published"


@pair_probe(
    "winogender",
    about="Winogender: sentences that differ in a pronoun's gender; occupations and participants",
    data=f"folder with {_SENTENCES} and {_SHARES}",
    kinds=_REFERENTS,
    schema=COREFERENCES,
)
def winogender(data: str) -> pl.DataFrame:
    """Read the sentences with he and she as pairs (schema.COREFERENCES); those with they stay out.

    As in WinoBias, `pro` is the sentence whose referent a stereotype leads to: the occupation,
    where the pronoun is of the gender that most people of the occupation have (`bls_pct_female`
    of the US Bureau of Labor Statistics), the participant, where it is of the other.

    Raises
    ------
    DataError: a file or column is missing, or a sentence that is not as its id says.
    """
    store = Store(data)
    shares = {
        row["occupation"]: _share(row["bls_pct_female"], store)
        for row in _rows(store, _SHARES, ("occupation", "bls_pct_female"))
    }
    rows = []
    for number, row in enumerate(_rows(store, _SENTENCES, ("sentid", "sentence")), start=1):
        where = f"{store.uri_of(_SENTENCES)} row {number}"
        fields = row["sentid"].split(".")
        if len(fields) != 5 or fields[2] not in ("0", "1") or fields[0] not in shares:
            raise DataError(f"has the id {row['sentid']!r}", where=where, cure=_CURE)
        occupation, participant, answer, gender, _ = fields
        if gender not in _PRONOUNS:
            continue
        people = (occupation, participant)
        referent, other = people[int(answer)], people[1 - int(answer)]
        typical = (gender == "female") == (shares[occupation] > 50)
        condition = "pro" if typical == (answer == "0") else "anti"
        pair = f"winogender/{occupation}/{participant}/{_REFERENTS[int(answer)]}"
        rows.append(
            (f"{pair}/{condition}", pair, _REFERENTS[int(answer)], condition, ORIGINAL,
             row["sentence"], _found(_PRONOUNS[gender], row["sentence"], where),
             *(_found(rf"(?:(?:the|an?) )?{re.escape(each)}", row["sentence"], where)
               for each in (referent, other)))
        )  # fmt: skip
    frame = pl.DataFrame(rows, polars_schema(COREFERENCES), orient="row")
    counts = frame.group_by("pair_id").agg(pl.col("condition").n_unique(), pl.len())
    if frame.is_empty() or counts.filter((pl.col("condition") != 2) | (pl.col("len") != 2)).height:
        raise DataError("lacks sentences of a pair", where=store.uri_of(_SENTENCES), cure=_CURE)
    return frame


def _rows(store: Store, name: str, columns: tuple[str, ...]) -> list[Row]:
    frame = read_frame(store, name)
    if missing := [each for each in columns if each not in frame.columns]:
        raise DataError(f"no column {missing[0]!r}", where=store.uri_of(name), cure=_CURE)
    return frame.select(pl.col(columns).fill_null("")).to_dicts()


def _share(text: str, store: Store) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise DataError(
            f"bls_pct_female {text!r} is no number", where=store.uri_of(_SHARES), cure=_CURE
        ) from error


def _found(pattern: str, text: str, where: str) -> str:
    """Return the words of a text that match."""
    found = re.search(rf"(?<!\w)(?:{pattern})(?!\w)", text, re.IGNORECASE)
    if found is None:
        raise DataError("does not hold what its id says", where=where, cure=_CURE)
    return found[0]
