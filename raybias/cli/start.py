"""`raybias demo`, `audit`, `run` and `plan`: make a study, or say what it would take."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from raybias.api import studies
from raybias.cli.judge import show
from raybias.cli.options import (
    Debug,
    Limit,
    Overrides,
    ProfileOption,
    RunAddress,
    SkipUnfit,
    StudyFile,
    command_line,
    documented_by,
)
from raybias.config import load_study
from raybias.errors import ConfigError, WorkFailed

if TYPE_CHECKING:
    import polars as pl

    from raybias.probes.published.planted import Plant


@documented_by(studies.demo)
def demo(
    out: str = "out/demo",
    address: RunAddress = None,
    debug: Debug = False,
) -> None:
    """Find a bias that was planted in a tiny embedded model; needs no download.

    The groups are invented and the answer is known: this is a calibration of the
    instrument, not a finding. Exits with 1 if the planted group was not found with the
    right sign, or another was flagged.
    """
    from raybias.probes.published.planted import plant

    results = studies.demo(out, address=address, command=command_line())
    show(results)
    print(verdict(results.estimates.collect(), plant()))


def verdict(estimates: pl.DataFrame, planted: Plant) -> str:
    """Say how the calibration ended.

    Raises
    ------
    WorkFailed: the planted bias was not found, or another was.
    """
    from raybias.report import calibration

    judged = calibration(planted, estimates)
    if judged is None or not judged.detected:
        what = f"{planted.rate} of {planted.group} ({planted.attribute}) by {planted.size:+.3f}"
        wrong = f"the planted bias was not found: {what}"
    elif judged.flagged:
        wrong = f"groups without a planted bias were flagged: {', '.join(judged.flagged)}"
    else:
        return "\n".join(("", str(judged.comparison), "", *judged.said))
    raise WorkFailed(wrong, where="demo", cure="see its report.html")


@documented_by(studies.audit)
def audit(
    model: Annotated[str, typer.Argument()],
    *,
    probe: str = "race",
    method: Annotated[str | None, typer.Option(show_default="by a pilot and the budget")] = None,
    data: Path = Path("data"),
    budget: str = "10m",
    out: Annotated[str | None, typer.Option(show_default="out/audit-MODEL-PROBE")] = None,
    write: Annotated[
        Path | None,
        typer.Option(
            metavar="STUDY.yaml",
            help="Only write a study file for the model, with comments, to be edited and run.",
        ),
    ] = None,
    address: RunAddress = None,
    debug: Debug = False,
) -> None:
    """Ask whether a model treats groups differently: the most telling study that fits a budget.

    Says what is chosen and how small a gap it can show before it starts. The study stands in
    OUT/study.yaml, and the same command goes on where it was cut off.
    """

    if write is not None:
        _write_study(model, probe, write)
        return
    results = studies.audit(
        model, probe=probe, method=method, data=data, budget=budget, out=out, address=address,
        command=command_line(),
    )  # fmt: skip
    show(results)


#: The comment after a line explains what readers look up first.
_TEXT: Final = """\
# yaml-language-server: $schema=study.schema.json
# `raybias plan {file}` says what would run where, `raybias run {file}` runs it; every key stands in
# docs/reference/study.md; an editor completes them by `raybias plan --schema > study.schema.json`.
name: {name}
profile: strict        # statistically right; `paper` has the papers' own rules

backbones:
  - {{id: {model}}}      # hub ids or folders, safetensors only; several are compared

training:              # what is tuned on; prompted methods need none
  - {{source: sst5, data: data/sst5}}        # raybias data download sst5 --out data/sst5

methods:
{methods}

probes:                # raybias data download amazon --out data/amazon
  - {{source: amazon, data: data/amazon, attributes: [{attribute}]}}
# - {{source: file, name: mine, data: my_sentences.csv}}   # text, label, attribute, group

