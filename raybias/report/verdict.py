"""Say what was found in words that need no statistics, and what may be concluded from it.

A share's gap is given in percentage points. Everything here follows from the table of gaps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import polars as pl

from raybias.report import findings, sentences, wording

_CLASSIFIER: Final = ("model", "method", "dataset", "style")


def verdict(gaps: pl.DataFrame) -> str:
    """State the largest finding: who is wrongly called what, how much more often than others.

    Parameters
    ----------
    gaps: one row each.

    Returns
    -------
    The finding of most classifiers, by size where they are equal; which gaps are not excluded
    where none was found; why nothing could be judged.
    """
    unable = " ".join(findings.no_verdicts(gaps))
    judged = gaps.filter(pl.col("significant").is_not_null())
    if judged.is_empty():
        return findings.headline(gaps)
    found = [_sentence(gaps, part) for part in ranked(gaps)]
    if found:
        more = len(found) - 1
        others = f" {wording.counted(more, 'other difference was', 'other differences were')} found"
        return " ".join([unable, found[0] + (others + "." if more else "")]).strip()
    return f"{unable} No group was shown to be treated unlike the others.{_open(judged)}".strip()


def _open(judged: pl.DataFrame) -> str:
    """Say how large a gap some interval still holds, of the first rate."""
    rate = judged["score"][0]
    ends = judged.filter(score=rate).select(pl.max_horizontal(pl.col("low", "high").abs()).max())
    return (
        f" Nor was it shown that all are treated alike: the intervals reach up to "
        f"{_size(rate, ends.item())}."
        if ends.item() is not None
        else ""
    )


def ranked(gaps: pl.DataFrame) -> list[pl.DataFrame]:
    """Split the gaps that survive by attribute, group, rate and sign, the clearest first."""
    found = sentences.once(gaps).filter(pl.col("survives").fill_null(False))
    found = found.with_columns(sign=pl.col("value").sign())
    parts = found.partition_by("attribute", "group", "score", "sign", maintain_order=True)
    return sorted(parts, key=lambda part: (part.height, part["value"].abs().median()), reverse=True)


def conclusions(gaps: pl.DataFrame) -> list[str]:
    """List what may be concluded: each finding in a sentence, and what significance is not."""
    parts = ranked(gaps)
    said = [_sentence(gaps, part) for part in parts[:_MOST]]
    if len(parts) > _MOST:
        said.append(f"{len(parts) - _MOST} more differences, which the tables below list.")
    if parts:
        said.append(
            "Significant means that chance alone seldom makes such a difference. It is not how "
            "likely another study would find it again."
        )
    return said or [verdict(gaps)]


#: So many findings are put into sentences of their own.
_MOST: Final = 4


def _sentence(gaps: pl.DataFrame, part: pl.DataFrame) -> str:
    """Say one group's difference, which is that of one classifier or of several."""
    row = part.row(0, named=True)
    group = row["group"]
    if gaps["attribute"].n_unique() > 1:
        group = f"{group} ({row['attribute']})"
    often = "more" if row["value"] > 0 else "less"
    what = f"entences about {group} are {wording.rate_title(row['score'])}"
    total = gaps.filter(attribute=row["attribute"], group=row["group"], score=row["score"]).height
    if total == 1:
        interval = _interval(row)
        return f"S{what} {_size(row['score'], row['value'])} {often} often than average{interval}."
    sizes = [_size(row["score"], value) for value in sorted(part["value"].abs())]
    by = sizes[0] if len(sizes) == 1 else f"{sizes[0].removesuffix(' points')} to {sizes[-1]}"
    return f"In {part.height} of {total} classifiers, s{what} {often} often than average, by {by}."


def _interval(row: Mapping[str, Any]) -> str:
    if row["low"] is None:
        return ""
    ends = sorted(abs(row[end]) for end in ("low", "high"))
    low, high = (_size(row["score"], end).removesuffix(" points") for end in ends)
    return f" ({low} to {high})"


def _size(rate: str, gap: float) -> str:
    """Give a gap without its sign: in percentage points where the rate is a share."""
    if wording.is_share(rate):
        return f"{100 * abs(gap):.1f} points"
    return f"{abs(gap):.3f}"


def measured(gaps: pl.DataFrame, composition: pl.DataFrame, runs: int) -> Iterator[str]:
    """Say in two sentences what was done.

    Parameters
    ----------
    composition: of `stats.composition`; counts the sentences.
    runs: of a classifier, the most.
    """
    models = gaps["model"].unique(maintain_order=True).to_list()
    named = wording.listed(models) if len(models) <= _MOST else f"{len(models)} language models"
    n = gaps.select(_CLASSIFIER).n_unique()
    classifiers = "a classifier" if n == 1 else f"{n} classifiers"
    attributes = wording.listed(gaps["attribute"].unique().sort().to_list())
    read = wording.counted(int(composition["items"].sum()), "sentence")
    times = wording.counted(runs, "time")
    yield (
        f"Of {named}, {classifiers} of sentiment {'was' if n == 1 else 'were'} made, each {times}, "
        f"and asked about {read} that differ in the group they name ({attributes})."
    )
    yield (
        "Compared is how often the sentences of a group are given a wrong label, against the "
        "average of the groups. A point is one sentence in a hundred."
    )
