"""Tables for people about pairs: scores, effects of styles and verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from raybias.report import wording
from raybias.report.pair_wording import interval, reading
from raybias.report.summary_tables import Cell, Row, SummaryTable, same, table
from raybias.stats.pairs import (
    AVERAGES,
    DIRECTIONS,
    ORIGINAL,
    PAIR_SCOPES,
    REDRAWN,
    UNWEIGHTED,
    WEIGHTED,
)

_METRIC: Final = ("model", "score", "probe")
_PROBABILITIES: Final = ("p_value", "q_value")
#: Numbers in other units than points.
_SMALL: Final = ("t_value", "spearman", "flip_share")
_ROW: Final = [*_METRIC, "style", "bias_type"]


def scores(tables: Mapping[str, pl.DataFrame]) -> list[SummaryTable]:
    """Show the scores over all pairs, and those of the originals by bias type.

    Parameters
    ----------
    tables: of `pair_tables`, with `bias_scores`.
    """
    shown = []
    average = pl.col("bias_type").is_in(AVERAGES)
    for preferred, show in ((True, _preferences), (False, _differences)):
        part = tables["bias_scores"].filter((pl.col("neutral") > 0) == preferred)
        if part.height:
            shown.append(show(part.filter(average), tables, "over all pairs"))
            originals = part.filter(~average, style=ORIGINAL)
            shown.append(show(originals, tables, "by bias type, original style"))
    return shown


def pairs_read(bias_scores: pl.DataFrame) -> SummaryTable:
    """Count the pairs of each bias type that were read, and their styles."""
    types = bias_scores.filter(~pl.col("bias_type").is_in(AVERAGES))
    counts = types.group_by("probe", "bias_type", maintain_order=True).agg(
        pl.col("n").max(), styles=pl.col("style").n_unique()
    )
    return table(
        "Pairs that were read",
        counts,
        {"probe": "probe", "bias type": "bias_type", "pairs": _pairs, "styles": "styles"},
    )


def effects(style_effects: pl.DataFrame) -> SummaryTable:
    """Show the effect of each style over all pairs, with its tests."""
    whole = style_effects.filter(bias_type=WEIGHTED)
    return table(
        "Average paired effects of styles, over all pairs, in points",
        whole,
        {
            **same(*wording.metric_keys(whole)),
            "style": lambda row: wording.spaced(row["style"]),
            "pairs": _pairs,
            **_clusters(whole),
            "original": lambda row: f"{row['original']:.1f}",
            "under it": lambda row: f"{row['value']:.1f}",
            "effect and interval": lambda row: (
                f"{wording.signed(row['effect'], 1)} {wording.span(row['low'], row['high'], 1)}"
            ),
            "flips": lambda row: wording.percent(row["flip_share"]),
            "pairs needed": _needed,
            "q": lambda row: wording.probability(row["q_value"]),
            "reading": lambda row: "moves it" if row["survives"] else "not shown",
            "z (paper)": lambda row: wording.YES_NO[row["paper"]],
        },
    )


def verdicts(stability: pl.DataFrame) -> SummaryTable:
    """Show whether each metric's conclusion holds under every style."""
    types: dict[str, Cell] = {}
    if stability["bias_type"].n_unique() > 1:
        types["bias type"] = lambda row: wording.bias_type(row["bias_type"])
    return table(
        "Does the conclusion hold under every style?" + ("" if types else " Over all pairs"),
        stability,
        {
            **same(*wording.metric_keys(stability)),
            **types,
            "original": lambda row: f"{row['original']:.1f}",
            "over styles": lambda row: f"{row['lowest']:.1f} to {row['highest']:.1f}",
            "styles that move it": lambda row: f"{row['moved']} of {row['n_styles']}",
            "largest effect": lambda row: (
                f"{wording.signed(row['largest_effect'], 1)} "
                f"({wording.spaced(row['largest_style'])})"
            ),
            "flips": lambda row: wording.percent(row["flip_share"]),
            "verdict": "verdict",
        },
    )


