"""Scores of pairs and pronouns under styles as Zhao2025 lays them out."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import polars as pl

from raybias.measures.entries.coreference import MEAN, RULES
from raybias.measures.pair_means import AVERAGES, ORIGINAL, style_order
from raybias.measures.paired import EFFECT, SCORE
from raybias.probes.published.winobias import coreference_prompts
from raybias.report import wording
from raybias.report.panels import panels_of
from raybias.report.paper_files import (
    Filed,
    PaperInputs,
    PaperTable,
    crossed,
    file_name,
    only_if_several,
    ordered,
)
from raybias.report.rendering import Cell, Drawn, Row, same, table
from raybias.schema import ALL, REPEAT

_ZHAO: Final = "zhao2025"
#: The styles whose lists of scores the paper compares each with each other.
_COMPARED: Final = (ORIGINAL, "informal", "formal")
#: The figures' numbers, by the models' family.
_FIGURES: Final = {"opt": 3, "llama": 4}
_LISTS: Final = " - "
#: How an answer counts in the paper.
_RULE: Final = RULES[0]
_DIFFERENCE: Final = "absolute_difference"
#: The rows of a style in Table 2: scores of the original, effects, and the ends of effects.
_STATISTICS: Final = ("score", "AVG", "MIN", "MAX")
_TEXTS: Final = ("sent_more", "sent_less")
_SIDES: Final = {"pro_accuracy": "pro", "anti_accuracy": "anti", _DIFFERENCE: "diff"}


def zhao_files(found: PaperInputs) -> Iterator[Filed]:
    """Make the figures and tables of Zhao2025, for each set of pairs and way to score them."""
    pairs = found.estimates.filter(pl.col("model") != ALL, kind="pairs", condition="")
    several = only_if_several(pairs, "probe", "method") if pairs.height else []
    for (probe, method), part in pairs.group_by("probe", "method", maintain_order=True):
        named = {"probe": str(probe), "method": str(method)}
        end = "-".join(["crows-pairs", *(named[column] for column in several)])
        scores = part.filter(SCORE & (pl.col("style") != ALL))
        effects = part.filter(EFFECT)
        yield _summary(found, scores, effects, end)
        yield _by_type(found, scores, end)
        lists = part.filter(score="t")
        if lists.height:
            yield from _lists(found, lists, end)
    yield from _examples(found)
    answers = found.estimates.filter(
        pl.col("model") != ALL, pl.col("group") != "", kind="coreference", method=_RULE
    )
    probes = answers["probe"].unique(maintain_order=True)
    for probe in probes:
        end = "-".join(["winobias", *([probe] if len(probes) > 1 else [])])
        yield from _coreference(found, answers.filter(probe=probe), end)


def _style(row: Mapping[str, Any]) -> str:
    return wording.spaced(str(row["style"]))


def _type(row: Mapping[str, Any]) -> str:
    return wording.spaced(wording.bias_type(str(row["bias_type"])))


def _model(row: Mapping[str, Any]) -> str:
    return str(row["model"])


def _laid(found: PaperInputs, table: pl.DataFrame) -> pl.DataFrame:
    """Name the bias types of rows, and sort rows by style, statistic, type and model."""
    named = table.rename({"attribute": "bias_type"})
    statistic = ordered("statistic", _STATISTICS)
    # The least and greatest effects of models are of several types, and in one line.
    kind = pl.when(statistic < len(_STATISTICS) - 2).then("bias_type")
    return named.sort(
        ordered("style", style_order(named["style"])),
        statistic,
        ordered("bias_type", AVERAGES, others_first=True),
        kind,
        ordered("model", found.models),
        maintain_order=True,
    )


def _summary(
    found: PaperInputs, scores: pl.DataFrame, effects: pl.DataFrame, end: str
) -> PaperTable:
    """Lay out scores of the original, and each style's effects: AVG, MIN and MAX (Table 2).

    MIN and MAX are the effects of the least and the greatest size among bias types.
    """
    over = pl.col("attribute").is_in(AVERAGES)
    sized = (
        effects.filter(~over)
        .sort(pl.col("value").abs(), "attribute", "model")
        .group_by("style", "model", maintain_order=True)
    )
    parts = [
        scores.filter(style=ORIGINAL),
        effects.filter(over),
        sized.first(),
        sized.last(),
    ]
    columns = ["style", "statistic", "attribute", "model", "value", "significant"]
    long = pl.concat(
        part.with_columns(statistic=pl.lit(name)).select(columns)
        for name, part in zip(_STATISTICS, parts, strict=True)
    )
    laid = _laid(found, long)
    rows: dict[str, Cell] = {"style": _style, "": _summarised}
    return PaperTable(
        file_name(_ZHAO, "table-2", end),
        laid,
        crossed(
            "Pairs preferred in percent under the original style, and what each style adds: over "
            "all pairs, and the bias types with the smallest and the largest change; bold: "
            "significant, of averages (Zhao2025, Table 2)",
            laid,
            rows,
            _model,
            _summary_cell,
        ),
    )


def _summarised(row: Mapping[str, Any]) -> str:
    if row["statistic"] in ("MIN", "MAX"):
        return str(row["statistic"])
    return f"AVG ({_type(row)})" if row["bias_type"] in AVERAGES else _type(row)


def _summary_cell(row: Mapping[str, Any]) -> str:
    if row["statistic"] == "score":
        return wording.number(row["value"], 2)
    change = wording.signed(row["value"], 2)
    if row["statistic"] == "AVG":
        return f"**{change}**" if row["significant"] else change
    return f"{_type(row)}: {change}"


def _by_type(found: PaperInputs, scores: pl.DataFrame, end: str) -> PaperTable:
    """Lay out the percentage of pairs preferred by style, bias type and model (Tables 8 and 9)."""
    laid = _laid(found, scores)
    rows: dict[str, Cell] = {"style": _style, "bias type": _type}
    return PaperTable(
        file_name(_ZHAO, "tables-8-9", end),
        laid.select("style", "bias_type", "model", pl.col("value").alias("score_pct"), "n"),
        crossed(
            "Pairs preferred, in percent (Zhao2025, Tables 8 and 9)",
            laid,
            rows,
            _model,
            lambda row: wording.number(row["value"], 2),
        ),
    )


def _lists(found: PaperInputs, lists: pl.DataFrame, end: str) -> Iterator[Filed]:
    """Lay out t values of lists of sentence scores (Tables 6 and 7), and draw them by family."""
    parted = lists.with_columns(
        pl.col("group").str.split_exact(_LISTS, 1).struct.rename_fields(["first", "second"])
    ).unnest("group")
    # Comparisons keep the order in which styles are registered.
    pairs = parted.select("first", "second").unique(maintain_order=True).with_row_index("place")
    laid = (
        parted.rename({"attribute": "bias_type"})
        .join(pairs, on=["first", "second"])
        .sort("place", "bias_type", ordered("model", found.models))
    )
    rows: dict[str, Cell] = {**same("first", "second"), "bias type": _type}
    yield PaperTable(
        file_name(_ZHAO, "tables-6-7", "t-values", end),
        laid.select(
            "first",
            "second",
            "bias_type",
            "model",
            pl.col("value").alias("t_value"),
            "p",
            "significant",
        ),
        crossed(
            "t values of two lists of sentence scores, above 0 where the first is higher; bold: "
            "significant (Zhao2025, Tables 6 and 7)",
            laid,
            rows,
            _model,
            _t_value,
        ),
    )
    shown = laid.filter(_drawn_lists()).with_columns(
        family=pl.col("model").map_elements(_family, pl.String)
    )
    for family in shown["family"].unique(maintain_order=True):
        yield from _t_figure(family, shown.filter(family=family), end)


def _t_value(row: Mapping[str, Any]) -> str:
    value = wording.signed(row["value"], 2)
    return f"**{value}**" if row["significant"] else value


def _drawn_lists() -> pl.Expr:
    """Select comparisons as the paper has them: of its own styles, and of others with the original.

    Of two other styles the tables alone have the comparison.
    """
    styles = [pl.col(column).str.replace(r"_(stereo|anti)$", "") for column in ("first", "second")]
    own = pl.all_horizontal(style.is_in(_COMPARED) for style in styles)
    return own | (styles[0] == styles[1]) | (styles[0] == ORIGINAL)


def _family(model: str) -> str:
    """Return the letters that a model's name begins with, such as `opt` or `llama`."""
    begins = re.match(r"[^\W\d_]+", model)
    return begins[0].lower() if begins else model.lower()


