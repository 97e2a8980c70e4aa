"""Parse StereoSet's dev.json: triples of a stereotype, its opposite and an unrelated sentence."""

from __future__ import annotations

from typing import Annotated, Final, Literal, NamedTuple

from pydantic import BaseModel, Field, TypeAdapter

from raybias.errors import DataError
from raybias.formats.json_files import parsed

#: Of the sentences of a triple, in the order of `StereoSetTriple.sentences`.
ROLES: Final = ("stereotype", "anti-stereotype", "unrelated")
_CURE: Final = "give it as StereoSet's authors published it"

Text = Annotated[str, Field(min_length=1)]


class StereoSetSentence(BaseModel):
    """One sentence of a triple; its text may be left out where only scores are read."""

    id: Text
    gold_label: Literal["stereotype", "anti-stereotype", "unrelated"]
    sentence: str = ""


class _Triple(BaseModel):
    id: Text
    target: Text
    bias_type: Text
    context: str = ""
    sentences: Annotated[list[StereoSetSentence], Field(min_length=3, max_length=3)]


class _Items(BaseModel):
    data: dict[str, list[_Triple]]


class StereoSetTriple(NamedTuple):
    """A triple of one domain (`race`) and task (`intrasentence`), about a target term."""

    domain: str
    task: str
    term: str
    item_id: str
    context: str
    sentences: tuple[StereoSetSentence, ...]
    """In the order of `ROLES`."""


_ITEMS: Final = TypeAdapter(_Items)


def stereoset_triples(text: bytes, where: str) -> list[StereoSetTriple]:
    """Parse a whole dev.json or a part of it.

    Raises
    ------
    DataError: not such a file, or a triple with two sentences of one gold_label.
    """
    triples = []
    for task, each in parsed(_ITEMS, text, where, _CURE).data.items():
        for triple in each:
            by_role = {sentence.gold_label: sentence for sentence in triple.sentences}
            if len(by_role) < len(ROLES):
                raise DataError(
                    f"triple {triple.id!r} has two sentences of one gold_label",
                    where=where,
                    cure="mend it or leave it out",
                )
            sentences = tuple(by_role[role] for role in ROLES)
            named = (triple.bias_type, task, triple.target, triple.id, triple.context)
            triples.append(StereoSetTriple(*named, sentences))
    return triples
