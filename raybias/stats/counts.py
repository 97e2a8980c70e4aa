"""Reduce predictions to counts, and files of them in one pass, without holding them all.

A cell is how many predictions one run has of an item's kind and predicted label. Prompted
classifiers are read twice: the sampled answer, and the likeliest label, under method names of
their own.

Pieces of some 260,000 rows are counted by Polars, and summed up. Runs are numbered and texts
categorical, since grouping a million cells by plain strings costs more than all that follows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from raybias import schema
from raybias.errors import DataError
from raybias.schema import LIKELIHOOD, RUN_KEYS
from raybias.stats import sentiment
from raybias.stats.checks import checked_runs, fingerprints
from raybias.stats.metric import DEFAULT, check_metrics, run_values
from raybias.stats.metric import metrics as registered
from raybias.stats.predictions import (
    Source,
    join_pieces,
    pieces,
    sources,
)
from raybias.stats.untold import untold_labels, without_untold
from raybias.table_files import conformed

#: An odd number without pattern (2**64 by the golden ratio), for mixing runs into hashes.
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)
_COLUMNS: Final = (*schema.CELLS.names[:-1], "term", "family", "item_id", "parsed")
_FAMILY: Final = ("probe", "attribute", "template_id", "family")


@dataclass(frozen=True)
class Counts:
    """What statistics need of predictions; the texts of cells are categorical."""

    cells: pl.DataFrame
    """schema.CELLS; the label is null for sentences whose right label a classifier never gives."""
    terms: pl.DataFrame
    """schema.TERM_CELLS, without rows where no term is known."""
    words: pl.DataFrame
    """schema.WORD_CELLS, without rows where no term or template is known."""
    answers: pl.DataFrame
    """schema.ANSWERS."""
    coverage: pl.DataFrame
    """RUN_KEYS, predictions, repeated and unparsed ones; a row per run, readings not apart."""
    values: pl.DataFrame
    """Of metrics of predictions: as `stats.metric.run_values`."""
    families: pl.DataFrame
    """probe, attribute, template_id and family, of the templates that have one."""
    unanswered: pl.DataFrame = field(default_factory=pl.DataFrame)
    """schema.UNANSWERED, without rows if no answer was cut off or filtered."""
    sentences: pl.DataFrame = field(default_factory=pl.DataFrame)
    """schema.CELLS with the right label of every sentence."""
    labels: Mapping[int, str] = field(default_factory=lambda: sentiment.BY_CODE)
    """Names of the classes, by their numbers in `label` and `pred`."""


def count_cells(predictions: pl.LazyFrame | pl.DataFrame) -> pl.DataFrame:
    """Count predictions as schema.CELLS; a null `pred`, which is always wrong, counts apart."""
    types = pl.Schema(schema.CELLS)
    counted = predictions.lazy().group_by(types.names()[:-1], maintain_order=True)
    return counted.agg(n=pl.len()).cast(types).collect()


def without_extras(cells: pl.DataFrame) -> pl.DataFrame:
    """Drop the rows of schema.EXTRA_GROUPS, which are no protected groups."""
    extra = cells["group"].is_in(schema.EXTRA_GROUPS)
    return cells.filter(~extra) if extra.any() else cells


def with_likelihood(predictions: pl.DataFrame) -> pl.DataFrame:
    """Add the likelihood reading below prompted predictions, which have an answer and scores.

    It is of method `METHOD+likelihood`, with the label of the highest score. A judge's verdict,
    which has one score, has none.
    """
    answered = predictions.filter(
        pl.col("answer").is_not_null() & pl.col("scores").list.len().fill_null(0).gt(1)
    )
    second = answered.with_columns(
        method=(pl.col("method").cast(pl.String) + LIKELIHOOD).cast(predictions["method"].dtype),
        pred=pl.col("scores").list.arg_max().cast(predictions["pred"].dtype),
        parsed=pl.lit(True),
        unread=pl.lit(None, pl.String),
        answer=pl.lit(None, pl.String),
    )
    return pl.concat([predictions, second]) if second.height else predictions


def answers(counted: pl.DataFrame) -> pl.DataFrame:
    """Count the answers of prompted classifiers that hold no label: schema.ANSWERS.

    `counted` has a row per run: the run keys, predictions, unparsed, several, negated. A row with
    the run id `all` is added per classifier and probe.
    """
    sums = pl.col("predictions", "unparsed", "several", "negated").sum()
    runs = counted.group_by(RUN_KEYS).agg(sums)
    overall = runs.group_by(schema.KEYS).agg(pl.lit("all").alias("run_id"), sums)
    both = pl.concat([runs, overall.select(runs.columns)])
    last = pl.col("run_id") == "all"
    shared = both.with_columns(share=pl.col("unparsed") / pl.col("predictions"))
    return conformed(shared.sort(*schema.KEYS, last, "run_id"), pl.Schema(schema.ANSWERS))


def composition(cells: pl.DataFrame, labels: Mapping[int, str] = sentiment.BY_CODE) -> pl.DataFrame:
    """Count the sentences of each group, by right label (Kohankhaki2024, Table 5).

    `labels` names the classes by their numbers. Gives probe, attribute, group; `items` of one run
    by label and together (the most, where runs differ); `predictions` of one classifier's runs
    likewise; and `fraction`, the group's share of the attribute's items (null for the extra
    groups).
    """
    place = ["probe", "attribute", "group", "label"]
    per_run = cells.group_by(*RUN_KEYS, *place[1:]).agg(pl.col("n").sum())
    per_classifier = per_run.group_by(*schema.KEYS, *place[1:]).agg(
        items=pl.col("n").max(), predictions=pl.col("n").sum()
    )
    kinds = ("items", "predictions")
    counts = per_classifier.group_by(place).agg(pl.col(kinds).max())
    sums = [
        pl.col(kind).filter(pl.lit(value=True) if label is None else pl.col("label") == label)
        .sum().alias(f"{kind}{end}")
        for kind in kinds
        for label, end in (*((code, f"_{name}") for code, name in labels.items()), (None, ""))
    ]  # fmt: skip
    wide = counts.group_by(place[:3]).agg(sums).cast({pl.Categorical: pl.String})
    own = pl.when(~pl.col("group").is_in(schema.EXTRA_GROUPS)).then("items")
    return wide.with_columns(fraction=own / own.sum().over(place[:2])).sort(place[:3])


def read_counts(paths: Sequence[str | Path], *, metrics: Sequence[str] = DEFAULT) -> Counts:
    """Count the predictions in files and folders, with both readings of prompted ones.

    Raises DataError: as `sources`, `pieces` and `checked_runs`; or a prediction given twice.
    """
    where = ", ".join(map(str, paths))
    return count_files(sources(paths), where=where, metrics=metrics, unfinished="refuse")


def count_files(
    files: Sequence[Source],
    *,
    where: str,
    metrics: Sequence[str] = DEFAULT,
    unfinished: Literal["refuse", "count"],
) -> Counts:
    """Count the predictions in files; those themselves are kept only for `metrics` that read them.

    Where unfinished runs are to `count`, runs that hold different items give `UnevenRuns`, and
    repeated predictions are counted in `coverage`.
    """
    check_metrics(metrics)
    of_predictions = any(registered[name].values is not None for name in metrics)
    seen, kept = _Seen(), []
    for raw in _ahead(pieces(files, columns=_COLUMNS)):
        piece = seen.add(raw)
        if of_predictions:
            kept.append(piece)
    repeated = seen.repeated()
    if unfinished == "refuse" and repeated.any():
        # Names a repeated prediction; where two hashes were equal by chance it goes on.
        join_pieces(files, where=where)
    left_out = checked_runs(
        seen.named(pl.concat(seen.prints)),
        lambda: pieces(files, columns=_COLUMNS),
        where=where,
        uneven="refuse" if unfinished == "refuse" else "warn",
    )
    coverage = seen.coverage(repeated)
    asked = coverage.filter(pl.col("answers") > 0).select(
        *RUN_KEYS, "several", "negated", predictions="answers", unparsed="unread"
    )
    untold, cells = untold_labels(files), seen.summed(seen.cells, schema.CELLS, left_out)
    return Counts(
        without_untold(cells, untold),
        without_untold(seen.summed(seen.terms, schema.TERM_CELLS, left_out), untold),
        without_untold(seen.summed(seen.words, schema.WORD_CELLS, left_out), untold),
        answers(asked),
        coverage.drop("answers", "unread", "several", "negated"),
        run_values(kept, metrics, left_out),
        _one_family_each(seen.families, where),
        seen.unanswered(),
        cells,
        dict(enumerate(files[0].columns.classes or files[0].labels or sentiment.NAMES)),
    )


def item_counts(files: Sequence[Source]) -> pl.DataFrame:
    """Count how many runs gave each item each label; `answer` is one that was given, if known."""
    by = [name for name in _COLUMNS if name not in ("run_id", "family", "parsed")]
    first, n = pl.col("answer").drop_nulls().first(), pl.len().cast(pl.Int64)
    parts = []
    for piece in pieces(files, columns=_COLUMNS):
        known = piece if "answer" in piece.columns else piece.with_columns(answer=pl.lit(""))
        parts.append(known.group_by(by, maintain_order=True).agg(first, n=n))
    whole = pl.concat(parts, how="vertical_relaxed").group_by(by, maintain_order=True)
    return (
        whole.agg(first, pl.col("n").sum())
        .cast({pl.Categorical: pl.String})
        .with_columns(pl.col("answer").replace("", None))
    )


@dataclass
class _Seen:
    """What has been counted so far, piece by piece; `run` numbers the runs."""

    runs: dict[tuple[str, ...], int] = field(default_factory=dict)
    cells: list[pl.DataFrame] = field(default_factory=list)
    terms: list[pl.DataFrame] = field(default_factory=list)
    words: list[pl.DataFrame] = field(default_factory=list)
    prints: list[pl.DataFrame] = field(default_factory=list)
    read: list[pl.DataFrame] = field(default_factory=list)
    families: list[pl.DataFrame] = field(default_factory=list)
    items: list[npt.NDArray[np.uint64]] = field(default_factory=list)
    item_runs: list[npt.NDArray[np.int32]] = field(default_factory=list)
    by_group: list[pl.DataFrame] = field(default_factory=list)

    def add(self, raw: pl.DataFrame) -> pl.DataFrame:
        """Count a piece; returns it with the second reading of prompted rows."""
        asked = "answer" in raw.columns
        piece = with_likelihood(raw) if asked else raw
        run = self._numbered(piece)
        piece = piece.with_columns(run=run)
        self.prints.append(fingerprints(piece, ["run"]))
        self.items.append(piece["item_id"].hash().to_numpy() + run.astype(np.uint64) * _MIX)
        self.item_runs.append(run)

        def counted(some: pl.DataFrame, table: Sequence[str]) -> pl.DataFrame:
            by = ["run", *(name for name in table if name not in (*RUN_KEYS, "n"))]
            whole = some.lazy().group_by(by, maintain_order=True)
            return whole.agg(n=pl.len().cast(pl.Int64)).collect()

        self.cells.append(counted(piece, schema.CELLS.names))
        if piece["term"].null_count() < piece.height:
            known = piece.filter(pl.col("term").is_not_null())
            self.terms.append(counted(known, schema.TERM_CELLS.names))
            placed = known.filter(pl.col("template_id").is_not_null())
            self.words.append(counted(placed, schema.WORD_CELLS.names))
        if piece["family"].null_count() < piece.height:
            self.families.append(piece.select(_FAMILY).drop_nulls().unique())
        unparsed = ~pl.col("parsed").fill_null(True)
        answered = pl.col("answer").is_not_null() if asked else pl.lit(False)
        why = pl.col("unread") if asked else pl.lit(None, pl.String)
        flags = {"predictions": pl.lit(True), "unparsed": unparsed, "answers": answered,
                 "unread": unparsed & answered, "several": (why == "several").fill_null(False),
                 "negated": (why == "negated").fill_null(False)}  # fmt: skip
        read = piece[: raw.height].select("run", **flags)
        self.read.append(read.group_by("run").agg(pl.all().sum().cast(pl.Int64)))
        by_group = piece[: raw.height].filter(answered).group_by("run", "attribute", "group")
        reasons = {name: (why == name).sum().cast(pl.Int64) for name in ("cut", "filtered")}
        self.by_group.append(by_group.agg(answers=pl.len().cast(pl.Int64), **reasons))
        return piece.drop("run", "scores", strict=False)

    def _numbered(self, piece: pl.DataFrame) -> npt.NDArray[np.int32]:
        """Give each row the number of its run [N]; rows of a run mostly stand together."""
        changed = pl.any_horizontal(pl.col(key).ne_missing(pl.col(key).shift()) for key in RUN_KEYS)
        first = pl.int_range(pl.len()) == 0
        starts = piece.select(changed | first).to_series()
        heads = piece.select(RUN_KEYS).filter(starts).iter_rows()
        numbers = np.array([self.runs.setdefault(row, len(self.runs)) for row in heads], np.int32)
        return np.asarray(numbers[starts.cum_sum().to_numpy() - 1], np.int32)

    def repeated(self) -> npt.NDArray[np.int64]:
        """Count each run's predictions of an item that it has already [R]."""
        items, n = np.concatenate(self.items), len(self.runs)
        ordered = np.sort(items)
        if not (ordered[1:] == ordered[:-1]).any():
            return np.zeros(n, np.int64)
        runs = np.concatenate(self.item_runs)
        _, first = np.unique(items, return_index=True)
        return np.bincount(runs, minlength=n) - np.bincount(runs[first], minlength=n)

    def coverage(self, repeated: npt.NDArray[np.int64]) -> pl.DataFrame:
        """Sum up predictions, repeated, unparsed, answers and unread ones of each run."""
        sums = pl.concat(self.read).group_by("run").agg(pl.all().sum())
        counted = sums.with_columns(repeated=pl.Series(repeated)[sums["run"]])
        columns = [*RUN_KEYS, "predictions", "repeated", "unparsed", "answers", "unread", "several",
                   "negated"]  # fmt: skip
        return self.named(counted).select(columns).sort(RUN_KEYS)

    def unanswered(self) -> pl.DataFrame:
        """Count the answers that were cut off or filtered, over the runs of a classifier."""
        counts = self.named(pl.concat(self.by_group)).cast({pl.Categorical: pl.String})
        by = [*schema.KEYS, "attribute", "group"]
        sums = counts.group_by(by).agg(pl.col("answers", "cut", "filtered").sum()).sort(by)
        some = sums.select(pl.sum("cut") + pl.sum("filtered")).item()
        return conformed(sums if some else sums.clear(), pl.Schema(schema.UNANSWERED))

    def named(self, table: pl.DataFrame) -> pl.DataFrame:
        """Put RUN_KEYS beside a table's column `run`."""
        names = pl.DataFrame(list(self.runs), dict.fromkeys(RUN_KEYS, pl.String), orient="row")
        return pl.concat([names[table["run"]], table], how="horizontal")

    def summed(
        self, parts: Sequence[pl.DataFrame], table: pa.Schema, left_out: pl.DataFrame
    ) -> pl.DataFrame:
        """Join the counts of pieces, run by run, or over a classifier's; leave out some runs."""
        types = pl.Schema(table)
        texts = pl.Schema({n: pl.Categorical() if t == pl.String else t for n, t in types.items()})
        if not parts:
            return pl.DataFrame(schema=texts)
        dropped = [self.runs[row] for row in left_out.iter_rows()]
        counts = pl.concat(parts).filter(~pl.col("run").is_in(dropped))
        cut = pl.concat(part["run"].unique() for part in parts).is_duplicated().any()
        if "run_id" not in types:
            first = {run[: len(schema.KEYS)]: n for run, n in reversed(self.runs.items())}
            one = pl.Series([first[run[: len(schema.KEYS)]] for run in self.runs], dtype=pl.Int32)
            counts, cut = counts.with_columns(run=one[counts["run"]]), True
        if cut:
            # A run that was cut between pieces has some cells twice.
            by = pl.exclude("n")
            counts = counts.group_by(by, maintain_order=True).agg(pl.col("n").sum())
        # A second reading stands behind the run that it reads.
        place = [
            2 * self.runs.get((model, method.removesuffix(LIKELIHOOD), *rest), n)
            + method.endswith(LIKELIHOOD)
            for (model, method, *rest), n in self.runs.items()
        ]
        order = np.argsort(np.array(place)[counts["run"].to_numpy()], kind="stable")
        return self.named(counts[order]).select(types.names()).cast(texts)


def _one_family_each(parts: Sequence[pl.DataFrame], where: str) -> pl.DataFrame:
    """Join the families of templates; `DataError` for a template with two."""
    empty = pl.DataFrame(schema=dict.fromkeys(_FAMILY, pl.String))
    found = pl.concat([empty, *(part.cast(pl.String) for part in parts)]).unique().sort(_FAMILY)
    twice = found.filter(pl.struct(_FAMILY[:-1]).is_duplicated())
    if twice.height:
        one, other = twice["family"][:2]
        raise DataError(
            f"template {twice['template_id'][0]!r} has the families {one!r} and {other!r}",
            where=where,
            cure="give a template one family",
        )
    return found


def _ahead(frames: Iterator[pl.DataFrame]) -> Iterator[pl.DataFrame]:
    """Yield the frames, the next of them read while one is counted."""
    with ThreadPoolExecutor(1) as reader:
        coming = reader.submit(next, frames, None)
        while (frame := coming.result()) is not None:
            coming = reader.submit(next, frames, None)
            yield frame
