"""`raybias compare` and `design`: is a candidate worse than its base, and what would be surer?"""

from __future__ import annotations

from typing import Annotated, Final

import typer

from raybias.cli.options import ScopeOption, printed_warnings
from raybias.config import Profile

#: Exit codes of --gate.
_CODES: Final = {"worse": 3, "cannot tell": 4, "unread": 5}
_CHOICE = "KEY=VALUE,..."


def compare(
    base: Annotated[
        str,
        typer.Argument(
            help="An OUT, or a file or folder of predictions as `raybias measure` takes, or of "
            "answers about pairs as `raybias measure` takes."
        ),
    ],
    candidate: Annotated[str, typer.Argument(help="Likewise; may be the same OUT.")],
    *,
    base_is: Annotated[
        str | None,
        typer.Option(
            "--base",
            metavar=_CHOICE,
            help="Which of BASE is meant, by model, method, dataset, probe or style, such as "
            "model=opt-125m,method=lora.",
        ),
    ] = None,
    candidate_is: Annotated[
        str | None,
        typer.Option("--candidate", metavar=_CHOICE, help="Which of CANDIDATE is meant."),
    ] = None,
    scope: ScopeOption = None,
    gate: Annotated[
        str | None,
        typer.Option(
            metavar="margin=0.02",
            help="Exit with 3 where a gap is worse, with 4 where that cannot be told and with 5 "
            "where more answers of the candidate cannot be read; a gap that changed by less than "
            "the margin is equivalent.",
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(help="Folder or URI for compare.csv, compare.md, compare.json, compare.html."),
    ] = None,
) -> None:
    """Compare a candidate with its base: is any gap or score worse, better, or equivalent?

    Of model, method and training set, what is one in each arm is what is compared; by the rest, by
    probe, style and sentence, and by seed where both have the same seeds, arms are matched.
    """
    from raybias import stats
    from raybias.api import statistics
    from raybias.storage import Store

    with printed_warnings(stats.StatisticsWarning):
        found = statistics.compare(
            base,
            candidate,
            base_is=_choice("--base", base_is),
            candidate_is=_choice("--candidate", candidate_is),
            scope=scope,
            margin=None if gate is None else _margin(gate),
            out=out,
        )
    print(found)
    if out is not None:
        print(f"\ncompare.csv, compare.md, compare.json and compare.html are in {Store(out).uri}")
    if gate is not None:
        raise typer.Exit(_CODES.get(found.verdict, 0))


def _choice(option: str, text: str | None) -> dict[str, str]:
    from raybias.errors import ConfigError

    chosen = {}
    for part in text.split(",") if text else ():
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals and value):
            raise ConfigError(f"{option} {text!r} is not {_CHOICE}", cure="such as model=opt-125m")
        chosen[key] = value
    return chosen


def _margin(text: str) -> float:
    from raybias.errors import ConfigError

    name, _, number = text.partition("=")
    try:
        if name.strip() == "margin":
            return float(number)
    except ValueError:
        pass
    raise ConfigError(f"--gate {text!r} is not margin=NUMBER", cure="such as margin=0.02")


def design(
    files: Annotated[
        list[str],
        typer.Argument(
            help="A study's output, or prediction files as for `raybias measure`. A study that was "
            "tuned is priced in device-hours, others in items read."
        ),
    ],
    *,
    target: Annotated[
        float | None,
        typer.Option(
            help="Half width of an interval that is wanted.",
            min=0.0001,
            max=1,
            show_default="the study's margin, else 0.02",
        ),
    ] = None,
    profile: Annotated[
        Profile | None,
        typer.Option(help="State the statistics by this profile.", show_default="the study's"),
    ] = None,
    scope: ScopeOption = None,
) -> None:
    """Predict what more seeds, templates or words would do, and which design is the cheapest.

    Reads files alone. The prediction rests on the variance components of the gaps at hand.
    """
    from raybias import report, stats

    with printed_warnings(stats.StatisticsWarning):
        found = report.design_of_files(files, target=target, profile=profile, scope=scope)
    typer.echo(report.design_text(*found))
