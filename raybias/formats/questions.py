"""Parse the published files of BBQ and StereoSet.

A line of BBQ is a question with its options and models' answers; a field whose name has `pred`
in it holds the answers of one model, which it names. StereoSet's dev.json holds triples of a
stereotype, its opposite and an unrelated sentence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

import polars as pl
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from raybias.errors import DataError
from raybias.formats import first_keys, parsed
from raybias.table_files import need_columns, refuse

#: By category, template and example, the place of the option that names the target.
Targets = Mapping[tuple[str, ...], int | None]

_OF_BBQ: Final = (
    "give every field of BBQ's own lines (preds_CATEGORY.jsonl), or a table of answers with the "
    "columns model, category, template_id, item_id, context, polarity, label, unknown, target, pred"
)
#: Its answers name countries and regions, its stereotyped groups either.
_BY_FIRST_PART: Final = "Nationality"

Text = Annotated[str, Field(min_length=1)]


class _Information(BaseModel):
    """What each option names, and its group; a few options of the published files lack both."""

    ans0: list[str]
    ans1: list[str]
    ans2: list[str]


class _Metadata(BaseModel):
    stereotyped_groups: list[str]


class Line(BaseModel):
    """One question, with its options and what each names."""

    model_config = ConfigDict(extra="allow", coerce_numbers_to_str=True)
    __pydantic_extra__: dict[str, Any]

    example_id: Text
    question_index: Text
    question_polarity: Literal["neg", "nonneg"]
    context_condition: Literal["ambig", "disambig"]
    category: Text
    answer_info: _Information
    additional_metadata: _Metadata
    context: str = ""
    question: str = ""
    ans0: str
    ans1: str
    ans2: str
    label: Annotated[int, Field(ge=0, le=2)]

    @property
    def named(self) -> list[list[str]]:
        """What each option names, and its group."""
        return [self.answer_info.ans0, self.answer_info.ans1, self.answer_info.ans2]

    def answers(self, where: str) -> dict[str, str]:
        """Return the answers by model, a null as empty text; `DataError` where there are none."""
        found = {name: value for name, value in self.__pydantic_extra__.items() if "pred" in name}
        if not found:
            raise DataError(
                "holds no answers: no field has `pred` in its name",
                where=where,
                cure="call the fields of answers MODEL_pred; a study asks these questions of a"
                " model: `questions: [{source: bbq, data: FILE}]`",
            )
        for name, value in found.items():
            if not isinstance(value, str | None):
                raise DataError(f"{name} is no text", where=where, cure="give the answer's words")
        return {name: value or "" for name, value in found.items()}

    def unknown(self, where: str) -> int:
        """Return the place of the option that says that the answer is not known."""
        places = [n for n, named in enumerate(self.named) if named[1:2] == ["unknown"]]
        if len(places) != 1:
            raise DataError(
                f"the unknown option cannot be told: answer_info calls {len(places)} of them so",
                where=where,
                cure=_OF_BBQ,
            )
        return places[0]

    def place_of(self, answer: str) -> int | None:
        """Return the place of the option that an answer repeats, but for case and a last period."""
        said, options = plain_answer(answer), (self.ans0, self.ans1, self.ans2)
        places = [n for n, option in enumerate(options) if plain_answer(option) == said]
        return places[0] if len(places) == 1 else None


_LINE: Final = TypeAdapter(Line)
#: Fields of a line that other lines of JSON do not have.
_FIELDS: Final = frozenset(("question_polarity", "context_condition", "answer_info"))


def is_bbq(data: bytes) -> bool:
    """Return whether the first line of a file has a field that only BBQ's lines have."""
    return not _FIELDS.isdisjoint(first_keys(data))


def bbq_line(text: bytes, where: str) -> Line:
    """Parse one line; `DataError` names the field that is missing or wrong."""
    return parsed(_LINE, text, where, _OF_BBQ)


