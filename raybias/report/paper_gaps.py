"""Gaps, spans and accuracies as Tian2023 and Kohankhaki2024 lay them out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import polars as pl

from raybias.report import wording
from raybias.report.accuracy import label_columns
from raybias.report.panels import panels_of
from raybias.report.paper_files import (
    Filed,
    PaperInputs,
    PaperTable,
    crossed,
    file_name,
    joined,
    only_if_several,
)
from raybias.report.rendering import Cell, Drawn, same
from raybias.schema import ALL
from raybias.stats.counts import without_extras
from raybias.stats.gaps import OUTSIDE

_TIAN: Final = "tian2023"
_KOHANKHAKI: Final = "kohankhaki2024"
#: The figures' numbers in Tian2023, by attribute and rate.
_TIAN_FIGURES: Final = {
    ("sexuality", "positive_fpr"): 2,
    ("sexuality", "negative_fpr"): 3,
    ("age", "positive_fpr"): 4,
    ("age", "negative_fpr"): 5,
    ("disability", "positive_fpr"): 6,
    ("disability", "negative_fpr"): 7,
}
#: Those in Kohankhaki2024: of fine-tuned models by the probe's source and attribute, and of
#: prompted ones.
_TUNED_FIGURES: Final = {("amazon", "race"): 1, ("ns_prompts", "race"): 2, ("regard", "race"): 3}
_PROMPTED_FIGURES: Final = {
    ("amazon", "race"): 4,
    ("amazon", "sexuality"): 5,
    ("amazon", "gender"): 6,
}
_NET: Final = "_net_significance"
_SPAN: Final = "highest less lowest"
_OUTSIDE: Final = "\N{NO-BREAK SPACE}*"
_OUTSIDE_KEY: Final = "*: not among the groups of the mean"


def tian_files(found: PaperInputs) -> Iterator[Filed]:
    """Make the figures and the table of Tian2023: gaps of soft prompts."""
    gaps = found.of_way(found.gaps, "soft_prompt")
    for (probe, attribute, score), part in _parts(gaps, "probe", "attribute", "score"):
        number = _TIAN_FIGURES.get((attribute, score))
        several = len({*gaps.filter(attribute=attribute)["probe"]}) > 1
        figure = _gap_figure(
            found,
            part,
            ["method", "dataset", "style"],
            ["model"],
            name=file_name(
                _TIAN,
                f"figure-{number}" if number else "",
                f"{score.removesuffix('_fpr')}-gap",
                attribute,
                probe if several else "",
            ),
            title=f"{_titled(score)}: {wording.spaced(attribute)}",
            place=f"Tian2023, Figure {number}" if number else "As the figures of Tian2023",
        )
        yield from figure
    yield from _net_table(found)


def kohankhaki_files(found: PaperInputs) -> Iterator[Filed]:
    """Make the figures and tables of Kohankhaki2024: gaps of tuned and of prompted models."""
    for way, numbers in (("tuned", _TUNED_FIGURES), ("prompted", _PROMPTED_FIGURES)):
        gaps = found.of_way(found.gaps, way)
        for (probe, attribute), part in _parts(gaps, "probe", "attribute"):
            number = numbers.get((found.sources.get(probe, probe), attribute))
            called = "prompted" if way == "prompted" else "fine-tuned"
            yield from _gap_figure(
                found,
                part,
                ["method", "dataset", "style", "score"]
                if way == "prompted"
                else ["dataset", "style", "score"],
                ["model"] if way == "prompted" else ["model", "method"],
                name=file_name(
                    _KOHANKHAKI, f"figure-{number}" if number else "", called, probe, attribute
                ),
                title=f"Gaps of {called} models: {wording.spaced(attribute)}",
                place=f"Kohankhaki2024, Figure {number}"
                if number
                else "As the figures of Kohankhaki2024",
                most_columns=part["score"].n_unique(),
            )
    yield from _accuracy_tables(found)
    yield from _span_table(found)
    if found.composition is not None and found.ways:
        yield _composition_table(found.composition)


def _parts(table: pl.DataFrame, *columns: str) -> Iterator[tuple[tuple[str, ...], pl.DataFrame]]:
    for names, part in table.group_by(columns, maintain_order=True):
        yield tuple(map(str, names)), part


def _titled(score: str) -> str:
    words = wording.spaced(score).replace("fpr", "FPR").replace("tpr", "TPR")
    return f"{words[:1].upper()}{words[1:]} gaps"


def _gap_figure(
    found: PaperInputs,
    gaps: pl.DataFrame,
    panel: Sequence[str],
    series: Sequence[str],
    *,
    name: str,
    title: str,
    place: str,
    most_columns: int = 1,
) -> Iterator[Drawn]:
    """Draw gaps: groups across, a mark for each of `series`, panels by what differs of `panel`.

    The title ends with what all of them share: probe, method and training set.
    """
    shares = all(wording.metric(rate).share is not None for rate in gaps["score"].unique())
    scale = 100.0 if shares else 1.0
    panels = only_if_several(gaps, *panel) or [c for c in panel if c in ("dataset", "score")]
    named = gaps.with_columns(pl.col("score").map_elements(_titled, pl.String))
    alike = [c for c in ("method", "dataset") if c not in panels and named[c].n_unique() == 1]
    shared = named.select(joined(["probe", *alike]).str.replace_all("_", " ")).item(0, 0)
    outside = pl.when(pl.col("condition") == OUTSIDE).then(pl.lit(_OUTSIDE)).otherwise(pl.lit(""))
    rows = named.select(
        panel=joined(panels).str.replace_all("_", " "),
        series=joined(["model", *only_if_several(gaps, *series[1:])]),
        group=pl.col("group").str.replace_all("_", " ") + outside,
        sure=pl.coalesce("survives", "significant"),
        **{end: scale * pl.col(end) for end in ("value", "low", "high")},
    )
    keys = [found.intervals]
    keys += [_OUTSIDE_KEY] if (gaps["condition"] == OUTSIDE).any() else []
    drawn = panels_of(
        rows,
        name=name,
        title=f"{title} ({shared})",
        keys=keys,
        most_columns=most_columns,
        axis="a group's rate less the mean of the groups"
        f"{', in percentage points' if shares else ''}",
        described=f"{place}. Across: groups. Marks: models, by size if sizes are known. "
        f"{found.intervals}.",
    )
    yield from [drawn] if drawn else []


def _net_table(found: PaperInputs) -> Iterator[PaperTable]:
    """Lay out by rate and training set how many more models have a positive gap (Table 1).

    If an outcome is declared to be favourable, each count is named a harm or a benefit.
    """
    net = found.of_way(found.estimates, "soft_prompt")
    net = net.filter(pl.col("score").str.ends_with(_NET)).sort(
        pl.col("score").str.starts_with("positive"),
        "dataset",
        descending=[True, False],
        maintain_order=True,
    )
    if net.is_empty():
        return
    keys = [*only_if_several(net, "method", "probe", "style"), "attribute", "group"]
    rate = pl.col("score").str.strip_suffix(_NET)
    effects = [
        (wording.effect(score.removesuffix(_NET), value) or None) if value else None
        for score, value in net.select("score", "value").iter_rows()
    ]
    long = net.with_columns(
        column=rate + "_" + pl.col("dataset"),
        value=pl.col("value").cast(int),
        effect=pl.Series(effects, dtype=pl.String),
    )
    wide = long.pivot("column", index=keys, values="value").sort(keys)
    key = f". {wording.declared()}" if any(effects) else ""
    if any(effects):
        named = long.with_columns(pl.col("column") + "_effect")
        wide = wide.join(
            named.pivot("column", index=keys, values="effect"),
            on=keys,
            nulls_equal=True,
            maintain_order="left",
        )
    yield PaperTable(
        file_name(_TIAN, "table-1", "net-significance"),
        wide,
        crossed(
            "Models with a significant gap above 0 less those with one below it "
            f"(Tian2023, Table 1); {found.intervals}{key}",
            long.sort(keys, maintain_order=True),
            same(*keys),
            "column",
            _net_cell,
        ),
    )


def _net_cell(row: Mapping[str, Any]) -> str:
    """Write a net count, and whether it is a harm or a benefit to the group: `+3 harm`."""
    count = f"{row['value']:+d}" if row["value"] else "0"
    return f"{count} {row['effect']}" if row["effect"] else count


def _accuracy_tables(found: PaperInputs) -> Iterator[PaperTable]:
    """Lay out accuracies, their means and deviations over runs (Kohankhaki2024, Tables 2 and 3)."""
    keys = ["model", "method", "dataset", "probe", "style", "attribute"]
    of_all = found.estimates.filter(pl.col("group") == ALL, pl.col("model") != ALL)
    deviations = of_all.filter(score="accuracy_sd").select(*keys, sd="value", runs="units")
    accuracies = of_all.filter(score="accuracy", statistic="rate").unique(
        keys, keep="first", maintain_order=True
    )
    whole = accuracies.join(
        deviations, on=keys, how="left", nulls_equal=True, maintain_order="left"
    )
    for way, number, called in (("tuned", 2, "fine-tuned"), ("prompted", 3, "prompted")):
        part = found.of_way(whole, way).drop_nulls("value")
        if part.is_empty():
            continue
        by = only_if_several(part, "method", "dataset", "style")
        places = part.with_columns(
            place=joined(["probe", "attribute"]),
            way=joined(["method", "dataset", *only_if_several(part, "style")]),
        )
        model: dict[str, Cell] = {"model": lambda row: str(row["model"])}
        if way == "prompted":
            rows: dict[str, Cell] = {**same("probe", "attribute"), **model}
            laid, across = places.sort("probe", "attribute", maintain_order=True), "way"
        else:
            rows = {**model, **same(*by)}
            laid, across = places, "place"
        yield PaperTable(
            file_name(_KOHANKHAKI, f"table-{number}", f"accuracy-{called}"),
            part.select(
                *keys,
                pl.col("value").alias("accuracy"),
                "sd",
                "runs",
                pl.col("n").alias("sentences"),
            ),
            crossed(
                f"Accuracy of {called} models: mean and standard deviation over runs "
                f"(Kohankhaki2024, Table {number})",
                laid,
                rows,
                across,
                _accuracy,
            ),
        )


def _accuracy(row: Mapping[str, Any]) -> str:
    mean = wording.number(row["value"])
    return mean if row["sd"] is None else f"{mean} ({wording.number(row['sd'])})"


def _span_table(found: PaperInputs) -> Iterator[PaperTable]:
    """Rank models by the mean over probes of their gaps' span (Kohankhaki2024, Table 4)."""
    spans = found.of_way(found.estimates, "tuned").filter(
        pl.col("score").is_in(found.gaps["score"].unique().to_list()),
        statistic="difference",
        condition=_SPAN,
        group=ALL,
    )
    if spans.is_empty():
        return
    keys = ["attribute", "score", "model", "method", "dataset", "style"]
    means = spans.group_by(keys, maintain_order=True).agg(
        mean_gap_span=pl.col("value").mean(), probes=pl.col("probe").n_unique()
    )
    # Equal spans share a rank, however they were rounded.
    span = pl.col("mean_gap_span").round(12)
    ranked = means.with_columns(
        rank=span.rank("min", descending=True).over("attribute", "score").cast(pl.Int64)
    ).sort("attribute", "score", "rank", maintain_order=True)
    frame = ranked.select("attribute", "score", "rank", *keys[2:], "mean_gap_span", "probes")
    names: dict[str, Cell] = {"model": lambda row: str(row["model"])}
    names |= same(*only_if_several(frame, "method", "dataset", "style"))
    place: dict[str, Cell] = {**same("attribute"), "rate": "score", "rank": "rank"}
    yield PaperTable(
        file_name(_KOHANKHAKI, "table-4", "gap-spans"),
        frame,
        crossed(
            "Highest less lowest gap of a model, mean over the probes (Kohankhaki2024, Table 4)",
            frame,
            {**place, **names, "probes": "probes"},
            lambda _: "mean gap span",
            lambda row: wording.number(row["mean_gap_span"]),
        ),
    )


