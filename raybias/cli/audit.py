"""`raybias audit` and `init`: the most telling study of a model, run or written as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from raybias.cli.options import Debug, RunAddress, command_line
from raybias.cli.show import show


def audit(
    model: Annotated[str, typer.Argument(help="Hugging Face id or local folder of a model.")],
    *,
    probe: Annotated[
        str,
        typer.Option(
            help="Attribute of the Amazon templates: race, age, gender, religion, nationality, "
            "disability or sexuality."
        ),
    ] = "race",
    method: Annotated[
        str | None,
        typer.Option(
            help="Kind of method, such as zero_shot or lora.",
            show_default="by a pilot and the budget",
        ),
    ] = None,
    data: Annotated[
        Path,
        typer.Option(help="Folder of the public data sets; what it lacks is fetched there."),
    ] = Path("data"),
    budget: Annotated[
        str, typer.Option(help="Time that the study may take here: 90s, 10m or 2h.")
    ] = "10m",
    out: Annotated[
        str | None,
        typer.Option(help="Folder or URI of the results.", show_default="out/audit-MODEL-PROBE"),
    ] = None,
    address: RunAddress = None,
    debug: Debug = False,
) -> None:
    """Ask whether a model treats groups differently: the most telling study that fits a budget.

    Says what is chosen and how small a gap it can show before it starts. The study stands in
    OUT/study.yaml, and the same command goes on where it was cut off.
    """
    from raybias.api import studies

    results = studies.audit(
        model,
        probe=probe,
        method=method,
        data=data,
        budget=budget,
        out=out,
        address=address,
        command=command_line(),
    )
    show(results)


#: The comment behind a line says what a reader would look up first.
_TEXT: Final = """\
# yaml-language-server: $schema=study.schema.json
# `raybias plan {file}` says what would run where, `raybias run {file}` runs it; every key stands in
# docs/reference/study.md, and an editor completes them by `raybias schema --out study.schema.json`.
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
#: What a study says of each kind of method that suits a model, in this order.
_METHODS: Final = {
    "zero_shot": "{kind: zero_shot}  # asked, not tuned; few_shot and cot likewise",
    "lora": "{kind: lora, learning_rates: [5.0e-4]}   # tuned; soft_prompt and full likewise",
    "full": "{kind: full, learning_rates: [5.0e-5], batch_size: 32}   # all weights; lora likewise",
}


def init(
    model: Annotated[str, typer.Argument(help="Hugging Face id or local folder of a model.")],
    *,
    probe: Annotated[str, typer.Option(help="Attribute of the Amazon templates.")] = "race",
    out: Annotated[Path, typer.Option(help="The study file to write.")] = Path("study.yaml"),
) -> None:
    """Write a study file for a model, with comments, to be edited and run."""
    from raybias.config import to_yaml
    from raybias.errors import OutputError
    from raybias.planning.audit import short_name, suited_methods
    from raybias.probes.column_checks import choose
    from raybias.probes.registries import probes

    if out.exists():
        raise OutputError("is there already", where=str(out), cure="give another --out")
    choose([probe], probes["amazon"].attributes, where="--probe")
    suited = suited_methods(model)
    methods = "\n".join(f"  - {_METHODS[kind]}" for kind in _METHODS if kind in suited)
    quoted = to_yaml({"model": model}, width=10_000).removeprefix("model: ").rstrip("\n")
    text = _TEXT.format(
        file=out, name=short_name(model), model=quoted, methods=methods, attribute=probe
    )
    out.write_text(text, encoding="utf-8")
    print(f"{out}: `raybias plan {out}` says what it would take")
