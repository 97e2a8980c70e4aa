"""Read a training set from the Hugging Face hub."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import polars as pl

from raybias.config import TrainingSet
from raybias.errors import DataError
from raybias.probes.column_checks import needed
from raybias.probes.registries import Splits, training_set
from raybias.probes.training.custom_files import checked


@training_set("hub")
def _hub(training: TrainingSet) -> Splits:
    """Read what `datasets.load_dataset` finds; code in its repository is never run.

    Raises
    ------
    DataError: it cannot be loaded, or lacks a split, column or known labels.
    """
    data = needed(training.data, where=f"training set {training.name}")
    loaded = load_splits(data, ("train", "validation"), revision=training.revision)
    where = f"data set {data}"
    return {
        split: checked(training, _hub_frame(training, loaded[split]), where=f"{where} ({split})")
        for split in ("train", "validation", "test")
        if split in loaded
    }


def load_splits(
    name: str, splits: Sequence[str], *, config: str | None = None, revision: str | None = None
) -> Any:
    """Load a data set of the hub or a folder; `DataError` where that fails or a split lacks."""
    import datasets

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    where = f"data set {name}"
    try:
        loaded = datasets.load_dataset(name, config, revision=revision)
    # Loading touches the network, the disk and foreign files: whatever it says goes into one line.
    except Exception as error:
        cure = "check the id, its configuration and revision, and the network"
        raise DataError(f"cannot load ({error})", where=where, cure=cure) from error
    for split in splits:
        if split not in loaded:
            raise DataError(f"no split {split!r}", where=where, cure=f"it has {', '.join(loaded)}")
    return loaded


def _hub_frame(training: TrainingSet, split: Any) -> pl.DataFrame:
    """Replace class numbers by names, unless the user's map has numbers.

    A two-class set numbers positive 1: taken for the papers' numbers it would be neutral.
    """
    frame = pl.DataFrame(split.with_format("arrow")[:])
    names = getattr(split.features.get(training.label_column), "names", None)
    numbers = {str(number) for number in range(len(names or ()))}
    if not names or (training.labels and numbers.issuperset(training.labels)):
        return frame
    return frame.with_columns(
        pl.col(training.label_column).replace_strict(
            dict(enumerate(names)), default=None, return_dtype=pl.String
        )
    )
