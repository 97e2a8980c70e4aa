"""The public functions: what the command line does, from Python.

Each imports what it needs when it is called, so that statistics and reports need
neither torch nor Ray.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from raybias.config import Probe, Profile, Study, load_study
from raybias.results import Results
from raybias.storage import Store

if TYPE_CHECKING:
    import polars as pl

    from raybias.planning.plan import Plan

__all__ = ["gaps", "load_study", "open", "plan", "probe_items", "run", "write_report"]


def run(
    study: Study, *, out: str | Path, address: str | None = None, command: str = "raybias.run"
) -> Results:
    """Run a study, or what OUT lacks of it, and write its tables and report.

    Parameters
    ----------
    study: from `load_study`, or made from Python.
    out: folder or URI of the results.
    address: of a Ray cluster; None takes RAY_ADDRESS, or starts Ray on this machine.
    command: recorded in OUT/study.yaml.

    Returns what the study found, to be read from OUT.

    Raises
    ------
    BadInput: before any work, for what can be mended.
    WorkFailed: the work began and failed; the same call goes on with it.
    """
    from raybias.runtime.study import run_study
    from raybias.runtime.tracking import track_tables

    run_study(study, out, address=address, command=command)
    write_report(out)
    track_tables(study, Store(out))
    return Results(out)


def open(out: str | Path) -> Results:
    """Open the OUT of a study that was run.

    Raises
    ------
    OutputError: OUT holds no study.
    """
    return Results(out)


def plan(study: Study, *, out: str | Path | None = None, address: str | None = None) -> Plan:
    """What would run where, without loading a model.

    Raises
    ------
    BadInput: what `run` would refuse before any work.
    PlanError: the machine or cluster cannot hold it.
    """
    from raybias.planning.inventory import with_autoscaled_nodes
    from raybias.planning.plan import plan as decide
    from raybias.runtime.inventory import read_inventory
    from raybias.runtime.study import prepare

    prepared = prepare(study, None if out is None else Store(out))
    there = read_inventory(address, products=prepared.study.undecided)
    inventory = with_autoscaled_nodes(there, study.resources.nodes)
    return decide(prepared, inventory, out=None if out is None else str(out))


def write_report(
    out: str | Path, *, profile: Profile | None = None, corpus: str | None = None
) -> pl.DataFrame:
    """Make the tables, figures and page of an OUT again from its files.

    Parameters
    ----------
    profile: states the statistics by this profile; how runs were tuned stays as it was.
    corpus: counts of `raybias corpus`, to set beside the gaps; copied into OUT.

    Returns the gaps (`schema.GAPS`), none where the study reads pairs alone.

    Raises
    ------
    OutputError: OUT holds no study.
    """
    from raybias import report

    store = Store(out)
    study = report.load_record(store).study
    if profile is not None:
        study = report.restated(study, profile)
    if corpus is not None:
        report.add_corpus(store, corpus)
    return report.write_report(store, study)


def gaps(
    files: Sequence[str | Path],
    *,
    profile: Profile | None = None,
    reference_groups: Mapping[str, Sequence[str]] | None = None,
) -> pl.DataFrame:
    """Gaps (`schema.GAPS`) of prediction files: Kohankhaki2024's TSV, our Parquet, or an OUT.

    The predictions of an OUT are judged as its report judges them: by the statistics and
    reference groups of its study.

    Parameters
    ----------
    profile: states the statistics by this profile; by default the study's, else strict.
    reference_groups: per attribute, the groups whose mean a gap is taken from; by default the
        study's, else the papers'.

    Raises
    ------
    DataError: a file is missing or malformed, an item is not the same in all runs, or the runs
        of a classifier do not hold the same items.
    ConfigError: reference groups that are not there, or studies that are judged differently.
    """
    from raybias import report, stats

    paths = [str(file) for file in files]
    rules = report.rules_of_files(paths, profile=profile, reference_groups=reference_groups)
    return stats.judged_gaps(stats.read_counts(paths), rules)


def probe_items(probe: Probe) -> pl.DataFrame:
    """The sentences of a probe (`schema.ITEMS`).

    Raises
    ------
    DataError: its data is missing or malformed.
    """
    from raybias import probes

    return probes.probe_items(probe)