# limit: 240           # to try it out: so many sentences of each attribute
# statistics: {{margin: 0.02}}               # also show which gaps are smaller than this
"""
#: The YAML of each method that suits a model, in this order.
_METHODS: Final = {
    "zero_shot": "{kind: zero_shot}  # asked, not tuned; few_shot and cot likewise",
    "lora": "{kind: lora, learning_rates: [5.0e-4]}   # tuned; soft_prompt and full likewise",
    "full": "{kind: full, learning_rates: [5.0e-5], batch_size: 32}   # all weights; lora likewise",
}


def _write_study(model: str, probe: str, file: Path) -> None:
    """Write a commented study file for a model."""
    from raybias.config import to_yaml
    from raybias.errors import OutputError
    from raybias.planning.audit import short_name, suited_methods
    from raybias.probes.checks import choose
    from raybias.probes.registries import probes

    if file.exists():
        raise OutputError("is there already", where=str(file), cure="give another --write")
    choose([probe], probes["amazon"].kinds, where="--probe")
    suited = suited_methods(model)
    methods = "\n".join(f"  - {_METHODS[kind]}" for kind in _METHODS if kind in suited)
    quoted = to_yaml({"model": model}, width=10_000).removeprefix("model: ").rstrip("\n")
    text = _TEXT.format(
        file=file, name=short_name(model), model=quoted, methods=methods, attribute=probe
    )
    file.write_text(text, encoding="utf-8")
    print(f"{file}: `raybias plan {file}` says what it would take")


@documented_by(studies.run)
def run(
    study: StudyFile,
    *,
    out: Annotated[str | None, typer.Option(show_default="out/NAME")] = None,
    overrides: Overrides = None,
    limit: Limit = None,
    profile: ProfileOption = None,
    address: RunAddress = None,
    skip_unfit: SkipUnfit = False,
    debug: Debug = False,
) -> None:
    """Run a study, or what its OUT still lacks.

    Prints the gaps with their intervals. Running the same command again goes on
    where it was cut off.
    """

    chosen = load_study(study, overrides=tuple(overrides or ()), profile=profile, limit=limit)
    place = out or f"out/{chosen.name}"
    show(
        studies.run(
            chosen, out=place, address=address, command=command_line(), skip_unfit=skip_unfit
        )
    )


def run_beside(script: str) -> None:
    """Run SCRIPT's .yaml twin with the options of `raybias run` that the job was given.

    Parameters
    ----------
    script: the `__file__` of the job. Without `--out`, results go to ~/raybias-out/<its name>,
        since a job's working folder is deleted after it.
    """
    from raybias.cli import main

    study = Path(script).resolve().with_suffix(".yaml")
    options = sys.argv[1:]
    given = any(option.partition("=")[0] == "--out" for option in options)
    place = [] if given else ["--out", str(Path.home() / "raybias-out" / study.stem)]
    main(["run", str(study), *place, *options])


@documented_by(studies.plan)
def plan(
    study: Annotated[
        str | None, typer.Argument(metavar="STUDY.yaml", help="The study file.")
    ] = None,
    out: str | None = None,
    *,
    overrides: Overrides = None,
    limit: Limit = None,
    profile: ProfileOption = None,
    address: Annotated[
        str | None,
        typer.Option(help="Address of a Ray cluster; by default this machine is planned for."),
    ] = None,
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
    schema: Annotated[
        bool,
        typer.Option(
            "--schema",
            help="Print the JSON Schema of the study file instead, by which editors complete it.",
        ),
    ] = False,
) -> None:
    """Show workers, packs, memory, costs and bounds of the wall time, without model or Ray.

    Exits with 2 and one line for what `raybias run` would refuse before any work.
    """
    from raybias.config import study_schema

    if schema:
        print(json.dumps(study_schema(), indent=2))
        return
    if study is None:
        raise typer.BadParameter("no study is given", param_hint="STUDY.yaml")
    loaded = load_study(study, overrides=tuple(overrides or ()), profile=profile, limit=limit)
    parts = scale.split(",") if scale else []
    if not all(part.strip().isdecimal() and int(part) for part in parts):
        raise ConfigError(f"{scale!r} are no whole numbers", where="--scale", cure="write 1,4,8")
    planned = studies.plan(
        loaded, out=out, address=address, assume=assume or (), peak_tflops=peak_tflops,
        utilisation=utilisation, scale=[*map(int, parts)], skip_unfit=skip_unfit,
    )  # fmt: skip
    typer.echo(planned)
