"""Make the tables of pairs from score files: those of Zhao2025, and what it does not have.

Their names say where the paper has them; the numbers are those of `raybias.stats.pairs`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import polars as pl
import pyarrow as pa

from raybias.config import Profile, Statistics, Study
from raybias.errors import DataError
from raybias.papers import zhao2025
from raybias.registry import pair_probes
from raybias.report import wording
from raybias.report.load_results import as_frame
from raybias.stats import pairs
from raybias.stats.intervals import Adjust
from raybias.storage import Store
from raybias.study_record import Record
from raybias.table_files import read_frame

Scale = Literal["score", "log"]

#: The tables of score files, in the order in which a reader wants them.
TABLES: Final = (
    "bias_scores", "table2_summary", "tables8_9_scores", "tables6_7_t_values", "table3_winobias",
    "tables10_17_winobias", "style_effects", "style_scopes", "stability",
    "variance", "size", "published_checks",
)  # fmt: skip


@dataclass(frozen=True)
class PairRules:
    """Rules by which pairs are judged."""

    strict: bool = True
    """Paired tests and correction; else the paper's two-proportion and independent t tests."""
    scale: Scale = "score"
    """Of the t tests."""
    level: float = 0.95
    """Of intervals and of the correction."""
    adjust: Adjust = "benjamini_hochberg"
    """Correction for many tests within a table."""
    margin: float = 5.0
    """Points below which an effect is of no concern, for verdicts."""
    draws: int = 10_000
    """Of the bootstrap over pairs."""
    seed: int = 0
    """Of the bootstrap."""
    sizes: Mapping[str, float] = field(default_factory=dict)
    """Parameters of models whose names do not tell them."""

    @classmethod
    def of(cls, profile: Profile, statistics: Statistics, **more: Any) -> PairRules:
        """Take the rules of a study's resolved statistics, and `more` of the other fields."""
        return cls(
            strict=profile == "strict",
            level=statistics.level,
            adjust=statistics.adjust,
            draws=statistics.bootstrap_draws,
            seed=statistics.bootstrap_seed,
            **more,
        )

    def metadata(self) -> dict[str, str]:
        """Return what the numbers of a table depend on, for its file."""
        return {
            "profile": "strict" if self.strict else "paper",
            "scale": self.scale,
            "level": f"{self.level:g}",
            "adjust": self.adjust,
            "margin": f"{self.margin:g}",
            "bootstrap_draws": str(self.draws),
            "bootstrap_seed": str(self.seed),
        }


def pair_tables(files: pairs.ScoreFiles, rules: PairRules) -> dict[str, pl.DataFrame]:
    """Compute the tables that the files have data for, by name: `TABLES`, and `published_*`.

    Parameters
    ----------
    files: of `stats.pairs.read_score_files`.
    """
    tables: dict[str, pl.DataFrame] = {}
    bootstrap: Any = {"level": rules.level, "draws": rules.draws, "seed": rules.seed}
    if files.pair_scores is not None:
        tables["tables6_7_t_values"] = pairs.t_tests(
            files.pair_scores, paired=rules.strict, scale=rules.scale
        )
        tables["variance"] = pairs.style_components(files.pair_scores)
    if files.answers is not None:
        detail = pairs.winobias(files.answers, **bootstrap)
        tables["tables10_17_winobias"] = detail
        tables["table3_winobias"] = pairs.winobias_summary(detail)
    joined = files.outcomes
    if joined is not None:
        scores = pairs.bias_scores(joined, adjust=rules.adjust, **bootstrap)
        effects = pairs.effects(joined, adjust=rules.adjust, **bootstrap)
        tables["bias_scores"] = scores
        tables["style_effects"] = effects
        tables["style_scopes"] = pairs.style_scopes(joined, level=rules.level, adjust=rules.adjust)
        tables["stability"] = pairs.stability(effects, margin=rules.margin)
        tables["size"] = _sizes(scores, effects, rules)
        if files.pair_scores is not None:
            judged = {"all": (scores, effects)}
            for part in pairs.DIRECTIONS:
                sides = pairs.pair_outcomes(files.pair_scores.filter(direction=part))
                judged[part] = (
                    pairs.bias_scores(sides, **bootstrap), pairs.effects(sides, **bootstrap)
                )  # fmt: skip
            preferences = pairs.preferences(files.pair_scores)
            tables["tables8_9_scores"] = pairs.with_intervals(preferences, judged)
            tables["table2_summary"] = pairs.summary(
                tables["tables8_9_scores"], effects, strict=rules.strict
            )
    tables |= _published(files.printed, rules)
    order = [name for name in TABLES if name in tables]
    rest = [name for name in tables if name not in TABLES]
    return {name: tables[name] for name in (*order, *rest) if tables[name].height}


def _sizes(scores: pl.DataFrame, effects: pl.DataFrame, rules: PairRules) -> pl.DataFrame:
    by = ["model", "score", "probe", "bias_type", "style"]
    both = scores.select(*by, "value").join(effects.select(*by, "effect"), on=by, how="left")
    return pairs.model_size(both, known_sizes(scores, rules), level=rules.level)