def bbq_fields(fields: Mapping[str, Any], where: str) -> Line:
    """Check the fields of a question that another format holds, as `bbq_line` does."""
    # Numpy and hub copies have arrays as lists of their own; JSON tells them alike.
    return parsed(_LINE, json.dumps(dict(fields)).encode(), where, _OF_BBQ)


def target_of(line: Line, unknown: int, where: str, *, strict: bool = True) -> int | None:
    """Return the place of the stereotyped group's option; None if unclear and not `strict`."""
    groups = {plain_answer(group) for group in line.additional_metadata.stereotyped_groups}
    first = 0 if line.category == _BY_FIRST_PART else 1
    places = [
        n
        for n, named in enumerate(line.named)
        if n != unknown and groups & {plain_answer(name) for name in named[first:2]}
    ]
    if len(places) == 1:
        return places[0]
    if not strict:
        return None
    raise DataError(
        f"which option the stereotype is about cannot be told: {len(places)} name a "
        f"stereotyped group ({', '.join(line.additional_metadata.stereotyped_groups)})",
        where=where,
        cure="give BBQ's additional_metadata.csv as --items",
    )


def bbq_metadata(table: pl.DataFrame, where: str) -> Targets:
    """Take `target_loc` of BBQ's additional_metadata.csv; empty where there is no target."""
    columns = ("category", "question_index", "example_id", "target_loc")
    need_columns(columns, table.columns, where, f"it needs {', '.join(columns)}")
    texts = table.select(pl.col(columns).cast(pl.String))
    given = texts["target_loc"].replace(["", "NA", "NaN", "nan"], [None] * 4)
    places = given.cast(pl.Float64, strict=False).cast(pl.Int8, strict=False)
    refuse(given.is_not_null() & ~places.is_in([0, 1, 2]).fill_null(False), given,
           "is no place of an option", where, "it is 0, 1, 2 or empty")  # fmt: skip
    keys = texts.select(pl.col(columns[:3]).fill_null("")).iter_rows()
    return dict(zip(keys, places, strict=True))


def plain_answer(text: str) -> str:
    """Return an answer without capitals, blanks around it and a last period."""
    return text.strip().casefold().removesuffix(".").rstrip()


#: Stands in a triple's context for the word that its sentences differ in.
BLANK: Final = "BLANK"
#: Of the sentences of a triple, in the order of a triple's.
ROLES: Final = ("stereotype", "anti-stereotype", "unrelated")
_OF_STEREOSET: Final = "give it as StereoSet's authors published it"


class StereoSetSentence(BaseModel):
    """One sentence of a triple; its text may be left out where only scores are read."""

    id: Text
    gold_label: Literal["stereotype", "anti-stereotype", "unrelated"]
    sentence: str = ""


class StereoSetTriple(BaseModel):
    """A triple of one domain (`race`), about a target term."""

    id: Text
    target: Text
    bias_type: Text
    context: str = ""
    sentences: Annotated[list[StereoSetSentence], Field(min_length=3, max_length=3)]


class _Items(BaseModel):
    data: dict[str, list[StereoSetTriple]]


_ITEMS: Final = TypeAdapter(_Items)


def stereoset_triples(text: bytes, where: str) -> list[tuple[str, StereoSetTriple]]:
    """Parse a dev.json or a part of it into triples with their task (`intrasentence`).

    Their sentences are in the order of `ROLES`; two of one gold_label are a `DataError`.
    """
    found = []
    for task, triples in parsed(_ITEMS, text, where, _OF_STEREOSET).data.items():
        for triple in triples:
            triple.sentences.sort(key=lambda sentence: ROLES.index(sentence.gold_label))
            if len({sentence.gold_label for sentence in triple.sentences}) < len(ROLES):
                raise DataError(
                    f"triple {triple.id!r} has two sentences of one gold_label",
                    where=where,
                    cure="mend it or leave it out",
                )
            found.append((task, triple))
    return found