def scopes(style_scopes: pl.DataFrame) -> SummaryTable:
    """Show each mean over styles with the interval of either scope, over all pairs."""
    whole = style_scopes.filter(bias_type=WEIGHTED)
    both = {scope: whole.filter(scope=scope) for scope in PAIR_SCOPES}
    on = [*_METRIC, "bias_type"]
    joined = both["pairs"].join(both["styles"], on=on, suffix="_other", maintain_order="left")

    def styles(row: Row) -> Row:
        ends = ("low", "high", "significant", "survives")
        return {**row, **{end: row[f"{end}_other"] for end in ends}}

    return table(
        "Mean over styles, over all pairs. "
        + " ".join(f"Scope {scope}: {redrawn}." for scope, redrawn in REDRAWN.items()),
        joined,
        {
            **same(*wording.metric_keys(joined)),
            "styles": "n_styles",
            "mean": lambda row: f"{row['value']:.1f}",
            "pairs": interval,
            "with other pairs": reading,
            "styles ": lambda row: interval(styles(row)),
            "in other styles": lambda row: reading(styles(row)),
            "shows from, uncorrected": lambda row: wording.number(row["detectable_other"], 1),
        },
    )  # fmt: skip


def variance(components: pl.DataFrame) -> SummaryTable:
    """Show how far single answers lie apart, by pair and by style, over all bias types."""
    whole = components.filter(bias_type="all")

    def spread(column: str) -> Cell:
        return lambda row: (
            f"{row[column]:.1f}" if row["quantity"] == "preference" else f"{row[column]:.3g}"
        )

    return table(
        "How far single answers lie apart (standard deviations; of preference in points)",
        whole,
        {
            **same(*wording.metric_keys(whole), "quantity"),
            "pairs": lambda row: f"{row['n_pairs']:,}",
            "styles": "n_styles",
            "between pairs": spread("sd_pair"),
            "between styles": spread("sd_style"),
            "a pair's own way with a style": spread("sd_pair_x_style"),
        },
    )


def details(tables: Mapping[str, pl.DataFrame]) -> list[SummaryTable]:
    """Show every table of pairs whole, to look things up.

    Parameters
    ----------
    tables: of `pair_tables`.
    """
    columns = {
        "bias_scores": (
            *_METRIC, "bias_type", "style", "n", "ties", "value", "low", "high", "p_value",
            "q_value", "significant", "survives", "resolvable", "clusters",
        ),
        "stability": (
            *_METRIC, "bias_type", "original", "lowest", "highest", "moved", "smallest_effect",
            "pairs_needed", "verdict",
        ),
        "style_effects": (
            *_METRIC, "bias_type", "style", "n", "original", "value", "effect", "low", "high",
            "flip_share", "q_value", "survives", "pairs_needed", "resolvable", "clusters",
        ),
        "style_scopes": (
            *_METRIC, "bias_type", "scope", "n", "n_styles", "value", "low", "high", "q_value",
            "significant", "survives", "detectable", "clusters",
        ),
    }  # fmt: skip
    titles = {
        "bias_scores": "Every score, with its interval and test",
        "stability": "Verdict by bias type",
        "style_effects": "Effect of each style by bias type",
        "style_scopes": "Mean over styles by bias type, with other pairs and in other styles",
        "table2_summary": "Scores of the originals and extreme changes (Table 2)",
        "tables8_9_scores": "Preference scores (Tables 8 and 9)",
        "tables6_7_t_values": "t tests of lists of sentence scores (Tables 6 and 7)",
        "table3_winobias": "WinoBias, mean over prompts (Table 3)",
        "tables10_17_winobias": "WinoBias by prompt (Tables 10 to 17)",
        "size": "Trends with model size: points for each tenfold of parameters",
    }
    shown = {name: tables[name] for name in titles if name in tables}
    if "stability" in shown:
        shown["stability"] = shown["stability"].filter(~pl.col("bias_type").is_in(AVERAGES))
    summaries = (
        _detail(titles[name], frame.select(columns.get(name, frame.columns)))
        for name, frame in shown.items()
    )
    return [one for one in summaries if one.rows]


