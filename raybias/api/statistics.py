"""Judge files of predictions, scores and answers, wherever they come from: no model, no Ray.

Each function imports what it needs when it is called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from raybias.api.paths import Paths, listed
from raybias.config import (
    Interval,
    Probe,
    Profile,
    Scope,
)
from raybias.storage import Store

if TYPE_CHECKING:
    import polars as pl

    from raybias.report import Comparison


def gaps(
    files: Paths,
    *,
    profile: Profile | None = None,
    scope: Scope | None = None,
    interval: Interval | None = None,
    margin: float | None = None,
    reference_groups: Mapping[str, Sequence[str]] | None = None,
    metrics: Sequence[str] = (),
    out: str | Path | None = None,
) -> pl.DataFrame:
    """Compute gaps (`schema.GAPS`) of prediction files: Kohankhaki2024's TSV, our Parquet, an OUT.

    The predictions of an OUT are judged as its report judges them: by the statistics and
    reference groups of its study.

    Parameters
    ----------
    profile: states the statistics by this profile; by default the study's, else strict.
    scope, interval, margin: replace the study's or profile's (see `Statistics`).
    reference_groups: per attribute, the groups whose mean a gap is taken from; by default the
        study's, else the papers'.
    metrics: what gaps are taken of; by default the study's, else the two false positive rates.
    out: folder or URI for these and the derived tables (CSV) and their figures (SVG).

    Raises
    ------
    DataError: a file is missing or malformed, an item is not the same in all runs, or the runs
        of a classifier do not hold the same items.
    ConfigError: reference groups that are not there, or studies that are judged differently.
    """
    from raybias import report

    found = report.gaps_of_files(
        listed(files),
        profile=profile,
        reference_groups=reference_groups,
        scope=scope,
        interval=interval,
        margin=margin,
        metrics=tuple(metrics),
    )
    if out is not None:
        found.write(Store(out))
    return found.tables["gaps"]


def metrics(
    files: Paths,
    *,
    metrics: Sequence[str] = (),
    positive: int | None = None,
    background: str | None = None,
    level: float = 0.95,
    seed: int = 0,
    out: str | Path | None = None,
) -> dict[str, pl.DataFrame]:
    """Compute fairness metrics of predictions: `metrics` (`schema.METRICS`) and `agreement`.

    Parameters
    ----------
    files: as for `gaps`, or tables of others: CSV or Parquet with `label`, `group`, and `pred` or
        `score` (docs/metrics.md).
    metrics: their names; by default all that the files allow.
    positive: the class that metrics of one class are about; by default the last.
    background: `mean_of_groups`, `pooled`, `pooled_others` or `reference:GROUP`, instead of each
        metric's own.
    level, seed: of intervals, and of the draws of those that are drawn.
    out: folder or URI for metrics.csv and agreement.csv.

    Raises
    ------
    DataError: as `gaps`, or a metric of scores or source examples where there are none.
    ConfigError: no such metric, class, background or group.
    """
    from raybias.stats.metric_files import metrics_of_files
    from raybias.table_files import csv_text

    found = metrics_of_files(
        listed(files), metrics, positive=positive, against=background or "", level=level, seed=seed
    )
    if out is not None:
        store = Store(out)
        for name, frame in found.items():
            store.write_text(f"{name}.csv", csv_text(frame))
    return found


def compare(
    base: str | Path | Sequence[str | Path],
    candidate: str | Path | Sequence[str | Path],
    *,
    base_is: Mapping[str, str] | None = None,
    candidate_is: Mapping[str, str] | None = None,
    scope: Scope | None = None,
    margin: float | None = None,
    out: str | Path | None = None,
) -> Comparison:
    """Compare a candidate with its base: is any gap or score worse, better, or equivalent?

    Of model, method and training set, what is one in each arm is what is compared; by the rest,
    by probe, style and sentence, and by seed where both have the same seeds, arms are matched.

    Parameters
    ----------
    base, candidate: an OUT, prediction files and folders as `gaps` takes, or answers about pairs
        as `measure` takes.
    base_is, candidate_is: which of an arm's rows are meant, by model, method, dataset,
        probe or style, so that two arms of one OUT can be compared.
    scope: what intervals cover (`Statistics.scope`); by default the study's, else the widest.
    margin: the largest change of a gap that does not matter; the study's, else 0.02.
    out: folder or URI for compare.csv, compare.md, compare.json and compare.html.

    Raises
    ------
    DataError: a file is missing or malformed, or one arm lacks a probe, classifier or sentence of
        the other.
    ConfigError: studies with other profiles, templates, label words or rules.
    """
    from raybias import report

    arms = [[arm] if isinstance(arm, str | Path) else arm for arm in (base, candidate)]
    found = report.compare(
        *arms, base_is=base_is, candidate_is=candidate_is, scope=scope, margin=margin
    )
    if out is not None:
        found.write(Store(out))
    return found


def design(
    files: Paths,
    *,
    target: float | None = None,
    profile: Profile | None = None,
    scope: Scope | None = None,
) -> pl.DataFrame:
    """Predict which seeds, templates and words to add for narrow intervals (`schema.DESIGN`).

    Parameters
    ----------
    files: as for `gaps`; the OUT of a tuned study is priced in device-hours, others in items read.
    target: the half width that is wanted; by default the study's margin, else 0.02.
    profile, scope: as for `gaps`.

    Raises
    ------
    DataError: as for `gaps`, or predictions without template ids.
    ConfigError: as for `gaps`.
    """
    from raybias import report

    return report.design_of_files(listed(files), target=target, profile=profile, scope=scope)[0]


def corpus_counts(
    source: str,
    probe: Probe,
    *,
    text_column: str = "text",
    split: str = "train",
    address: str | None = None,
) -> pl.DataFrame:
    """Count on Ray how often a corpus marks a probe's nouns with group terms (`schema.CORPUS`).

    Parameters
    ----------
    source: a text file with one document a line, a Parquet file, a folder or pattern of either,
        or `hub:NAME` for a `datasets` id.
    text_column, split: of Parquet files and hub data sets.
    address: as for `run`.

    Raises
    ------
    DataError: no such source, column or split, or no document in it.
    """
    from raybias.runtime.corpus import count_corpus

    return count_corpus(source, probe, column=text_column, split=split, address=address)[0]
