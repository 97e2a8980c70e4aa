"""`raybias run`: a study from its file to its report."""

from __future__ import annotations

import os
import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from raybias.config import Profile, load_study

if TYPE_CHECKING:
    import polars as pl

Out = Annotated[
    str | None, typer.Option(help="Folder or URI of the results.", show_default="out/NAME")
]
Address = Annotated[
    str | None,
    typer.Option(
        help="Ray cluster to use: an address, or `auto` for the one of this machine."
        " By default RAY_ADDRESS, or a Ray that is started for this run."
    ),
]
Debug = Annotated[
    bool, typer.Option("--debug", help="Show Ray's output and the traceback of a failure.")
]


def run(
    study: Annotated[str, typer.Argument(metavar="STUDY.yaml", help="The study file.")],
    *,
    out: Out = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a key, such as methods.0.keep=3."
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Only a fixed sample of at most N items of each attribute or bias type: whole"
            " templates, in equal parts over labels; at least one template of each label.",
        ),
    ] = None,
    profile: Annotated[
        Profile | None,
        typer.Option(help="As in the papers, or statistically strict.", show_default="the file's"),
    ] = None,
    address: Address = None,
    debug: Debug = False,
) -> None:
    """Run a study, or what its OUT still lacks.

    Prints the gaps with their intervals. Running the same command again goes on
    where it was cut off.
    """
    from raybias import api

    if debug:
        os.environ["RAYBIAS_DEBUG"] = "1"
    chosen = load_study(study, overrides=tuple(overrides or ()), profile=profile, limit=limit)
    place = out or f"out/{chosen.name}"
    results = api.run(chosen, out=place, address=address, command=command_line())
    show(results.gaps.collect(), place)


def show(gaps: pl.DataFrame, out: str, *, profile: Profile | None = None) -> None:
    """Print the gaps with their intervals, the scores of pairs, and where the page is.

    `profile` is the one that the statistics were restated by, if any.
    """
    from raybias.cli.pairs import show_tables
    from raybias.report import (
        load_record,
        print_gap_table,
        read_notes,
        read_pair_tables,
        restated,
    )
    from raybias.report.pair_tables import PairRules
    from raybias.storage import Store

    store = Store(out)
    study = load_record(store).study
    if profile is not None:
        study = restated(study, profile)
    if study.pairs:
        show_tables(read_pair_tables(store), PairRules.of(study.profile, study.statistics))
    if study.probes:
        for note in read_notes(store):
            print(f"raybias: warning: {note}", file=sys.stderr)
        print_gap_table(gaps)
    print(f"\nreport: {store.uri_of('report.html')}")


def command_line() -> str:
    """What the user typed, for the record."""
    return shlex.join(["raybias", *sys.argv[1:]])
