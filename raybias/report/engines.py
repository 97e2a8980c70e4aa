"""Tell what of the gaps is the engine's, where several engines read one model."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from raybias.report import wording
from raybias.report.rendering import Row, TextTable, count, same, table, worded


def engine_sentences(engines: pl.DataFrame) -> Iterator[str]:
    """Say of each model of schema.ENGINES how many of its gaps turn with the engine."""
    for part in engines.partition_by("model"):
        gaps, turned = (int(part[name].sum()) for name in ("gaps", "turned"))
        said = "no gap has a verdict with each of them"
        if gaps:
            said = f"of {wording.counted(gaps, 'gap')} with a verdict by each, {turned or 'none'}"
            said += f" {'turns' if turned == 1 else 'turn'} with the engine"
        most = part.sort("furthest").row(-1, named=True)
        (number,) = part.select(pl.col("engines").max()).row(0)
        where = f"on {most['group']} {most['score']} of {most['probe']}"
        apart = f"They lie furthest apart {where}: {_apart(most)}." if most["furthest"] else (
            "Their gaps are the same."
        )  # fmt: skip
        yield f"{most['model']} was read by {number} engines: {said}. {apart}"


def engines_table(engines: pl.DataFrame) -> TextTable:
    """Show schema.ENGINES."""
    several = [name for name in ("method", "dataset", "style") if engines[name].n_unique() > 1]
    return table(
        "Engines that read the same weights",
        engines,
        {
            **same("model", *several, "probe", "attribute"),
            "rate": "score",
            "engines": count("engines"),
            "gaps with a verdict by each": count("gaps"),
            "turn": count("turned"),
            "furthest apart": lambda row: (
                f"{row['group']}: {_apart(row)}" if row["furthest"] else "the same"
            ),
            "standard deviation of engines": worded(wording.number, "sd_engine"),
            "half width of an interval": worded(wording.number, "half_width"),
        },
    )


def _apart(row: Row) -> str:
    return f"{row['high_engine']} {wording.number(row['furthest'])} above {row['low_engine']}"
