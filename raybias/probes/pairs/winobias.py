"""Read WinoBias and Winogender: sentences in which a pronoun stands for one of two people.

Of WinoBias, line i of a `pro` file and line i of its `anti` file are a pair; they may differ in
more than the pronoun, and two pairs are different sentences: published texts are not corrected.
Where three mentions are bracketed, the first is the occupation and the second the pronoun that is
asked about, as PromptSource takes them (Zhao2025).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final, Literal

import polars as pl

from raybias.errors import DataError
from raybias.probes.column_checks import Row, read_lines
from raybias.probes.pairs.crows_pairs import ORIGINAL
from raybias.probes.registries import ReadTable, pair_probe
from raybias.schema import CONDITIONS, COREFERENCES
from raybias.storage import Store
from raybias.table_files import read_frame

WINO_TYPES: Final = ("type1", "type2")
_MENTION: Final = re.compile(r"\[([^\[\]]+)\]")
_DETERMINERS: Final = ("the", "a", "an")
_PRONOUNS: Final = frozenset(
    (
        *("he", "him", "his", "himself", "she", "her", "hers", "herself"),
        *("they", "them", "their", "theirs", "themselves"),
    )
)
_SENTENCES: Final = "all_sentences.tsv"
_SHARES: Final = "occupations-stats.tsv"
#: Who a pronoun stands for, by the number in a sentence's id.
_REFERENTS: Final = ("occupation", "participant")
_GENDERS: Final = {"male": "he|his|him|himself", "female": "she|her|hers|herself"}
_CURE: Final = "give Winogender's folder `data` as it is published"


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
    return pl.DataFrame(rows, schema=pl.Schema(COREFERENCES))


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


def _register(name: str, split: Literal["dev", "test"], about: str) -> ReadTable:
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
        if gender not in _GENDERS:
            continue
        people = (occupation, participant)
        referent, other = people[int(answer)], people[1 - int(answer)]
        typical = (gender == "female") == (shares[occupation] > 50)
        condition = "pro" if typical == (answer == "0") else "anti"
        pair = f"winogender/{occupation}/{participant}/{_REFERENTS[int(answer)]}"
        rows.append(
            (f"{pair}/{condition}", pair, _REFERENTS[int(answer)], condition, ORIGINAL,
             row["sentence"], _found(_GENDERS[gender], row["sentence"], where),
             *(_found(rf"(?:(?:the|an?) )?{re.escape(each)}", row["sentence"], where)
               for each in (referent, other)))
        )  # fmt: skip
    frame = pl.DataFrame(rows, pl.Schema(COREFERENCES), orient="row")
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
