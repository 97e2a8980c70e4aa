"""Made-up predictions for the statistics tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from raybias import schema
from raybias.config import Profile
from raybias.report.files import rules_of_files
from raybias.stats.counts import Counts, count_cells, read_counts
from raybias.stats.gaps import GapAnalysis, gap_analysis
from raybias.stats.intervals import Rules
from raybias.stats.metric import VALUES
from raybias.stats.predictions import join_pieces, sources
from raybias.stats.scopes import GapTable, rate_tables


def predictions(
    *,
    seed: int = 0,
    models: int = 2,
    runs: int = 3,
    templates: int = 6,
    groups: tuple[str, ...] = ("a", "b", "c"),
    attribute: str = "colour",
    terms: bool = False,
    extras: bool = False,
) -> pl.DataFrame:
    """Predictions that are wrong at random, one to three items per template and group.

    With `extras`, all templates but the last also come unmarked and with two neutral words.
    """
    random = np.random.default_rng(seed)
    items = [
        (f"t{template}", group, template % 3, f"{group}-{term}" if terms else None)
        for template in range(templates)
        for group in groups
        for term in range(random.integers(1, 4))
    ]
    forms = [("unmarked", None), ("placeholder", "local"), ("placeholder", "particular")]
    items += [
        (f"t{template}", group, template % 3, word)
        for template in range(templates - 1 if extras else 0)
        for group, word in forms
    ]
    rows = [
        {
            "model": f"m{model}",
            "method": "soft_prompt",
            "dataset": "sst5",
            "run_id": f"m{model}.s{run}",
            "probe": "made",
            "style": "original",
            "item_id": f"{place:04d}",
            "label": label,
            "attribute": attribute,
            "group": group,
            "template_id": template,
            "term": term,
            "pred": label if random.random() < 0.5 else int(random.integers(3)),
            "scores": None,
            "parsed": True,
            "answer": None,
        }
        for model in range(models)
        for run in range(runs)
        for place, (template, group, label, term) in enumerate(items)
    ]
    return pl.DataFrame(rows, schema=pl.Schema(schema.PREDICTIONS))


def prompted(
    *,
    seed: int = 0,
    runs: int = 3,
    method: str = "few_shot",
    same_scores: bool = False,
    readable: float = 0.8,
) -> pl.DataFrame:
    """Answers of a prompted classifier: some hold no label, and scores that may be the same."""
    random = np.random.default_rng(seed + 1)
    table = predictions(seed=seed, models=1, runs=runs, terms=True)
    n = table.height
    parsed = random.random(n) < readable
    scores = random.normal(size=(n, 3)).astype(np.float32)
    if same_scores:
        scores = np.tile(scores[: n // runs], (runs, 1))
    return table.with_columns(
        method=pl.lit(method),
        parsed=pl.Series(parsed),
        pred=pl.when(pl.Series(parsed)).then("pred").cast(pl.Int16),
        answer=pl.when(pl.Series(parsed)).then(pl.lit(" positive.")).otherwise(pl.lit("hm")),
        scores=pl.Series(scores.tolist(), dtype=pl.List(pl.Float32)),
    )


def crossed(pred_RTGW: npt.NDArray[np.integer[Any]]) -> pl.DataFrame:
    """Predictions for neutral sentences, by the run, template, group and word of their place."""
    run, template, group, word = np.indices(pred_RTGW.shape).reshape(4, -1)
    places = {"run_id": run, "template_id": template, "group": group, "term": 10 * group + word}
    keys = {"model": "m", "method": "lora", "dataset": "d", "probe": "p", "style": "original"}
    return pl.DataFrame(places).cast(pl.String).with_columns(
        **{name: pl.lit(value) for name, value in keys.items()}, attribute=pl.lit("x"),
        item_id=pl.concat_str("template_id", "term", separator="-"),
        label=pl.lit(1, pl.Int16), pred=pl.Series(pred_RTGW.ravel(), dtype=pl.Int16),
    )  # fmt: skip


def rates_of(frame: pl.DataFrame, metrics: Sequence[str]) -> list[GapTable]:
    """The rates of predictions by run and template; all groups are in the mean."""
    groups = frame.select("probe", "attribute", "group").unique()
    inside = groups.with_columns(in_mean=pl.lit(True))
    return [*rate_tables(count_cells(frame), inside, metrics)]


def gap_table(values_GRT: npt.NDArray[np.float64], model: str = "m") -> GapTable:
    """A table of groups g0, g1 and so on, all in the mean, and of as many templates."""
    groups, _, templates = values_GRT.shape
    return GapTable(
        (model, "lora", "d", "p", "original", "x"), "negative_fpr",
        tuple(f"g{n}" for n in range(groups)), np.full(groups, True), values_GRT,
        tuple(f"t{n}" for n in range(templates)),
    )  # fmt: skip


def term_cells(table: pl.DataFrame) -> pl.DataFrame:
    """Predictions counted by term, without those whose term is not known."""
    return _counted(table.filter(pl.col("term").is_not_null()), pl.Schema(schema.TERM_CELLS))


def word_cells(table: pl.DataFrame) -> pl.DataFrame:
    """Predictions counted by word."""
    return _counted(table, pl.Schema(schema.WORD_CELLS))


def _counted(table: pl.DataFrame, types: pl.Schema) -> pl.DataFrame:
    return table.group_by(types.names()[:-1], maintain_order=True).agg(n=pl.len()).cast(types)


def analysed(
    cells: pl.DataFrame,
    *,
    reference_groups: Mapping[str, Sequence[str]] | None = None,
    withheld: pl.DataFrame | None = None,
    words: pl.DataFrame | None = None,
    terms: pl.DataFrame | None = None,
    **options: object,
) -> GapAnalysis:
    """The analysis of counts by these statistics, by default t intervals over runs."""
    none = pl.DataFrame()
    counts = Counts(
        cells,
        pl.DataFrame(schema=pl.Schema(schema.TERM_CELLS)) if terms is None else terms,
        pl.DataFrame(schema=pl.Schema(schema.WORD_CELLS)) if words is None else words,
        none, none, pl.DataFrame(schema=VALUES), none,
    )  # fmt: skip
    rules = Rules.under(
        "strict", **{"scope": "runs", "everywhere": reference_groups or {}, **options}
    )
    return GapAnalysis(counts, rules, withheld)


def gaps(cells: pl.DataFrame, **options: object) -> pl.DataFrame:
    """The gaps of counts; options are those of `analysed`."""
    return analysed(cells, **options).gaps  # type: ignore[arg-type]


def judged_files(
    files: Sequence[object],
    *,
    profile: Profile | None = None,
    reference_groups: Mapping[str, Sequence[str]] | None = None,
    **options: object,
) -> GapAnalysis:
    """What follows from prediction files by a profile's or their study's rules."""
    paths = [str(file) for file in files]
    rules = rules_of_files(
        paths, profile=profile, reference_groups=reference_groups, options=options
    )
    counts = read_counts(paths, metrics=rules.metrics)
    return gap_analysis(counts, rules)


def read_predictions(paths: Sequence[str | Path]) -> pl.DataFrame:
    """Files and folders of predictions as one table."""
    found = join_pieces(sources(paths), where=", ".join(map(str, paths)))
    return found.cast({pl.Categorical: pl.String})


def two_years(folder: Path, **more: list[Any]) -> Path:
    """A table in the layout of ProPublica's: two columns of one name, words and deciles."""
    n = 400
    decile = [n * 7 % 10 + 1 for n in range(n)]
    columns: dict[str, list[Any]] = {
        "id": [*range(n)],
        "race": ["African-American" if n % 3 else "Caucasian" for n in range(n)],
        "sex": ["Male" if n % 4 else "Female" for n in range(n)],
        "age": [18 + n % 60 for n in range(n)],
        "decile_score": decile,
        "two_year_recid": [int(n % 7 < 3) for n in range(n)],
        "score_text": [("Low", "Medium", "High")[(d > 4) + (d > 7)] for d in decile],
        **more,
    }
    lines = [",".join([*columns, "decile_score", "id"])]
    lines += [
        ",".join(map(str, (*row, row[4], -row[0]))) for row in zip(*columns.values(), strict=True)
    ]
    path = folder / "two-years.csv"
    path.write_text("\n".join(lines))
    return path
