"""Study a model: plan, run, open, report and serve, as the command line does.

Functions import what they need when they are called, so importing them loads neither torch nor Ray.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from raybias.config import Profile, Study, load_study
from raybias.errors import ConfigError
from raybias.results import Results
from raybias.storage import Store
from raybias.study_record import read_record, study_place

if TYPE_CHECKING:
    from raybias.engine.conversion import Converted
    from raybias.planning.costs import StudyPlan
    from raybias.runtime.doctor import Finding

#: Most times the nodes that a plan is scaled to.
_MOST_TIMES: Final = 1000
#: What a report can draw beside its own figures.
Figures = Literal["paper"]


def convert(model: str, out: str | Path, *, revision: str | None = None) -> Converted:
    """Convert a GGUF file, or a checkpoint with pickled weights, into a folder with safetensors.

    transformers reads a GGUF file (extra `gguf`) and dequantises it to float32. torch's unpickler
    of weights alone reads a pickle.
    OUT/converted.json has the sha256 of each file, and a quantisation, which the backbone's default
    name includes.

    Parameters
    ----------
    model: a GGUF file, or a hub id or a folder with pytorch_model.bin, whole or in parts.
    out: a folder that does not exist yet.
    revision: branch, tag or commit on the hub.

    Raises
    ------
    ModelError: not found, damaged, of an architecture that transformers cannot load, safetensors
        already, or a pickle that holds more than weights.
    OutputError: `out` exists, or cannot be written.
    """
    from raybias.engine import conversion

    return conversion.convert(model, out, revision=revision)


def run(
    study: Study,
    *,
    out: str | Path,
    address: str | None = None,
    command: str = "raybias.run",
    skip_unfit: bool = False,
) -> Results:
    """Run a study, or the rest of it, and write its tables and report; return them.

    Parameters
    ----------
    study: from `load_study`, or made from Python.
    out: folder or URI of the results.
    address: of a Ray cluster; "local" starts Ray on this machine, "none" computes in this process;
        None takes RAY_ADDRESS, else this process for a study of seconds, or Ray on this machine.
    command: recorded in OUT/study.yaml.
    skip_unfit: leave out backbones and methods that do not fit, instead of refusing the study;
        the same call on a larger cluster does them.

    Raises
    ------
    BadInput: before any work, for what can be mended.
    WorkFailed: the work began and failed; the same call goes on with it.
    """
    from raybias.runtime.lease import leased
    from raybias.runtime.progress import Reporter
    from raybias.runtime.study import run_study
    from raybias.runtime.tracking import track_tables

    store, reporter = Store(out), Reporter()
    with leased(store):
        run_study(
            study, out, address=address, command=command, reporter=reporter, skip_unfit=skip_unfit
        )
        reporter.say(f"{study.name}: writing the tables and the page")
        results = write_report(out)
        track_tables(study, store)
    return results


def open(out: str | Path) -> Results:
    """Open the OUT of a study that was run.

    Raises
    ------
    OutputError: OUT holds no study.
    """
    return Results(out)


def plan(
    study: Study,
    *,
    out: str | Path | None = None,
    address: str | None = None,
    assume: Sequence[str] = (),
    peak_tflops: float | None = None,
    utilisation: float | None = None,
    scale: Sequence[int] = (),
    skip_unfit: bool = False,
) -> StudyPlan:
    """Plan what would run where and what it costs, without loading a model; print the result.

    Parameters
    ----------
    out: folder or URI that results will go to; checked too.
    address: of a Ray cluster; None, "local" and "none" plan for this machine.
    assume: nodes to plan for, such as `nodes=4,cpus=32,memory=256GiB`, one text for each kind.
    peak_tflops: peak of one device; None looks it up by the kind of GPU.
    utilisation: fraction of the peak that long passes reach; None as the kind of device does.
    scale: also bound the wall time on so many times the nodes.
    skip_unfit: leave out backbones and methods that do not fit, instead of refusing the study.

    Raises
    ------
    BadInput: what `run` would refuse before any work.
    PlanError: the machine or cluster cannot hold it.
    """
    from raybias.planning.bounds import Forecast
    from raybias.planning.costs import StudyPlan, costs_of
    from raybias.planning.inventory import assumed, with_autoscaled_nodes
    from raybias.planning.machine import Machine
    from raybias.planning.plan import plan as make_plan
    from raybias.planning.plan import scaled
    from raybias.runtime.inventory import read_inventory
    from raybias.runtime.study import prepare

    if address is not None and assume:
        raise ConfigError("--address and --assume exclude each other", cure="give one")
    if wrong := [times for times in scale if not 1 <= times <= _MOST_TIMES]:
        raise ConfigError(
            f"{str(wrong[0])!r} times the nodes",
            where="--scale",
            cure=f"choose from 1 to {_MOST_TIMES:,}",
        )
    prepared = prepare(study, None if out is None else Store(out))
    if assume:
        inventory = assumed(*assume)
    else:
        there = read_inventory(address, dtypes=prepared.study.undecided)
        inventory = with_autoscaled_nodes(there, study.resources.nodes)
    machine = Machine(peak_tflops, utilisation)
    planned = make_plan(
        prepared,
        inventory,
        out=None if out is None else str(out),
        machine=machine,
        skip_unfit=skip_unfit,
    )
    scales = tuple(scaled(planned, scale, machine))
    return StudyPlan(planned, costs_of(planned), Forecast.of(planned), scales)


def demo(
    out: str | Path = "out/demo", *, address: str | None = None, command: str = "raybias.demo"
) -> Results:
    """Run the embedded calibration, whose planted bias is known.

    Parameters
    ----------
    out, address, command: as for `run`.
    """
    from raybias.probes.published.planted import plant
    from raybias.runtime.lease import leased
    from raybias.runtime.progress import Reporter
    from raybias.runtime.study import run_study

    store, reporter = Store(out), Reporter()
    with leased(store):
        with as_file(files("raybias") / "assets" / "demo.yaml") as path:
            study = load_study(path)
        run_study(study, out, address=address, command=command, reporter=reporter)
        # Only now is OUT known to be the demonstration's.
        store.write_text("planted.json", json.dumps(asdict(plant()), indent=2) + "\n")
        reporter.say("demo: writing the tables and the page")
        return write_report(out)


def write_report(
    out: str | Path,
    *,
    profile: Profile | None = None,
    figures: Figures | None = None,
    verify: bool = False,
) -> Results:
    """Write the tables, figures and page of an OUT again from its files.

    Figures of the earlier report that this one does not draw are deleted; files that no report
    wrote, or that were changed, stay.

    Parameters
    ----------
    profile: states the statistics by this profile; how runs were tuned stays as it was.
    figures: `paper` also draws every figure and table of Tian2023, Zhao2025 and Kohankhaki2024 that
        the results can fill, laid out as there, one file each in OUT/figures/paper: SVG, or CSV and
        Markdown.
    verify: refuse results that changed since they were written, by OUT/seal.json; without it the
        page and a warning name them.

    Raises
    ------
    OutputError: OUT holds no study.
    DataError: with `verify`, a file that was changed, deleted or added, or no OUT/seal.json; with
        `figures`, results that fill none of them.
    """
    from raybias import seal
    from raybias.report import page
    from raybias.report.outs import restated

    store = Store(study_place(out))
    if verify:
        seal.verify(store)
    study = restated(read_record(store).study, profile)
    page.write_report(store, study, papers=figures == "paper")
    return Results(store.uri)


def serve(out: str | Path, **options: Any) -> AbstractContextManager[str]:
    """Serve the runs of a finished study over HTTP while the context is open; gives the URL.

    Parameters
    ----------
    options: of `raybias.runtime.serve.app.serve_out`.
    """
    from raybias.runtime.serve.app import serve_out

    return serve_out(study_place(out), **options)


def doctor(
    address: str | None = None, *, out: str | Path | None = None, hub: bool = True
) -> Iterator[Finding]:
    """Examine this machine or a cluster: each finding is ok, warn or fail, with a cure.

    Parameters
    ----------
    address: of a Ray cluster; None starts one on this machine.
    out: of a study, to be examined too.
    hub: whether to try to reach the model hub.
    """
    from raybias.runtime.doctor import examine

    return examine(address, hub=hub, out=None if out is None else str(out))
