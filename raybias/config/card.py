"""Define the columns of a user's own tables, and the card that maps a file's columns to them.

A card also states what its probe measures and about whom. Validity fields follow Goldfarb-Tarrant
et al. (2023), who ask of a bias test what it is about (conceptualisation) and how it gets at it
(operationalisation).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from raybias.columns import CONDITIONS, CONTEXTS, DIRECTIONS, POLARITIES
from raybias.config.labels import LabelCodes, check_labels
from raybias.config.reading import parse_section, yaml_mapping
from raybias.config.section import Section
from raybias.schema import LABELS


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
    labels: whether it has the labels of the study.
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

CardKind = Literal["label", "pair", "triple", "options", "decision"]


class Validity(Section):
    """Why the probe's number would show what it is said to show (Goldfarb-Tarrant et al. 2023)."""

    language: str = ""
    """Of the texts."""
    use_context: str = ""
    """The use of a model in which the harm would come about."""
    bias: str = ""
    """What is called bias here, and on which theory or observation that rests."""
    desired_outcome: str = ""
    """What an unbiased model would give."""
    demographics: str = ""
    """Which people are meant, and who among them is left out."""
    proxy: str = ""
    """What stands for the people: identity terms, names, dialect."""
    origin: str = ""
    """Who wrote the texts, and how: experts, crowd workers, templates, a model."""
    limits: str = ""
    """What the probe cannot show."""


