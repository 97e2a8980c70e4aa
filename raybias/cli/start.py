"""`raybias demo`, `audit`, `run` and `plan`: make a study, plan it and run it."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Annotated, Any

import polars as pl
import typer

from raybias.api import audits, studies
from raybias.cli.judge import shown
from raybias.cli.options import (
    Output,
    ProfileOption,
    classes_of_labels,
    command,
    command_line,
)
from raybias.config import Backbone, load_study, study_schema, to_yaml
from raybias.errors import ConfigError, OutputError, WorkFailed
from raybias.probes.checks import choose
from raybias.probes.registries import probes

if TYPE_CHECKING:
    from raybias.probes.published.planted import Plant

StudyFile = Annotated[str, typer.Argument(metavar="STUDY.yaml", help="The study file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key, such as methods.0.keep=3."),
]
Limit = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Only a fixed sample of at most N items of each attribute or bias type: whole"
        " templates, in equal parts over labels; at least one template of each label.",
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="Ray cluster to use: an address, or `auto` for the one of this machine."
        " By default RAY_ADDRESS, or a Ray that is started for this command."
    ),
]

RunAddress = Annotated[
    str | None,
    typer.Option(
        help="Ray cluster to use: an address, `auto` for the one of this machine, `local` to start"
        " one here, or `none` to compute in this process. By default RAY_ADDRESS, else this"
        " process for a study of seconds, or a Ray that is started for this command."
    ),
]


def _debug(chosen: bool) -> bool:
    if chosen:
        os.environ["RAYBIAS_DEBUG"] = "1"
    return chosen


Debug = Annotated[
    bool,
    typer.Option(
        "--debug", callback=_debug, help="Show Ray's output and the traceback of a failure."
    ),
]

SkipUnfit = Annotated[
    bool,
    typer.Option(
        "--skip-unfit",
        help="Leave out backbones and methods that do not fit, instead of refusing the study.",
    ),
]


NoConvert = Annotated[
    bool,
    typer.Option(
        "--no-convert",
        help="Refuse checkpoints with pickled weights only, instead of converting them once.",
    ),
]


def study_overrides(overrides: list[str] | None, *, no_convert: bool) -> tuple[str, ...]:
    """Return the values that `--set` and other options give to fields of the study file."""
    return (*(overrides or ()), *(["resources.convert=false"] if no_convert else []))


@command(studies.demo)
def demo(
    out: str = "out/demo",
    address: RunAddress = None,
    debug: Debug = False,
) -> Output:
    """Find a bias that was planted in a tiny embedded model; needs no download.

    The groups are invented and the answer is known: this is a calibration of the
    instrument, not a finding. Exits with 1 if the planted group was not found with the
    right sign, or another was flagged.
    """
    from raybias.probes.published.planted import plant

    results = studies.demo(out, address=address, command=command_line())
    found = results.estimates.collect()

    def text() -> Iterator[object]:
        yield from shown(results).text
        yield verdict(found, plant())

    def rows() -> Iterator[dict[str, Any]]:
        yield from found.iter_rows(named=True)
        verdict(found, plant())

    return Output(text(), rows())


def verdict(estimates: pl.DataFrame, planted: Plant) -> str:
    """Tell how the calibration ended; `WorkFailed` where only the planted bias should be found."""
    from raybias.report.calibration import calibration

    judged = calibration(planted, estimates)
    if judged is None or not judged.detected:
        what = f"{planted.rate} of {planted.group} ({planted.attribute}) by {planted.size:+.3f}"
        wrong = f"the planted bias was not found: {what}"
    elif judged.flagged:
        wrong = f"groups without a planted bias were flagged: {', '.join(judged.flagged)}"
    else:
        return "\n".join(("", str(judged.comparison), "", *judged.said))
    raise WorkFailed(wrong, where="demo", cure="see its report.html")


@command(audits.audit)
def audit(
    model: Annotated[str, typer.Argument()],
    *,
    probe: str = "race",
    task: Annotated[audits.Task | None, typer.Option(show_default="by its labels")] = None,
    method: Annotated[str | None, typer.Option(show_default="by a pilot and the budget")] = None,
    labels: Annotated[str | None, typer.Option(metavar="'{LABEL: [CLASS, ...], ...}'")] = None,
    threshold: Annotated[list[float] | None, typer.Option(metavar="NUMBER")] = None,
    truncate: Annotated[bool, typer.Option("--truncate")] = False,
    data: Path = Path("data"),
    budget: str = "10m",
    looks: Annotated[int, typer.Option(min=1, max=5)] = 1,
    margin: Annotated[float | None, typer.Option(min=0.0001, max=0.9999)] = None,
    out: Annotated[str | None, typer.Option(show_default="out/audit-MODEL-PROBE")] = None,
    write: Annotated[
        Path | None,
        typer.Option(
            metavar="STUDY.yaml",
            help="Only write a study file for the model, with comments, to be edited and run.",
        ),
    ] = None,
    address: RunAddress = None,
    no_convert: NoConvert = False,
    debug: Debug = False,
) -> Output:
    """Ask whether a model treats groups differently: the most telling study that fits a budget.

    Says what is chosen and how small a gap it can show before it starts. The study stands in
    OUT/study.yaml, and the same command goes on where it was cut off.
    """
    from raybias.runtime.progress import Reporter

    if write is not None:
        return _write_study(model, probe, write)
    results = audits.audit(
        model, probe=probe, task=task, method=method, labels=classes_of_labels(labels),
        threshold=threshold or (), truncate=truncate, data=data, budget=budget, looks=looks,
        margin=margin, out=out, address=address, convert=not no_convert, command=command_line(),
        tell=Reporter().say,
    )  # fmt: skip
    return shown(results)


def _write_study(model: str, probe: str, file: Path) -> Output:
    from raybias.planning.audit import short_name, suited_methods
    from raybias.providers.predict import is_function_place

    if file.exists():
        raise OutputError("is there already", where=str(file), cure="give another --write")
    choose([probe], probes["amazon"].kinds, where="--probe")
    if is_function_place(model):
        raise ConfigError(
            "--write is of models, and this is a function",
            where=model,
            cure="leave --write out; the audit keeps its study in OUT/study.yaml",
        )
    suited = suited_methods(Backbone(id=model))
    quoted = to_yaml({"model": model}, width=10_000).removeprefix("model: ").rstrip("\n")
    template = resources.files("raybias").joinpath("assets/new_study.yaml").read_text("utf-8")
    text = Template(template).substitute(
        file=file, name=short_name(model), model=quoted, attribute=probe
    )
    # A line `- {kind: ...}` for each method.
    kinds = ((line, re.match(r" *- \{kind: (\w+)", line)) for line in text.splitlines())
    lines = [line for line, kind in kinds if kind is None or kind[1] in suited]
    if suited == ("classify",):
        # It has no training set, which a study reads if it names one.
        first = next(at for at, line in enumerate(lines) if line.startswith("training:"))
        del lines[first : lines.index("", first) + 1]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    said = f"{file}: `raybias plan {file}` says what it would take"
    return Output([said], [{"file": str(file)}])


@command(studies.run)
def run(
    study: StudyFile,
    *,
    out: Annotated[str | None, typer.Option(show_default="out/NAME")] = None,
    overrides: Overrides = None,
    limit: Limit = None,
    profile: ProfileOption = None,
    address: RunAddress = None,
    skip_unfit: SkipUnfit = False,
    no_convert: NoConvert = False,
    debug: Debug = False,
) -> Output:
    """Run a study, or what its OUT still lacks.

    Prints the gaps with their intervals. Running the same command again goes on
    where it was cut off.
    """
    values = study_overrides(overrides, no_convert=no_convert)
    chosen = load_study(study, overrides=values, profile=profile, limit=limit)
    place = out or f"out/{chosen.name}"
    results = studies.run(
        chosen, out=place, address=address, command=command_line(), skip_unfit=skip_unfit
    )
    return shown(results)


def run_beside(script: str) -> None:
    """Run SCRIPT's .yaml twin with the options of `raybias run` that the job was given.

    `script`: the `__file__` of the job. Without `--out`, results go to ~/raybias-out/<its name>,
    since a job's working folder is deleted after it.
    """
    from raybias.cli import main

    study = Path(script).resolve().with_suffix(".yaml")
    options = sys.argv[1:]
    given = any(option.partition("=")[0] == "--out" for option in options)
    place = [] if given else ["--out", str(Path.home() / "raybias-out" / study.stem)]
    main(["run", str(study), *place, *options])


@command(studies.plan)
def plan(
    study: Annotated[
        str | None, typer.Argument(metavar="STUDY.yaml", help="The study file.")
    ] = None,
    out: str | None = None,
    *,
    overrides: Overrides = None,
    limit: Limit = None,
    profile: ProfileOption = None,
    address: str | None = None,
    assume: Annotated[
        list[str] | None,
        typer.Option(metavar="nodes=4,cpus=32,memory=256GiB,gpus=8,gpu_memory=80GiB,gpu=A100"),
    ] = None,
    peak_tflops: Annotated[
        float | None, typer.Option(min=0.001, show_default="the GPU's published peak")
    ] = None,
    utilisation: Annotated[
        float | None,
        typer.Option(min=0.01, max=1.0, show_default="as the kind of device does"),
    ] = None,
    scale: Annotated[str | None, typer.Option(metavar="1,4,8")] = None,
    skip_unfit: SkipUnfit = False,
    no_convert: NoConvert = False,
    schema: Annotated[
        bool,
        typer.Option(
            "--schema",
            help="Print the JSON Schema of the study file instead, by which editors complete it.",
        ),
    ] = False,
) -> Output:
    """Show workers, packs, memory, costs and bounds of the wall time, without model or Ray.

    Exits with 2 and one line for what `raybias run` would refuse before any work.
    """
    if schema:
        return Output([json.dumps(study_schema(), indent=2)], [study_schema()])
    if study is None:
        raise typer.BadParameter("no study is given", param_hint="STUDY.yaml")
    values = study_overrides(overrides, no_convert=no_convert)
    loaded = load_study(study, overrides=values, profile=profile, limit=limit)
    parts = scale.split(",") if scale else []
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise ConfigError(f"{scale!r} are no whole numbers", where="--scale", cure="write 1,4,8")
    planned = studies.plan(
        loaded, out=out, address=address, assume=assume or (), peak_tflops=peak_tflops,
        utilisation=utilisation, scale=[*map(int, parts)], skip_unfit=skip_unfit,
    )  # fmt: skip
    return Output([planned], planned.rows)