def _preferences(part: pl.DataFrame, tables: Mapping[str, pl.DataFrame], what: str) -> SummaryTable:
    # The stereotype stands in sent_more of stereo pairs and in sent_less of the others.
    sides = tables["tables8_9_scores"].filter(pl.col("part") != "all")
    title = f"Preference for the more stereotypical sentence, {what}"
    middle: dict[str, Cell] = {
        "ties": lambda row: f"{row['ties']:,}",
        "preference %": lambda row: f"{row['value']:.1f}",
        "interval": interval,
        **{side: _estimated(f"{{}}_{side}") for side in DIRECTIONS},
    }
    wide = sides.pivot("part", index=_ROW, values=["value", "low", "high"])
    return _tested(title, part, wide, middle)


def _differences(part: pl.DataFrame, tables: Mapping[str, pl.DataFrame], what: str) -> SummaryTable:
    means = tables["table3_winobias"].rename({"rule": "score", "wino_type": "bias_type"})
    title = f"Pronouns resolved right, mean over prompts, {what}"
    middle: dict[str, Cell] = {
        "pro %": _estimated("pro_{}"),
        "anti %": _estimated("anti_{}"),
        "pro \N{MINUS SIGN} anti": lambda row: wording.signed(row["value"], 1),
        "interval": interval,
    }
    return _tested(
        title,
        part,
        means.rename({"pro": "pro_value", "anti": "anti_value"}).select(*_ROW, "^(pro|anti)_.*$"),
        middle,
    )


def _tested(
    title: str, part: pl.DataFrame, sides: pl.DataFrame, middle: Mapping[str, Cell]
) -> SummaryTable:
    """Show scores with their tests; the mean of types has none."""
    return table(
        title,
        part.join(sides, on=_ROW, how="left", maintain_order="left"),
        {
            **same(*wording.metric_keys(part)),
            "bias type": lambda row: wording.bias_type(row["bias_type"]),
            "style": lambda row: wording.spaced(row["style"]),
            "pairs": _pairs,
            **_clusters(part),
            **middle,
            "q": lambda row: wording.probability(row["q_value"]),
            "reading": lambda row: "no test" if row["bias_type"] == UNWEIGHTED else reading(row),
            "shows from, uncorrected": lambda row: (
                "" if row["bias_type"] == UNWEIGHTED else wording.number(row["resolvable"], 1)
            ),
        },
    )


def _clusters(frame: pl.DataFrame) -> dict[str, Cell]:
    """Show how many clusters are drawn, where any are."""
    known = frame["clusters"].null_count() < frame.height
    return {"clusters": lambda row: str(row["clusters"] or "")} if known else {}


def _estimated(name: str) -> Cell:
    """Show a number with its interval: the columns that `name` makes of value, low and high."""
    columns = [name.format(part) for part in ("value", "low", "high")]

    def text(row: Row) -> str:
        value, low, high = (row.get(column) for column in columns)
        ends = "" if low is None or high is None else f" [{low:.1f}, {high:.1f}]"
        return wording.number(value, 1) + ends

    return text


def _detail(title: str, frame: pl.DataFrame) -> SummaryTable:
    """Show a frame whole, without metric keys that are the same throughout."""
    kept = [c for c in frame.columns if c not in _METRIC or frame[c].n_unique() > 1]

    def cell(column: str) -> Cell:
        return lambda row: _text(column, row[column])

    return table(title, frame, {column.replace("_", " "): cell(column) for column in kept})


def _text(column: str, value: Any) -> str:
    if value is None or value == float("inf"):
        return ""
    if isinstance(value, bool):
        return wording.YES_NO[value]
    if column in _PROBABILITIES:
        return wording.probability(value)
    if column in _SMALL:
        return f"{value:.2f}"
    if isinstance(value, int) or column == "pairs_needed":
        return f"{value:,.0f}"
    return f"{value:.1f}" if isinstance(value, float) else str(value)


def _pairs(row: Row) -> str:
    return f"{row['n']:,}"


def _needed(row: Row) -> str:
    pairs = row["pairs_needed"]
    return "" if pairs is None or pairs == float("inf") else f"{pairs:,.0f}"
