"""Answers become sums by unit, sums become estimates: one chain for every kind of measurement."""

from raybias.measures.kind import (
    Kind,
    Least,
    Rules,
    Score,
    Sums,
    Table,
    kind,
    kinds,
    measure,
    measure_all,
    ratio,
)
from raybias.measures.reading import read

__all__ = [
    "Kind",
    "Least",
    "Rules",
    "Score",
    "Sums",
    "Table",
    "kind",
    "kinds",
    "measure",
    "measure_all",
    "ratio",
    "read",
]
