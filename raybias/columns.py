"""Declare the columns of a table: the type of each, and what its values may be."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa


@dataclass(frozen=True)
class Rule:
    """What the values of a column may be, besides its type; numbers are always finite."""

    optional: bool = False
    """Whether a value may be missing (null), which every reader of the column must allow for."""
    least: float = -math.inf
    most: float = math.inf
    gaps: bool = False
    """Whether elements of its lists may be missing."""
    among: tuple[str, ...] = ()
    """The texts that it may have; any if empty."""
    inside: bool = False
    """Whether a text is part of the path of a file, which must not lead out of its folder."""
    unique: bool = False
    """Whether no two rows have the same value."""


#: A question's context is too short to tell the answer, or says it.
CONTEXTS: Final = ("ambig", "disambig")

#: Whether a question asks for something bad or not.
POLARITIES: Final = ("neg", "nonneg")

#: Sets of an association test: targets X and Y, attributes A and B.
ASSOCIATION_SETS: Final = ("X", "Y", "A", "B")

#: Which sentence of a pair holds the stereotype, and whether a pronoun fits one.
DIRECTIONS: Final = ("stereo", "antistereo")
CONDITIONS: Final = ("pro", "anti")

#: Whom an answer names; `empty` is no answer.
READINGS: Final = ("referent", "other", "both", "neither", "empty")

#: How far above 0 rounding may take a log-probability, in nats.
ROUNDING: Final = 1e-3
_LOG: Final = Rule(most=ROUNDING)
_COUNT: Final = Rule(least=0)
#: The types that a column of a schema can be declared with, and the rule of each.
_TYPES: Final = {
    "": (pa.string(), Rule()),
    "bool": (pa.bool_(), Rule()),
    "int64": (pa.int64(), Rule()),
    "float": (pa.float64(), Rule()),
    "texts": (pa.list_(pa.string()), Rule()),
    "float32s": (pa.list_(pa.float32()), Rule()),
    # Counts and places, which begin at 0, and amounts, such as seconds.
    "count8": (pa.int8(), _COUNT),
    "count16": (pa.int16(), _COUNT),
    "count32": (pa.int32(), _COUNT),
    "count": (pa.int64(), _COUNT),
    "counts32": (pa.list_(pa.int32()), _COUNT),
    "amount": (pa.float64(), _COUNT),
    # Probabilities and accuracies; a curve has one value for each evaluation.
    "share": (pa.float64(), Rule(least=0, most=1)),
    "curve": (pa.list_(pa.float64()), Rule(gaps=True)),
    "share_curve": (pa.list_(pa.float64()), Rule(least=0, most=1, gaps=True)),
    "log_prob": (pa.float64(), _LOG),
    "log_probs": (pa.list_(pa.float64()), _LOG),
    "bounds": (pa.list_(pa.int64()), Rule()),
    "log_probs32": (pa.list_(pa.float32()), _LOG),
    # Texts of which there are few.
    "preference": (pa.int8(), Rule(least=0, most=1)),
    "context": (pa.string(), Rule(among=CONTEXTS)),
    "polarity": (pa.string(), Rule(among=POLARITIES)),
    "set": (pa.string(), Rule(among=ASSOCIATION_SETS)),
    "direction": (pa.string(), Rule(among=DIRECTIONS)),
    "condition": (pa.string(), Rule(among=CONDITIONS)),
    "reading": (pa.string(), Rule(among=READINGS)),
    # Parts of paths within OUT.
    "path": (pa.string(), Rule(inside=True)),
    "address": (pa.binary(16), Rule()),
    "stage": (pa.string(), Rule(among=("sweep", "final"))),
}
#: The key of a field's metadata that has what it was declared as, such as `share?`.
_DECLARED: Final = b"raybias"


def declared(columns: str) -> pa.Schema:
    """Make a schema of its columns in order.

    `name` has text, `name:type` a type of `_TYPES`. A `?` behind it allows missing values, and a
    `!` says that values are unique.
    """
    fields = []
    for column in columns.split():
        name, _, kind = column.rstrip("?!").partition(":")
        fields.append(declared_field(name, kind + column[len(column.rstrip("?!")) :]))
    return pa.schema(fields)


def declared_field(name: str, declaration: str) -> pa.Field:
    """Make one column of a schema; the declaration is what stands behind the `:` of `declared`."""
    stored, _ = _TYPES[declaration.rstrip("?!")]
    return pa.field(name, stored, metadata={_DECLARED: declaration.encode()})


def part_of(table: pa.Schema, names: Iterable[str]) -> pa.Schema:
    """Return the schema of some columns of a table."""
    return pa.schema([table.field(name) for name in names])


def rule_of(field: pa.Field) -> Rule:
    """Return the rule of a column; of one that another package declared, what its type allows."""
    metadata = field.metadata or {}
    if _DECLARED not in metadata:
        return Rule(optional=True, gaps=True)
    declaration = metadata[_DECLARED].decode()
    _, rule = _TYPES[declaration.rstrip("?!")]
    return replace(rule, optional=declaration.endswith("?"), unique=declaration.endswith("!"))
