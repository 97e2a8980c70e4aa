"""Match the predictions of two arms: the same sentences, and the same seeds where they have them.

An arm is what is compared with another: a fine-tuned model with its base, a quantised one with
the full one, two methods of one study. Of model, method and training set, what is one in each arm
is what is compared; by the rest, and by probe and style, classifiers are matched.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from raybias import schema
from raybias.errors import ConfigError, DataError
from raybias.stats.cells import RUN_KEYS, without_extras
from raybias.stats.predictions import join_pieces, sources
from raybias.stats.reference_groups import StatisticsWarning
from raybias.stats.run_checks import checked_runs, fingerprints

_FACTS: Final = ("item_id", "label", "attribute", "group", "template_id", "term")
_COLUMNS: Final = (*RUN_KEYS, *_FACTS, "pred", "parsed")
_CLASSIFIER: Final = schema.KEYS[:3]
#: Run ids of studies end with the seed.
_SEED: Final = r"\.s(\d+)$"


@dataclass(frozen=True)
class Matched:
    """What two classifiers answered on one probe in one style."""

    keys: tuple[str, ...]
    """Values of schema.KEYS; `a -> b` where the arms differ."""
    base: pl.DataFrame
    """Predictions with `keys`, sorted by run and item; `run_id` is the seed where it is known."""
    candidate: pl.DataFrame
    paired: bool
    """Whether both have the same runs; otherwise the runs of one say nothing of the other's."""


def read_arm(paths: Sequence[str], chosen: Mapping[str, str]) -> pl.DataFrame:
    """Read one arm's predictions, without scores and the extra groups of markedness.

    Parameters
    ----------
    paths: files and folders, as `read_predictions`.
    chosen: values of schema.KEYS; rows with others are left out.

    Raises
    ------
    DataError: as `read_predictions`; or no prediction is left, or one has no template id.
    ConfigError: not a column of schema.KEYS.
    """
    where = ", ".join(paths)
    frame = without_extras(join_pieces(sources(paths), where=where, columns=_COLUMNS))
    for name, value in chosen.items():
        if name not in schema.KEYS:
            raise ConfigError(
                f"{name!r} does not name a classifier", cure=f"choose by {', '.join(schema.KEYS)}"
            )
        there = frame[name].unique().cast(pl.String).sort().to_list()
        frame = frame.filter(pl.col(name) == value)
        if frame.is_empty():
            raise DataError(
                f"has no {name} {value!r}",
                where=where,
                cure=f"it has {', '.join(map(repr, there))}",
            )
    if frame["template_id"].null_count():
        raise DataError(
            "has predictions without template_id, over which changes of gaps are judged",
            where=where,
            cure="name each sentence's template",
        )
    return _by_seed(frame)


def _by_seed(frame: pl.DataFrame) -> pl.DataFrame:
    """Name runs by their seeds, where ids end with it and no two runs share one."""
    seed = pl.col("run_id").cast(pl.String).str.extract(_SEED)
    seeds = frame.select(RUN_KEYS).unique().with_columns(run_id=seed)
    if seeds["run_id"].null_count() or seeds.is_duplicated().any():
        return frame.cast({"run_id": pl.String})
    return frame.with_columns(run_id=seed)


def matched(base: pl.DataFrame, candidate: pl.DataFrame) -> Iterator[Matched]:
    """Yield the classifiers of two arms in pairs, probe by probe and style by style.

    Parameters
    ----------
    base, candidate: of `read_arm`.

    Raises
    ------
    DataError: a classifier, probe or style that one arm lacks, runs that do not hold the same
        items, or an item whose label, attribute, group, template or term differs.
    """
    alone = [k for k in _CLASSIFIER if base[k].n_unique() == candidate[k].n_unique() == 1]
    on = [key for key in schema.KEYS if key not in alone]
    for name, one, other in (("base", base, candidate), ("candidate", candidate, base)):
        missing = one.select(on).unique().join(other, on=on, how="anti").sort(on)
        if missing.height:
            lacks = ", ".join(
                f"{key} {value!r}" for key, value in missing.row(0, named=True).items()
            )
            raise DataError(
                f"the {name} has {lacks}, which the other arm lacks",
                cure="read both on the same probes, and choose classifiers with --base and "
                "--candidate",
            )
    others = candidate.partition_by(on, as_dict=True)
    for place, part in base.sort(on).partition_by(on, as_dict=True, maintain_order=True).items():
        yield _matched(part, others[place])


def _matched(base: pl.DataFrame, candidate: pl.DataFrame) -> Matched:
    values = [(base[key][0], candidate[key][0]) for key in schema.KEYS]
    keys = tuple(one if one == other else f"{one} -> {other}" for one, other in values)
    named = [
        pl.lit(value, pl.Categorical()).alias(key)
        for key, value in zip(schema.KEYS, keys, strict=True)
    ]
    arms = [part.with_columns(named).sort("run_id", "item_id") for part in (base, candidate)]
    runs = [arm["run_id"].unique(maintain_order=True).to_list() for arm in arms]
    told_apart = [
        arm.with_columns(run_id=f"{name} " + pl.col("run_id"))
        for name, arm in zip(("base", "candidate"), arms, strict=True)
    ]
    with warnings.catch_warnings():
        # Runs that agree to the last answer are what a comparison may be looking for.
        warnings.simplefilter("ignore", StatisticsWarning)
        checked_runs(
            pl.concat(map(fingerprints, told_apart)).cast({pl.Categorical: pl.String}),
            lambda: told_apart,
            where="base and candidate",
            uneven="refuse",
        )
    return Matched(keys, arms[0], arms[1], paired=runs[0] == runs[1])
