"""`raybias pairs`: score files to preference, style effects and verdicts, without a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from raybias.config import Profile, Statistics

if TYPE_CHECKING:
    import polars as pl

    from raybias.report.pair_tables import PairRules
    from raybias.stats.pairs import ScoreFiles

_UNITS: Final = {"K": 1e3, "M": 1e6, "B": 1e9}


def pairs(
    files: Annotated[
        list[str],
        typer.Argument(
            help="Parquet or CSV files (or folders of them) of pair scores, coreference "
            "answers, or Zhao2025's printed tables; their columns tell which."
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
    """Preference for stereotypes, and what a change of style does to it.

    A style is an intervention on a pair whose content is held fixed: its effect is the mean
    paired difference from the style `original`.
    """
    from raybias.errors import OutputError
    from raybias.papers.zhao2025 import PRINTED
    from raybias.report import write_pair_page
    from raybias.report.pair_tables import PairRules, pair_tables
    from raybias.stats.pairs import read_score_files
    from raybias.storage import Store

    sizes = _sizes(size or [])
    scores = read_score_files(files, PRINTED)
    _check_models(sizes, scores)
    judged = Statistics.under(profile)
    rules = PairRules.of(profile, judged, scale=scale, margin=margin, sizes=sizes)
    store = None if out is None else Store(out)
    if store is not None and store.exists("study.yaml"):
        raise OutputError("holds a study, whose report.html this would replace", where=store.uri,
                          cure="give another --out, or use `raybias report`")  # fmt: skip
    tables = pair_tables(scores, rules)
    if store is not None:
        write_pair_page(store, tables, rules)
    show_tables(tables, rules)
    if store is not None:
        made = [*tables, *(name for name in ("figures", "report.html") if store.exists(name))]
        print(f"\n{', '.join(made)} are in {store.uri}")


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


def _check_models(sizes: Mapping[str, float], scores: ScoreFiles) -> None:
    from raybias.errors import ConfigError

    frames = (scores.pair_scores, scores.answers, *scores.printed.values())
    models = {model for frame in frames if frame is not None for model in frame["model"]}
    for model in sizes:
        if model not in models:
            raise ConfigError(f"--size names {model!r}, which is in no file",
                              cure=f"models are {', '.join(sorted(models))}")  # fmt: skip


def show_tables(tables: Mapping[str, pl.DataFrame], rules: PairRules) -> None:
    """Print what a reader of the tables looks for first.

    Parameters
    ----------
    tables: of `pair_tables`, by these rules.
    """
    from raybias.report.pair_page import terminal_text

    print(*terminal_text(tables, rules), sep="\n\n")
