"""Tables for people about pairs: scores, effects of styles and verdicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import polars as pl

from raybias.report import wording
from raybias.report.pair_wording import interval, reading
from raybias.report.summary_tables import Cell, Row, SummaryTable, plain, same, table
from raybias.stats.pairs import AVERAGES, ORIGINAL, UNWEIGHTED, WEIGHTED

_METRIC: Final = ("model", "score", "probe")
_ROW: Final = [*_METRIC, "style", "bias_type"]


def scores(tables: Mapping[str, pl.DataFrame]) -> list[SummaryTable]:
    """Show the scores over all pairs, and those of the originals by bias type.

    Parameters
    ----------
    tables: of `pair_tables`, with `bias_scores`.
    """
    shown = []
    average = pl.col("bias_type").is_in(AVERAGES)
    for test, show in (("sign", _preferences), ("t", _differences)):
        part = tables["bias_scores"].filter(test=test)
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


def variance(shares: pl.DataFrame) -> SummaryTable:
    """Show the shares of variance over all bias types."""
    return plain(
        "Shares of variance: style, content (which pair it is), and their interaction",
        shares.filter(bias_type="all").drop("bias_type", "total"),
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
            "q_value", "significant", "survives", "resolvable",
        ),
        "stability": (
            *_METRIC, "bias_type", "original", "lowest", "highest", "moved", "smallest_effect",
            "pairs_needed", "verdict",
        ),
        "style_effects": (
            *_METRIC, "bias_type", "style", "n", "original", "value", "effect", "low", "high",
            "flip_share", "q_value", "survives", "pairs_needed", "resolvable",
        ),
    }  # fmt: skip
    titles = {
        "bias_scores": "Every score, with its interval and test",
        "stability": "Verdict by bias type",
        "style_effects": "Effect of each style by bias type",
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
        plain(titles[name], frame.select(columns.get(name, frame.columns)))
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
        "stereo": lambda row: wording.number(row.get("stereo"), 1),
        "antistereo": lambda row: wording.number(row.get("antistereo"), 1),
    }
    return _tested(title, part, sides.pivot("part", index=_ROW, values="value"), middle)


def _differences(part: pl.DataFrame, tables: Mapping[str, pl.DataFrame], what: str) -> SummaryTable:
    means = tables["table3_winobias"].rename({"rule": "score", "wino_type": "bias_type"})
    title = f"Pronouns resolved right, mean over prompts, {what}"
    middle: dict[str, Cell] = {
        "pro %": lambda row: wording.number(row["pro"], 1),
        "anti %": lambda row: wording.number(row["anti"], 1),
        "pro \N{MINUS SIGN} anti": lambda row: wording.signed(row["value"], 1),
        "interval": interval,
    }
    return _tested(title, part, means.select(*_ROW, "pro", "anti"), middle)


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
            **middle,
            "q": lambda row: wording.probability(row["q_value"]),
            "reading": lambda row: "no test" if row["bias_type"] == UNWEIGHTED else reading(row),
            "shows from": lambda row: (
                "" if row["bias_type"] == UNWEIGHTED else wording.number(row["resolvable"], 1)
            ),
        },
    )


def _pairs(row: Row) -> str:
    return f"{row['n']:,}"


def _needed(row: Row) -> str:
    pairs = row["pairs_needed"]
    return "" if pairs is None or pairs == float("inf") else f"{pairs:,.0f}"