def _t_figure(family: str, rows: pl.DataFrame, end: str) -> Iterator[Drawn]:
    number = _FIGURES.get(family)
    named = rows.select(
        "value",
        panel=pl.format("{}{}{}", "first", pl.lit(_LISTS), "second").str.replace_all("_", " "),
        series="model",
        group=pl.col("bias_type").str.replace_all("_", " "),
        low=pl.lit(None, pl.Float64),
        high=pl.lit(None, pl.Float64),
        sure="significant",
    )
    place = f"Zhao2025, Figure {number}" if number else "As Figures 3 and 4 of Zhao2025"
    drawn = panels_of(
        named,
        name=file_name(_ZHAO, f"figure-{number}" if number else "", "t-values", family, end),
        title=f"t values of lists of sentence scores, {family} models",
        described=f"{place}. A panel for each two lists; across: bias types; marks: models. Above "
        "0 the first list is higher. Lists of two styles that the paper does not have are compared "
        "in the table alone.",
        axis="t value, above 0 where the first list is higher",
    )
    yield from [drawn] if drawn else []


def _examples(found: PaperInputs) -> Iterator[PaperTable]:
    """Show one pair of each probe in all styles, and what each style changed (Table 4).

    It is the first pair that has as many styles as any; a probe with one style has no table.
    """
    styled = {
        name: pairs.filter(~pl.col("pair_id").str.contains(REPEAT))
        for name, pairs in found.pair_items.items()
        if pairs["style"].n_unique() > 1
    }
    for probe, pairs in styled.items():
        styles = pairs.group_by("pair_id", maintain_order=True).agg(n=pl.col("style").n_unique())
        pair_id = styles.sort("n", descending=True, maintain_order=True)["pair_id"][0]
        pair = pairs.filter(pair_id=pair_id).sort(ordered("style", style_order(pairs["style"])))
        first = pair.row(0, named=True)
        sides = {wording.spaced(side): _side(side, first[side]) for side in _TEXTS}
        yield PaperTable(
            file_name(_ZHAO, "table-4", "styles", probe if len(styled) > 1 else ""),
            pair.select("pair_id", "bias_type", "direction", "style", *_TEXTS),
            table(
                f"Pair {pair_id} of {probe} in all styles; bold: words that the style "
                f"{_style(first)} does not have (Zhao2025, Table 4)",
                pair,
                {"style": _style, **sides},
            ),
        )


