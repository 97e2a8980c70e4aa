"""Read the embedded calibration: items of invented groups, and the bias that was planted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final

import polars as pl
from pydantic import Field, TypeAdapter
from pydantic.dataclasses import dataclass

from raybias.config import TrainingSet
from raybias.probes.registries import Splits, probe, training_set

ASSETS: Final = Path(__file__).parents[2] / "assets"


@dataclass(frozen=True)
class Plant:
    """The planted gap of `group` in `rate`, and the true value of every gap."""

    attribute: str
    group: str
    rate: str
    truth: Mapping[str, Mapping[str, Annotated[float, Field(ge=-1, le=1)]]]
    """By rate and group: the gap over all sentences, words for the groups and seeds."""

    def __post_init__(self) -> None:
        _ = self.size

    @classmethod
    def read(cls, text: str) -> Plant:
        """Read a file of planted.json's kind; KeyError or ValueError if it is none."""
        return TypeAdapter(cls).validate_json(text)

    @property
    def size(self) -> float:
        """Return the true gap of the planted group."""
        return self.truth[self.rate][self.group]


def plant() -> Plant:
    """Return the true gaps of the embedded model (assets/planted.json), over all words."""
    return Plant.read((ASSETS / "planted.json").read_text("utf-8"))


@probe("planted", about="embedded calibration over invented groups", favourable="positive")
def planted_items(data: str, attributes: Sequence[str] | None) -> pl.DataFrame:
    """Read the probe (schema.ITEMS): the same sentences for each of six groups."""
    return pl.read_parquet(ASSETS / "planted_items.parquet")


@training_set("planted")
def planted_sentences(training: TrainingSet) -> Splits:
    """Read the splits (schema.SENTENCES), whose sentences name no group."""
    rows = pl.read_parquet(ASSETS / "planted_sentences.parquet")
    return {
        str(split): part.drop("split")
        for (split,), part in rows.group_by("split", maintain_order=True)
    }
