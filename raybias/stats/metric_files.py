"""Compute metrics that contrast groups, of files or of counts, and find which of them rank alike.

How far metrics rank groups, or models, alike is Kendall's W (Kendall and Babington Smith 1939), of
values turned one way: distances and rates of not being of the class stay, others change their sign.
Intervals are percentiles over the draws that all metrics share.

Shapes: B draws, M metrics, K groups or models that are ranked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any, Final

import numpy as np
import polars as pl
from scipy import stats

from raybias import schema
from raybias.config import Statistics
from raybias.errors import DataError
from raybias.schema import ALL, RUN_KEYS, TABLE
from raybias.stats.bootstrap import percentile_interval
from raybias.stats.components import Doubles
from raybias.stats.counts import with_likelihood, without_extras
from raybias.stats.foreign import unit_of
from raybias.stats.intervals import from_rows
from raybias.stats.metric import THE_CLASS, contrasts, metrics
from raybias.stats.metric_table import Measured, measure
from raybias.stats.predictions import Source, pieces
from raybias.stats.units import UNITS

#: Fewer can hardly be ranked otherwise.
_LEAST: Final = 3
_DIGITS: Final = 12
_COLUMNS: Final = (
    *(*schema.KEYS, "run_id", "item_id", "label", "attribute", "group", "template_id", "pred"),
    *("scores", "score", "source_id"),
)
_COUNTED: Final = (*TABLE, "run_id", "group", "unit", "label", "pred")


def metrics_of_files(
    files: Sequence[Source],
    cells: pl.DataFrame,
    names: Sequence[str],
    inside: pl.DataFrame,
    rules: Statistics,
    *,
    against: str,
    positive: int,
    asked: bool,
) -> Iterator[Measured]:
    """Compute metrics of every classifier and attribute of files.

    `cells` are those of the files, whose class `positive` is written as `metric.THE_CLASS`.
    Metrics that the files do not allow are left out; if a user `asked` for them, a `DataError`.
    """
    cells = without_extras(cells)
    of_items = [name for name in names if _of_items(name)]
    of_counts = [name for name in names if name not in of_items]
    placed = not cells["template_id"].null_count()
    tables = [(cells.rename({"template_id": "unit"}), of_counts)] if placed else []
    if of_items or not placed:
        items = _with_units(_items(files, cells), positive)
        if not placed:
            tables = [(_counted(items), of_counts)]
        where = ", ".join(source.uri for source in files)
        allowed = [name for name in of_items if _allowed(name, items, asked=asked, where=where)]
        tables.append((items, allowed))
    for table, some in tables:
        unit = pl.col("unit").cast(pl.String)
        of_units = {scope: unit.str.starts_with(begin) for scope, begin in UNITS.items()}
        of_templates = {"sentences": ~pl.any_horizontal(*of_units.values())}
        for wide, mine in (of_templates | of_units).items():
            part = table.filter(mine)
            if some and part.height:
                yield from measure(part, some, inside, rules, against=against, wide=wide)


def counts_by_unit(files: Sequence[Source], cells: pl.DataFrame) -> pl.DataFrame:
    """Count the predictions of files by `unit`: the template, else the source example or items.

    `cells` are the counts of these files; without extra groups, and numbers of classes stay.
    """
    cells = without_extras(cells)
    if not cells["template_id"].null_count():
        return cells.rename({"template_id": "unit"})
    return _counted(_with_units(_items(files, cells), THE_CLASS))


def _counted(items: pl.DataFrame) -> pl.DataFrame:
    return items.group_by(_COUNTED, maintain_order=True).agg(n=pl.len())


def metrics_of_cells(
    cells: pl.DataFrame, inside: pl.DataFrame, options: Statistics
) -> pl.DataFrame:
    """Compute a study's metrics of all groups, where templates are known: schema.ESTIMATES."""
    placed = (pl.col("template_id").null_count() == 0).over(TABLE)
    unit = pl.col("template_id")
    examples = without_extras(cells).filter(placed).with_columns(unit=unit, source=unit)
    return metric_rows([*measure(examples, contrasts(options.metrics), inside, options)])


def metric_rows(measured: Sequence[Measured]) -> pl.DataFrame:
    """Join the rows of metrics as schema.ESTIMATES, in the order of the metrics."""
    return from_rows([row for each in measured for row in each.rows])


def as_class(table: pl.DataFrame, positive: int | None) -> pl.DataFrame:
    """Let one class change places with `metric.THE_CLASS`, which metrics of one class read.

    positive: number of the class; None if no metric is about one class.
    """
    if positive in (None, THE_CLASS):
        return table
    places = {positive: THE_CLASS, THE_CLASS: positive}
    return table.with_columns(pl.col("label", "pred").replace(places))


def _of_items(name: str) -> bool:
    parts = metrics[name].contrast
    return parts is not None and (parts.needs != "counts" or parts.within == "source")


def _items(files: Sequence[Source], cells: pl.DataFrame) -> pl.DataFrame:
    found = []
    for piece in pieces(files, columns=_COLUMNS):
        both = with_likelihood(piece) if "answer" in piece.columns else piece
        found.append(both.select(_COLUMNS).cast({pl.Categorical: pl.String}))
    runs = cells.select(RUN_KEYS).unique().cast(pl.String)
    read = without_extras(pl.concat(found))
    return read.join(runs, on=RUN_KEYS, how="semi", nulls_equal=True)


