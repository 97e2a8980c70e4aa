"""`raybias pairs`: compute preferences, style effects and verdicts from score files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from raybias.config import Profile

if TYPE_CHECKING:
    import polars as pl

    from raybias.report.pairs import PairRules

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
    if "bias_scores" in tables:
        _show_scores(tables, rules)
    if "tables6_7_t_values" in tables:
        _show_lists(tables["tables6_7_t_values"], rules)
    if "style_effects" in tables:
        _show_effects(tables["style_effects"], rules)
    if "stability" in tables:
        _show_verdicts(tables["stability"])
    if "variance" in tables:
        _show_variance(tables["variance"])
    if "published_checks" in tables:
        _show_checks(tables["published_checks"])
    for name in ("size", "published_size"):
        if name in tables:
            _show_sizes(tables[name])


def _table(rows: Sequence[Sequence[Any]], headers: Sequence[str], digits: str = ".2f") -> None:
    from tabulate import tabulate

    print(tabulate(rows, headers=headers, floatfmt=digits, missingval="-"), end="\n\n")


def _named(frame: pl.DataFrame) -> list[str]:
    """List the columns that name a metric: the model, and whatever else varies."""
    return ["model", *(n for n in ("score", "probe") if n in frame and frame[n].n_unique() > 1)]


def _interval(row: Mapping[str, Any]) -> str:
    from raybias.report.wording import span

    return span(row["low"], row["high"], 2) or "-"


def _whole(pairs: float | None) -> str:
    return "-" if pairs is None or pairs == float("inf") else f"{pairs:,.0f}"


def _show_scores(tables: Mapping[str, pl.DataFrame], rules: PairRules) -> None:
    from tabulate import tabulate

    from raybias.report import pair_scores

    for facts in pair_scores.tables(tables):
        print(facts.title)
        print(tabulate(facts.rows, headers=facts.headers, disable_numparse=True), end="\n\n")
    scores = tables["bias_scores"]
    print(pair_scores.headline(scores))
    for finding in pair_scores.findings(scores):
        print(f"  {finding}")
    corrected = "Benjamini-Hochberg over the table" if rules.adjust != "none" else "not corrected"
    print(f"{100 * rules.level:g}% intervals cover another sample of pairs like these; tests are "
          f"{corrected}\n")  # fmt: skip


def _show_lists(tests: pl.DataFrame, rules: PairRules) -> None:
    how = "paired" if rules.strict else "independent"
    print(f"{tests['marked'].sum()} of {tests['t_value'].count()} {how} t tests of two lists of "
          "scores have |t| > 1.96 (Tables 6, 7)\n")  # fmt: skip


def _show_effects(effects: pl.DataFrame, rules: PairRules) -> None:
    from raybias.report.pair_page import survivors

    keys = _named(effects)
    whole = effects.filter(bias_type="avg_weighted")
    marks = {True: "yes", False: "no", None: "-"}
    rows = [
        [*(row[key] for key in (*keys, "style", "n", "original", "value", "effect")),
         _interval(row), None if row["flip_share"] is None else 100 * row["flip_share"],
         _whole(row["pairs_needed"]),
         marks[row["paper"]], marks[row["survives"]]]
        for row in whole.iter_rows(named=True)
    ]  # fmt: skip
    print("effects of styles, over all pairs, in points")
    _table(rows, [*keys, "style", "pairs", "original", "styled", "effect", "interval", "flips %",
                  "pairs needed", "z (paper)", "survives"])  # fmt: skip
    print(f"{survivors(effects, rules.adjust)}\n")


def _show_verdicts(stability: pl.DataFrame) -> None:
    from raybias.stats.pairs import VERDICTS

    keys = [*_named(stability), "bias_type"]
    shown = stability.select(*keys, "original", "lowest", "highest", "moved", "n_styles", "verdict")
    print("does the conclusion hold under every style?")
    _table(
        shown.rows(), [*keys, "original", "lowest", "highest", "moved by", "of styles", "verdict"]
    )
    seen = set(stability["verdict"])
    for verdict, meaning in VERDICTS.items():
        if verdict in seen:
            print(f"{verdict}: {meaning}")
    print()


def _show_variance(variance: pl.DataFrame) -> None:
    keys = _named(variance)
    shown = variance.filter(bias_type="all").select(
        *keys, "quantity", "n_styles", "n_pairs", "style", "content", "interaction"
    )
    print("shares of variance")
    _table(shown.rows(), [*keys, "quantity", "styles", "pairs", "style", "content", "interaction"],
           ".4f")  # fmt: skip


def _show_checks(checks: pl.DataFrame) -> None:
    print("printed tables, judged by themselves")
    for row in checks.iter_rows(named=True):
        print(f"{row['table']}: {row['claim']}: {row['holds']} of {row['of']}")
        exceptions = row["exceptions"].split("; ") if row["exceptions"] else []
        for exception in exceptions[:4]:
            print(f"  not {exception}")
        if len(exceptions) > 4:
            print(f"  and {len(exceptions) - 4} more")
    print()


def _show_sizes(sizes: pl.DataFrame) -> None:
    import polars as pl

    passed = [sizes.filter(pl.col(name) <= 0.05).height for name in ("p_value", "q_value")]
    models = sizes.select(pl.col("n_models").max()).item()
    print(
        f"model size: {passed[0]} of {sizes.height} rank correlations over up to {models} models "
        f"have p <= 0.05, {passed[1]} after Benjamini-Hochberg"
    )