def _composition_table(composition: pl.DataFrame) -> PaperTable:
    """Count the sentences of each group, and of all (Kohankhaki2024, Table 5)."""
    place = ["probe", "attribute"]
    groups = without_extras(composition).sort(*place, "group")
    labels = label_columns(composition)
    numbers = [*labels, "items", "predictions"]
    totals = groups.group_by(place, maintain_order=True).agg(pl.col(numbers).sum())
    whole = pl.concat(
        [groups, totals.with_columns(group=pl.lit("TOTAL"))], how="diagonal_relaxed"
    ).sort(place, maintain_order=True)
    frame = whole.select(
        *place,
        "group",
        *(pl.col(column).alias(label) for column, label in labels.items()),
        "fraction",
        "predictions",
        total="items",
    ).select(*place, "group", *labels.values(), "total", "fraction", "predictions")
    long = frame.unpivot(
        [*labels.values(), "total", "fraction", "predictions"], index=[*place, "group"]
    )
    return PaperTable(
        file_name(_KOHANKHAKI, "table-5", "composition"),
        frame,
        crossed(
            "Sentences of each group by right label; predictions are those of all runs of a "
            "classifier (Kohankhaki2024, Table 5)",
            long,
            same(*place, "group"),
            "variable",
            _composed,
        ),
    )


def _composed(row: Mapping[str, Any]) -> str:
    if row["value"] is None:
        return ""
    return wording.number(row["value"]) if row["variable"] == "fraction" else f"{row['value']:,.0f}"