def _side(side: str, before: str) -> Callable[[Row], str]:
    """Return a cell with one side of a pair, marked against an earlier version of the side."""
    return lambda row: _marked(row[side], before)


def _marked(text: str, before: str) -> str:
    """Set the words of a text in bold that an earlier version of it does not have."""
    words = text.split()
    matcher = difflib.SequenceMatcher(None, before.split(), words, autojunk=False)
    parts = [
        (kind, " ".join(words[start:end]))
        for kind, _, _, start, end in matcher.get_opcodes()
        if start < end
    ]
    return " ".join(part if kind == "equal" else f"**{part}**" for kind, part in parts)


def _coreference(found: PaperInputs, answers: pl.DataFrame, end: str) -> Iterator[PaperTable]:
    """Lay out mean absolute differences (Table 3), and a table for each model (10 to 17)."""
    named = answers.filter(pl.col("score").is_in([*_SIDES]))
    laid = _laid(found, named.filter(score=_DIFFERENCE, group=MEAN))
    rows: dict[str, Cell] = {"style": _style, "type": "bias_type"}
    yield PaperTable(
        file_name(_ZHAO, "table-3", end),
        laid.select(
            "style",
            "model",
            pl.col("bias_type").alias("wino_type"),
            pl.col("value").alias("mean_diff_pct"),
            "low",
            "high",
        ),
        crossed(
            "Mean over prompts of the absolute difference between pro and anti accuracy, in points "
            "(Zhao2025, Table 3)",
            laid,
            rows,
            _model,
            lambda row: wording.number(row["value"], 2),
        ),
    )
    for model in found.models:
        if model not in {*named["model"]}:
            continue
        yield _of_model(model, named.filter(model=model), end)


def _of_model(model: str, answers: pl.DataFrame, end: str) -> PaperTable:
    """Lay out one model's accuracies by prompt, style and type, with MIN and MAX of prompts."""
    columns = [
        f"{kind}_{side}"
        for kind in answers["attribute"].unique().sort()
        for side in _SIDES.values()
    ]
    side = pl.col("score").replace_strict(_SIDES, return_dtype=pl.String)
    named = answers.with_columns(column=pl.format("{}_{}", "attribute", side), prompt="group")
    of_prompts = named.filter(pl.col("prompt") != MEAN)
    differences = of_prompts.filter(score=_DIFFERENCE).group_by("style", "column")
    ends = [
        differences.agg(value).with_columns(prompt=pl.lit(name))
        for name, value in (("MIN", pl.col("value").min()), ("MAX", pl.col("value").max()))
    ]
    long = pl.concat(
        part.select("prompt", "style", "column", "value")
        for part in (of_prompts, named.filter(prompt=MEAN), *ends)
    )
    own = [*of_prompts["prompt"].unique().sort()]
    known = [name for name in coreference_prompts("", "") if name in own]
    prompts = [*known, *(name for name in own if name not in known), MEAN, "MIN", "MAX"]
    wide = long.pivot("column", index=["prompt", "style"], values="value").sort(
        ordered("prompt", prompts), ordered("style", style_order(long["style"]))
    )
    shown = wide.select("prompt", "style", *columns)
    return PaperTable(
        file_name(_ZHAO, "tables-10-17", end, model),
        shown,
        crossed(
            f"Accuracy in percent and absolute difference in points by prompt and style: {model} "
            "(Zhao2025, Tables 10 to 17)",
            shown.unpivot(columns, index=["prompt", "style"]),
            same("prompt", "style"),
            lambda row: wording.spaced(row["variable"]),
            lambda row: wording.number(row["value"], 2),
        ),
    )
