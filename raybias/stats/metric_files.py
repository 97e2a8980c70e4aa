"""Compute metrics of files of predictions: those asked for, or all that the files allow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import polars as pl

from raybias import schema
from raybias.config import Statistics
from raybias.errors import ConfigError, DataError
from raybias.schema import Label
from raybias.stats.agreement import agreement
from raybias.stats.cells import RUN_KEYS, without_extras
from raybias.stats.contrasts import TABLE
from raybias.stats.counts import Counts, read_counts
from raybias.stats.likelihood_readout import with_likelihood
from raybias.stats.metric import check_names, contrasts
from raybias.stats.metric_table import Measured, MetricRules, measure
from raybias.stats.metric_types import BACKGROUNDS, metrics
from raybias.stats.predictions import pieces, sources
from raybias.stats.reference_groups import membership
from raybias.stats.scopes import WordVariance, word_variances

_COLUMNS: Final = (
    *(*schema.KEYS, "run_id", "item_id", "label", "attribute", "group", "template_id", "pred"),
    *("scores", "score", "source_id"),
)
#: Blocks that items are drawn in, so that there are not as many weights as items.
_BLOCKS: Final = 1_000
_COUNTED: Final = (*TABLE, "run_id", "group", "unit", "label", "pred")


def metrics_of_files(
    files: Sequence[str | Path],
    names: Sequence[str] = (),
    *,
    positive: int | None = None,
    against: str = "",
    level: float = 0.95,
    seed: int = 0,
) -> dict[str, pl.DataFrame]:
    """Compute metrics and how far they agree; see `raybias.metrics`.

    Returns
    -------
    `metrics` (schema.METRICS) and `agreement` (schema.AGREEMENT).
    """
    check_asked(names)
    paths = [str(file) for file in files]
    counts = read_counts(paths)
    cells = without_extras(counts.cells)
    wanted = list(names) or [name for name, entry in metrics.items() if entry.values is None]
    of_items = [name for name in wanted if _of_items(name)]
    placed = not cells["template_id"].null_count()
    items = _items(paths, cells) if of_items or not placed else None
    given = MetricRules(against=_background(against, cells), level=level, seed=seed)
    rules = replace(given, positive=_positive(positive, cells, items))
    examples = cells.rename({"template_id": "unit"}) if items is None or placed else None
    table = None if items is None else _with_units(items, rules.positive)
    if table is not None:
        of_items = _allowed(of_items, table, asked=bool(names), where=", ".join(paths))
    of_counts = [name for name in wanted if not _of_items(name)]
    if not names:
        of_counts = [name for name in of_counts if _occurs(name, cells)]
    groups = cells.select("probe", "attribute", "group").unique().cast(pl.String)
    inside = membership(groups, lambda *_: None)
    words = _word_variances(counts, of_counts, rules.positive)
    measured: list[Measured] = []
    if examples is not None:
        measured += measure(examples, of_counts, inside, words, rules)
    for kind, part in () if table is None else table.partition_by("kind", as_dict=True).items():
        wide = "items" if kind == ("items",) else "sentences"
        if examples is None:
            counted = part.group_by(_COUNTED, maintain_order=True).agg(n=pl.len())
            measured += measure(counted, of_counts, inside, words, rules, wide=wide)
        measured += measure(part, of_items, inside, {}, rules, wide=wide)
    return {"metrics": metric_rows(measured, wanted), "agreement": agreement(measured, level=level)}


def contrasts_of_cells(
    cells: pl.DataFrame, inside: pl.DataFrame, options: Statistics
) -> pl.DataFrame:
    """Compute those metrics of a study that are numbers for all groups: schema.METRICS.

    Classifiers whose templates are not known are left out.
    """
    names = contrasts(options.metrics)
    placed = (pl.col("template_id").null_count() == 0).over(TABLE)
    unit = pl.col("template_id")
    examples = without_extras(cells).filter(placed).with_columns(unit=unit, source=unit)
    rules = MetricRules(
        level=options.level, draws=options.bootstrap_draws, seed=options.bootstrap_seed
    )
    return metric_rows([*measure(examples, names, inside, {}, rules)], names)


def metric_rows(measured: Sequence[Measured], names: Sequence[str]) -> pl.DataFrame:
    """Join the rows of metrics: schema.METRICS, classifier by classifier."""
    types = pl.Schema(schema.METRICS)
    rows = [row for each in measured for row in each.rows]
    place = pl.col("metric").replace_strict(
        {name: place for place, name in enumerate(names)}, return_dtype=pl.Int64
    )
    table = pl.DataFrame(rows, schema=types).fill_nan(None)
    return table.sort("model", "attribute", *schema.KEYS[1:], place, maintain_order=True)


def check_asked(names: Sequence[str]) -> None:
    """Refuse names that no metric of `raybias metrics` has.

    Raises
    ------
    ConfigError: names those that are near.
    """
    check_names(names)
    for name in names:
        if metrics[name].values is not None:
            raise ConfigError(
                f"the metric {name!r} is of whole predictions", cure="use `raybias gaps`"
            )


def one_class(table: pl.DataFrame, positive: int) -> pl.DataFrame:
    """Write one class as schema.Label numbers it: positive, and everything else negative."""
    numbers = {
        name: pl.when(pl.col(name) == positive)
        .then(pl.lit(int(Label.POSITIVE)))
        .otherwise(pl.lit(int(Label.NEGATIVE)))
        .cast(pl.Int8)
        for name in ("label", "pred")
    }
    return table.with_columns(**numbers)


def _of_items(name: str) -> bool:
    parts = metrics[name].contrast
    return parts is not None and (parts.needs != "counts" or parts.within == "source")


def _items(paths: Sequence[str], cells: pl.DataFrame) -> pl.DataFrame:
    """Read the predictions that the cells were counted from, item by item."""
    found = []
    for piece in pieces(sources(paths), columns=_COLUMNS):
        both = with_likelihood(piece) if "answer" in piece.columns else piece
        found.append(both.select(_COLUMNS).cast({pl.Categorical: pl.String}))
    runs = cells.select(RUN_KEYS).unique().cast(pl.String)
    read = without_extras(pl.concat(found))
    return read.join(runs, on=RUN_KEYS, how="semi", nulls_equal=True)


def _positive(asked: int | None, cells: pl.DataFrame, items: pl.DataFrame | None) -> int:
    """Choose the class: by default the last of the two or three that are there."""
    there = [cells[name].cast(pl.Int64) for name in ("label", "pred")]
    if items is not None:
        there.append(items["scores"].list.len().cast(pl.Int64) - 1)
    last = max(1, int(pl.concat(there).drop_nulls().to_numpy().max()))
    if asked is not None and asked > last:
        raise ConfigError(
            f"--positive {asked} is no label of these files",
            cure=f"choose from {', '.join(map(str, range(last + 1)))}",
        )
    return last if asked is None else asked


def _background(against: str, cells: pl.DataFrame) -> str:
    kind, colon, group = against.partition(":")
    if against and against not in BACKGROUNDS[:3] and (kind, colon) != ("reference", ":"):
        raise ConfigError(
            f"no background {against!r}", cure=f"choose from {', '.join(BACKGROUNDS)}"
        )
    known = cells["group"].cast(pl.String).unique().sort().to_list()
    if colon and group not in known:
        raise ConfigError(
            f"no group {group!r} to be the background", cure=f"groups are {', '.join(known)}"
        )
    return against


def _with_units(items: pl.DataFrame, positive: int) -> pl.DataFrame:
    """Add unit, kind, source, score and n to items.

    Units are templates, else source examples, else items: one kind for a classifier's attribute.
    Items are drawn in blocks, which varies their mean as much as drawing them one by one.
    """
    whole = {
        name: (pl.col(name).null_count() == 0).over(TABLE) for name in ("template_id", "source_id")
    }
    placed = whole["template_id"] | whole["source_id"]
    source = pl.when(whole["source_id"]).then("source_id").otherwise("template_id")
    block = (pl.col("item_id").rank("dense").over(TABLE) % _BLOCKS).cast(pl.String)
    unit = pl.when(whole["template_id"]).then("template_id").otherwise("source_id")
    unit = pl.when(placed).then(unit).otherwise(block)
    kind = pl.when(placed).then(pl.lit("sentences"))
    logits = pl.col("scores").cast(pl.List(pl.Float64))
    softmax = logits.list.eval((pl.element() - pl.element().max()).exp())
    of_scores = softmax.list.get(positive, null_on_oob=True) / softmax.list.sum()
    of_score = pl.col("score") if positive == 1 else 1 - pl.col("score")
    known = pl.coalesce(of_score if positive < 2 else pl.lit(None, pl.Float64), of_scores)
    return items.with_columns(
        unit=unit, kind=kind.otherwise(pl.lit("items")), source=source, score=known, n=pl.lit(1)
    )


def _allowed(names: Sequence[str], items: pl.DataFrame, *, asked: bool, where: str) -> list[str]:
    """Leave out the metrics of columns that no classifier has, or refuse them if asked for."""
    found = []
    for name in names:
        parts = metrics[name].contrast
        if parts is None:
            continue
        lacking = {
            "scores: neither `score` nor `scores`": parts.needs != "counts"
            and not items["score"].count(),
            "source examples: neither `source_id` nor `template_id`": parts.within == "source"
            and not items["source"].count(),
        }
        for problem in [text for text, lacks in lacking.items() if lacks]:
            if asked:
                raise DataError(
                    f"the metric {name!r} needs {problem} is there",
                    where=where,
                    cure="add the column, or leave the metric out",
                )
        if not any(lacking.values()):
            found.append(name)
    return found


def _occurs(name: str, cells: pl.DataFrame) -> bool:
    """Whether anything is in a metric's share: no negatives are called a third of two classes."""
    share = metrics[name].share
    if share is None or metrics[name].one_class is not None:
        return True
    holds = share(pl.col("label"), pl.col("pred"))
    return bool(cells.select((holds.among & holds.holds).any()).item())


def _word_variances(
    counts: Counts, names: Sequence[str], positive: int
) -> Mapping[tuple[str, ...], WordVariance]:
    words = without_extras(counts.words)
    of_class = [name for name in names if metrics[name].one_class is not None]
    raw = [name for name in names if name not in of_class]
    return {
        **word_variances(words, raw),
        **word_variances(one_class(words, positive), of_class),
    }