class Card(Section):
    """What a file of one's own holds, and what is measured by it."""

    kind: CardKind
    """label: sentences with a gold label; pair: two sentences; triple: a stereotype, its opposite
    and an unrelated sentence; options: questions with options; decision: yes or no about people."""
    about: str = Field(min_length=1)
    """What is measured, in a line or two."""
    file: str | None = None
    """CSV, TSV, JSONL (plain or gzipped) or Parquet, from the card's folder; or `hub`."""
    hub: str | None = None
    """Id of a data set of the Hugging Face hub."""
    revision: str | None = None
    """Commit of the hub data set, which must be named."""
    subset: str | None = None
    """Configuration of the hub data set."""
    split: str = "test"
    """Split of the hub data set."""
    columns: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """By our name of a column, its name in the file; several for `options` and `named`. `a.b` is a
    field b of a column a. Those of the same name need no entry."""
    parts: dict[str, str] = Field(default_factory=dict)
    """By a column of the file, a regular expression that every row of it matches as a whole, whose
    named groups are columns of ours: `id: (?P<category>[a-z]+)-(?P<template_id>[0-9]+)`."""
    values: dict[str, str] = Field(default_factory=dict)
    """By our name of a column that the file does not have, its one value."""
    codes: dict[str, LabelCodes] = Field(default_factory=dict)
    """By our name of a column, how the file's values map to ours: `label: {"0": negative, "1":
    neutral}`. Labels that are the numbers 0 and 1 alone need it: in some files 0 is negative, in
    others neutral. A 2 or a -1 among them decides."""
    people: tuple[str, ...] = ()
    """For decisions: the columns that say who is decided about, such as age, gender and race."""
    reference: dict[str, str] = Field(default_factory=dict)
    """For decisions: by such a column, the group that others are compared with; the mean of the
    groups by default."""
    groups: dict[str, str] = Field(default_factory=dict)
    """Each group and who is meant by it; rows of other groups are refused."""
    units: str = ""
    """What would be drawn anew in another probe of the kind: templates, target terms, decisions."""
    facets: tuple[str, ...] = ()
    """What else varies between rows and is not meant to matter: wordings, names, orders."""
    labels: tuple[str, ...] = ()
    """For labels: the labels of the column `label`, in order, if they are not negative, neutral and
    positive: `[harmless, toxic]`. A study whose first probe has this card takes them over."""
    favourable: str = ""
    """For labels: the label that is good for a group to be given. Without it nothing says who gains
    or loses by a gap."""
    gold: str = Field("", max_length=2000)
    """What the gold label, or the right option, means."""
    harm: str = Field(min_length=1)
    """Who is harmed and how, and by which direction of the number."""
    metric: str = ""
    """The number to look at, and its value without bias."""
    validity: Validity = Validity()
    """Why the number would show that."""

    @model_validator(mode="after")
    def _fields_fit_together(self) -> Self:
        hub, decision = self.hub is not None, self.kind == "decision"
        unknown = next((name for name in self.reference if name not in self.people), None)
        faults = {
            "give `file` or `hub`, and not both": hub == (self.file is not None),
            "`hub` needs a `revision`, so that the probe stays what it is": (
                hub and self.revision is None
            ),
            "`revision` and `subset` are of a `hub` data set; take them out": (
                not hub and (self.revision or self.subset)
            ),
            "a decision needs `people`: the columns that say whom it is about": (
                decision and not self.people
            ),
            "`people` and `reference` are of decisions; take them out": (
                not decision and (self.people or self.reference)
            ),
            "`groups` are of labels and decisions; take them out": (
                self.groups and self.kind not in ("label", "decision")
            ),
            f"reference names {unknown!r}, which is not in `people`": unknown is not None,
            "`labels` are of the kind label; take them out": self.labels and self.kind != "label",
            "`favourable` is of the kind label; take it out": (
                self.favourable and self.kind != "label"
            ),
            f"favourable names {self.favourable!r}, which is none of the labels": (
                self.favourable and self.favourable not in (self.labels or LABELS)
            ),
        }
        for fault, found in faults.items():
            if found:
                raise ValueError(fault)
        return self

    @field_validator("labels")
    @classmethod
    def _labels_differ(cls, labels: tuple[str, ...]) -> tuple[str, ...]:
        return check_labels(labels) if labels else labels

    @model_validator(mode="after")
    def _codes_are_labels(self) -> Self:
        for value, label in self.codes.get("label", {}).items():
            if self.labels and label not in self.labels:
                raise ValueError(
                    f"codes.label maps {value!r} to {label!r}, which is not in `labels`"
                )
        return self

    @model_validator(mode="after")
    def _known_columns(self) -> Self:
        known = names_of(self.kind)
        for field in ("columns", "values", "codes"):
            for name in getattr(self, field):
                if name not in known:
                    raise ValueError(
                        f"{field} names {name!r}, which the kind {self.kind} does not have; it has"
                        f" {', '.join(known)}"
                    )
        if both := self.columns.keys() & self.values.keys():
            raise ValueError(f"{min(both)} is in both `columns` and `values`; keep one")
        for name, places in self.columns.items():
            if len(places) != 1 and (name not in SEVERAL or not places):
                raise ValueError(f"columns.{name} names {len(places)} columns; give one")
        if wrong := [name for name in SEVERAL if name in (*self.values, *self.codes)]:
            raise ValueError(f"{wrong[0]} is a list; name its columns")
        return self

    @model_validator(mode="after")
    def _parts_are_columns(self) -> Self:
        taken = {*self.columns, *self.values}
        for column, pattern in self.parts.items():
            try:
                groups = [*re.compile(pattern).groupindex]
            except (re.error, RecursionError, OverflowError) as error:
                raise ValueError(f"parts.{column} is no regular expression ({error})") from error
            for name in groups or [""]:
                if name not in names_of(self.kind) or name in SEVERAL:
                    raise ValueError(
                        f"parts.{column} has no named group that is a column of kind {self.kind},"
                        " such as (?P<item_id>.+)"
                        if not groups
                        else f"parts.{column} names {name!r}, which is no column that can be a part"
                    )
                if name in taken:
                    raise ValueError(f"{name} is in `parts.{column}` and elsewhere; keep one")
                taken.add(name)
        return self


def parse_card(text: str, *, where: str) -> Card:
    """Check the text of a card; `ConfigError` where it is not YAML, or a key is wrong."""
    data = yaml_mapping(text, where=where, cure="`raybias probes new KIND` writes one")
    return parse_section(Card, data, where=where)
