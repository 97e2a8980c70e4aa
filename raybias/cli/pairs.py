"""`raybias pairs`: compute preferences, style effects and verdicts from score files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from raybias.config import Profile

if TYPE_CHECKING:
    import polars as pl

    from raybias.report.pair_tables import PairRules

_UNITS: Final = {"K": 1e3, "M": 1e6, "B": 1e9}


def pairs(
    files: Annotated[
        list[str],
        typer.Argument(
            help="Parquet or CSV files (or folders of them) of pair scores, coreference "
            "answers, or Zhao2025's printed tables; their columns tell which. Also lm-eval's "
            "samples_crows_pairs*.jsonl, in a folder named after the model."
        ),
    ],
    *,
    profile: Annotated[
        Profile,
        typer.Option(
            help="paper: two-proportion z, independent t, no correction; strict: McNemar, paired "
            "t, Benjamini-Hochberg over the table."
        ),
    ] = "strict",
    scale: Annotated[
        Literal["score", "log"],
        typer.Option(help="Of the t tests: scores, or logarithms of those that are probabilities."),
    ] = "score",
    margin: Annotated[
        float, typer.Option(min=0, help="Points below which an effect is of no concern.")
    ] = 5.0,
    size: Annotated[
        list[str] | None,
        typer.Option(
            help="Parameters of a model whose name does not tell them, as GPT-2=124M; may be "
            "repeated."
        ),
    ] = None,
    out: Annotated[
        str | None,
        typer.Option(
            help="Folder or URI for tables (CSV, Parquet, Markdown), figures (SVG) and report.html."
        ),
    ] = None,
) -> None:
    """Compute preferences for stereotypes, and what a change of style does to them.

    A style is an intervention on a pair whose content is held fixed: its effect is the mean
    paired difference from the style `original`.
    """
    from raybias.report import pairs_of_files
    from raybias.storage import Store

    found = pairs_of_files(
        files, profile=profile, scale=scale, margin=margin, sizes=_sizes(size or []), out=out
    )
    show_tables(found.tables, found.rules)
    if out is not None:
        store = Store(out)
        pages = [name for name in ("figures", "report.html") if store.exists(name)]
        print(f"\n{', '.join([*found.tables, *pages])} are in {store.uri}")


def _sizes(texts: Sequence[str]) -> dict[str, float]:
    from raybias.errors import ConfigError

    sizes = {}
    for text in texts:
        model, _, number = text.rpartition("=")
        unit = _UNITS.get(number[-1:].upper(), 1.0)
        try:
            sizes[model] = float(number[:-1] if unit > 1 else number) * unit
        except ValueError:
            sizes[model] = 0.0
        if not (model and 0 < sizes[model] < float("inf")):
            raise ConfigError(f"--size {text!r} is not model=parameters", cure="as GPT-2=124M")
    return sizes


def show_tables(tables: Mapping[str, pl.DataFrame], rules: PairRules) -> None:
    """Print what a reader of the tables looks for first.

    Parameters
    ----------
    tables: of `pair_tables`, by these rules.
    """
    from raybias.report.pair_page import terminal_text

    print(*terminal_text(tables, rules), sep="\n\n")