def _with_units(items: pl.DataFrame, positive: int) -> pl.DataFrame:
    whole = (pl.col("source_id").null_count() == 0).over(TABLE)
    of_units = [pl.col("template_id").str.starts_with(begin) for begin in UNITS.values()]
    template = pl.when(~pl.any_horizontal(*of_units)).then("template_id")
    source = pl.when(whole).then("source_id").otherwise(template)
    logits = pl.col("scores").cast(pl.List(pl.Float64))
    softmax = logits.list.eval((pl.element() - pl.element().max()).exp())
    of_scores = softmax.list.get(positive, null_on_oob=True) / softmax.list.sum()
    of_score = pl.col("score") if positive == 1 else 1 - pl.col("score")
    known = pl.coalesce(of_score if positive < 2 else pl.lit(None, pl.Float64), of_scores)
    unit = unit_of(TABLE, ("template_id", "source_id"))
    sized = items.with_columns(unit=unit, source=source, score=known, n=pl.lit(1))
    return as_class(sized, positive)


def _allowed(name: str, items: pl.DataFrame, *, asked: bool, where: str) -> bool:
    """Whether some classifier has the columns that a metric needs; if asked for, refuse it."""
    parts, lacks = metrics[name].contrast, None
    if parts is not None and parts.needs != "counts" and not items["score"].count():
        lacks = "scores: neither `score` nor `scores`"
    elif parts is not None and parts.within == "source" and not items["source"].count():
        lacks = "source examples: neither `source_id` nor `template_id`"
    if lacks is not None and asked:
        raise DataError(
            f"the metric {name!r} needs {lacks} is there",
            where=where,
            cure="add the column, or leave the metric out",
        )
    return lacks is None


def kendalls_w(values_BMK: Doubles) -> Doubles:
    """Compute Kendall's W [B], corrected for ties; NaN where a metric has no order."""
    # What is equal but for rounding has one rank.
    ranks = stats.rankdata(values_BMK.round(_DIGITS), axis=-1)
    many, ranked = ranks.shape[-2:]
    spread = ranks.sum(axis=-2).var(axis=-1) * ranked
    # The sum of squared deviations of a metric's ranks is (K^3 - K - ties) / 12.
    most = ranks.var(axis=-1).sum(axis=-1) * ranked * many
    undecided = (ranks.std(axis=-1) == 0).any(axis=-1) | np.isnan(values_BMK).any(axis=(-1, -2))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(undecided, np.nan, spread / most)


def agreement(measured: Sequence[Measured], *, level: float) -> list[dict[str, Any]]:
    """Compare how metrics rank the groups of each classifier, and classifiers: rows of ESTIMATES.

    At least three are ranked, by two metrics or more that have a value for each. `condition` is
    "groups" or "models", `group` a pair of metrics or `all` of them, `n` how many are ranked, by
    how many metrics (`units`).
    """
    of_groups: dict[tuple[str, ...], list[Measured]] = defaultdict(list)
    of_models: dict[tuple[str, ...], dict[str, list[Measured]]] = defaultdict(dict)
    for each in measured:
        _, _, _, probe, style, attribute = each.laid.keys
        of_groups[each.laid.keys].append(each)
        of_models[probe, style, attribute].setdefault(each.name, []).append(each)
    rows: list[dict[str, Any]] = []
    for keys, found in of_groups.items():
        names: dict[str, Any] = dict(zip(TABLE, keys, strict=True))
        names |= {"condition": "groups", "n": len(found[0].laid.groups), "scope": found[0].scope}
        values = {each.name: each.each for each in found if not np.isnan(each.each[0]).any()}
        rows += [{**names, **row} for row in _rows(values, level)]
    for (probe, style, attribute), by_name in of_models.items():
        values = {}
        for name, found in by_name.items():
            shared = min(len(each.whole) for each in found)
            together = np.stack([each.whole[:shared] for each in found], axis=-1)
            if not np.isnan(together[0]).any():
                values[name] = together
        some = next(iter(by_name.values()))
        names = {"condition": "models", "model": ALL, "probe": probe, "style": style,
                 "attribute": attribute, "n": len(some), "scope": some[0].scope}  # fmt: skip
        rows += [{**names, **row} for row in _rows(values, level)]
    return rows


def _rows(values: dict[str, Doubles], level: float) -> Iterator[dict[str, Any]]:
    if len(values) < 2 or next(iter(values.values())).shape[1] < _LEAST:
        return
    pairs = [pair for pair in combinations(values, 2) if len(values) > 2]
    # Metrics of many scores have fewer draws: the first of those that counts have.
    shared = min(map(len, values.values()))
    worse = {name: -each if metrics[name].above == "benefit" else each
             for name, each in values.items()}  # fmt: skip
    for names in [tuple(values), *pairs]:
        w = kendalls_w(np.stack([worse[name][:shared] for name in names], axis=-2))
        drawn = w[1:][~np.isnan(w[1:])]
        low, high = percentile_interval(drawn, level) if len(drawn) else (None, None)
        yield {
            "score": "agreement", "statistic": "score",
            "group": ALL if len(names) == len(values) else ", ".join(names),
            "value": float(w[0]), "low": low, "high": high, "units": len(names),
        }  # fmt: skip
