"""Answers become sums by unit, sums become estimates: one chain for every kind of measurement."""

from raybias.measures.kind import (
    Kind,
    Rules,
    Sums,
    Table,
    kind,
    kinds,
    measure,
    measure_all,
)
from raybias.measures.reading import read
from raybias.stats.contrasts import ratio

__all__ = [
    "Kind",
    "Rules",
    "Sums",
    "Table",
    "kind",
    "kinds",
    "measure",
    "measure_all",
    "ratio",
    "read",
]