def _published(printed: Mapping[str, pl.DataFrame], rules: PairRules) -> dict[str, pl.DataFrame]:
    checks, rows = zhao2025.check_published(printed)
    tables = dict(rows)
    if checks:
        tables["published_checks"] = pl.DataFrame(
            [
                {"table": check.table, "claim": check.claim, "holds": check.holds, "of": check.of,
                 "exceptions": "; ".join(check.exceptions)}
                for check in checks
            ]
        )  # fmt: skip
    if "tables8_9" in printed:
        effects = zhao2025.style_effects(printed["tables8_9"])
        sizes = known_sizes(effects, rules)
        tables["published_size"] = pairs.model_size(effects, sizes, level=rules.level)
    if "tables6_7" in printed:
        tables["published_tables6_7"] = zhao2025.t_values(printed["tables6_7"])
    return tables


def known_sizes(table: pl.DataFrame, rules: PairRules) -> dict[str, float]:
    """Return the parameters of a table's models: of the rules, else of their names."""
    known = {**pairs.sizes_in_names(table["model"]), **rules.sizes}
    models = set(table["model"])
    return {model: float(size) for model, size in known.items() if model in models}


def read_study_pairs(
    store: Store, study: Study, record: Record
) -> tuple[dict[str, pl.DataFrame], PairRules, list[str]]:
    """Compute the tables of an OUT that holds pair scores or answers; nothing is written.

    Parameters
    ----------
    study: as it is to be judged.
    record: of the OUT, with the sizes of its models.

    Returns
    -------
    The tables of `pair_tables`, their rules, and what a reader must know before relying on them.

    Raises
    ------
    DataError: there are none, or they are malformed.
    """
    folders = [name for name in ("pair_scores", "coreference") if store.exists(name)]
    if not folders:
        raise DataError(
            "holds no scores of pairs", where=store.uri, cure="finish the study with `raybias run`"
        )
    files = pairs.read_score_files([store.uri_of(name) for name in folders])
    rules = PairRules.of(study.profile, study.statistics, sizes=record.parameters)
    cautions = [*_turned(files, record), *_cautions(store, study, files)]
    return pair_tables(files, rules), rules, cautions


def _turned(files: pairs.ScoreFiles, record: Record) -> Iterator[str]:
    """Report how many preferences turn with the other token that could begin sentences."""
    if files.pair_scores is None:
        return
    known = files.pair_scores.filter(pl.col("turned").is_not_null())
    counts = known.group_by("model", "score", "probe", maintain_order=True).agg(
        pl.len(), pl.col("turned").sum()
    )
    for model, score, probe, n, turned in counts.iter_rows():
        first, other = record.begin_tokens.get(model, ("a token", "another"))
        verb = "turns" if turned == 1 else "turn"
        yield (
            f"{model}: {turned:,} of {wording.counted(n, 'preference')} of {probe} by {score} "
            f"{verb} where sentences begin with {other} instead of {first}, which was used here."
        )


def _cautions(store: Store, study: Study, files: pairs.ScoreFiles) -> Iterator[str]:
    """Report pairs that were not read, and those that a style left as they were."""
    for probe in study.pairs:
        name = f"items/{probe.name}.parquet"
        if not store.exists(name):
            continue
        items = as_frame(store.read_table(name, schema=_counted(probe.source)))
        if "kept" in items.columns:
            for row in _by_style(items.filter(pl.col("kept").fill_null(False)), ()):
                yield (
                    f"{row['style']} left {wording.counted(row['n'], 'pair')} of {probe.name} as "
                    "they were, for want of an adequate rewording; they hold its effect down."
                )
        there = files.pair_scores if "bias_type" in items.columns else files.answers
        if there is not None:
            yield from _unread(items, there.filter(probe=probe.name), probe.name)


def _counted(source: str) -> pa.Schema:
    """Return the columns of a probe's pairs by which they are counted."""
    names = ("style", "pair_id", "kept", "bias_type")
    return pa.schema([each for each in pair_probes[source].schema if each.name in names])


def _unread(items: pl.DataFrame, there: pl.DataFrame, probe: str) -> Iterator[str]:
    expected = {row["style"]: row["n"] for row in _by_style(items, ())}
    by = [name for name in ("model", "score") if name in there.columns]
    for row in _by_style(there, by):
        missing = expected.get(row["style"], 0) - row["n"]
        if missing > 0:
            yield (
                f"{' by '.join(row[name] for name in by)} lacks "
                f"{wording.counted(missing, 'pair')} of {probe} under {row['style']}: the study is "
                "not finished."
            )


def _by_style(frame: pl.DataFrame, by: Sequence[str]) -> list[dict[str, Any]]:
    """Count the pairs of each style."""
    counts = frame.group_by(*by, "style", maintain_order=True).agg(
        n=pl.col("pair_id").n_unique().cast(pl.Int64)
    )
    return counts.to_dicts()


def read_pair_tables(store: Store) -> dict[str, pl.DataFrame]:
    """Read the tables of pairs that `write_report` wrote, by name."""
    there = {name: f"tables/{name}.parquet" for name in TABLES}
    return {n: read_frame(store, f) for n, f in there.items() if store.exists(f)}
