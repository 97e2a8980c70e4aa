"""The columns of a user's own tables, by kind: which are needed, and what each may hold."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from raybias.schema.answers import CONDITIONS, CONTEXTS, DIRECTIONS, POLARITIES


@dataclass(frozen=True)
class Column:
    """One column of a user's own table.

    Attributes
    ----------
    needed: whether a table must have it.
    filled: whether no row may leave it empty.
    default: its value where a table does not have it, and of empty cells that are allowed; None
        for no value.
    among: the only values; any where empty.
    unique: whether a value may be there once only; rows of a table without it are numbered.
    labels: whether it holds negative, neutral or positive.
    several: whether a row holds a list of texts.
    cure: of a value that is not among those.
    """

    name: str
    needed: bool = True
    filled: bool = True
    default: str | None = None
    among: tuple[str, ...] = ()
    unique: bool = False
    labels: bool = False
    several: bool = False
    cure: str = "mend it"


def _texts(*names: str) -> tuple[Column, ...]:
    return tuple(map(Column, names))


def _maybe(*names: str) -> tuple[Column, ...]:
    return tuple(Column(name, needed=False, filled=False) for name in names)


_ID: Final = Column("item_id", needed=False, unique=True)
_MAPPED: Final = "map it with `codes` of a card"

#: By kind: the five of cards, sentences with a pronoun, pairs in a style that people wrote, and
#: sheets for annotators.
OWN: Final[Mapping[str, tuple[Column, ...]]] = {
    "label": (
        *_texts("text"),
        Column("label", labels=True),
        *_texts("attribute", "group"),
        _ID,
        Column("template_id", needed=False),
        *_maybe("term", "family"),
    ),
    "pair": (
        *_texts("sent_more", "sent_less", "bias_type"),
        Column("direction", needed=False, default=DIRECTIONS[0], among=DIRECTIONS,
               cure="mend it, or leave the column out"),
        Column("pair_id", needed=False, unique=True),
        Column("cluster", needed=False),
    ),
    "triple": (
        *_texts("domain", "term", "stereotype", "anti_stereotype", "unrelated"),
        Column("task", needed=False, filled=False, default="sentences"),
        _ID,
        Column("context", needed=False, filled=False, default=""),
    ),
    "options": (
        *_texts("category", "template_id"),
        Column("context", among=CONTEXTS, cure=_MAPPED),
        Column("polarity", among=POLARITIES, cure=_MAPPED),
        *_texts("text", "question"),
        Column("options", several=True),
        Column("label", filled=False),
        _ID,
        *_maybe("unknown", "target", "follows"),
        Column("named", needed=False, several=True),
        Column("stereotyped", needed=False, several=True),
    ),
    "decision": (
        *_texts("decision_id", "text"),
        _ID,
        Column("favourable", needed=False, default="yes"),
        Column("unfavourable", needed=False, default="no"),
    ),
    "coreference": (
        *_texts("pair_id"),
        Column("condition", among=CONDITIONS),
        *_texts("text", "pronoun", "referent"),
        Column("wino_type", needed=False, default="own"),
        *_maybe("other"),
    ),
    "styled": (
        *_texts("pair_id", "sent_more", "sent_less", "style"),
        Column("kept", needed=False, filled=False, default="false"),
    ),
    "sheet": _texts("pair_id", "style", "original_more", "original_less", "sent_more", "sent_less"),
}  # fmt: skip


def names_of(kind: str, *, needed: bool | None = None) -> tuple[str, ...]:
    """List the columns of a kind: all, those that are needed, or those that may be left out."""
    return tuple(each.name for each in OWN[kind] if needed in (None, each.needed))


#: Columns of which a row has several, in a list or in a column each.
SEVERAL: Final = tuple(each.name for each in OWN["options"] if each.several)
