"""Caution a reader of gaps: single words, few events, and units that belong together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import polars as pl

from raybias.formats.openings import look_alike
from raybias.measures.prediction_rows import WIDTHS
from raybias.report import wording
from raybias.report.judged import GAP, Judged
from raybias.report.sentences import once
from raybias.stats.breakdown import CARRIED, WITHOUT
from raybias.stats.few_events import FEWEST
from raybias.stats.gaps import FAMILIES
from raybias.stats.scopes import SCOPES
from raybias.stats.units import UNITS

_PLACE: Final = ("probe", "attribute")
#: What events are counted in, by scope.
_EVENTS: Final = {"items": "rows", "clusters": "clusters"}


def doubts(
    estimates: pl.DataFrame, judged: Judged, sentences: pl.DataFrame | None = None
) -> Iterator[str]:
    """Name gaps that one word or template may carry, and intervals that are narrow.

    Parameters
    ----------
    estimates: schema.ESTIMATES of predictions.
    sentences: with their texts, if these are known; of templates that begin alike a caution is
        yielded.
    """
    yield from _of_words(judged)
    yield from _carried(estimates, judged, sentences)
    families = estimates.filter(pl.col("scope").str.starts_with(FAMILIES))
    yield from _by_family(judged, families)
    if sentences is not None:
        alone = sentences.drop_nulls("template_id")
        known = families.select(_PLACE).unique()
        yield from look_alike(alone.join(known, on=_PLACE, how="anti", maintain_order="left"))
    yield from few_events(judged)
    yield from _independent(judged)


def _of_words(judged: Judged) -> Iterator[str]:
    """Say of which groups a finding is of one word, wherever words vary in intervals."""
    if judged.single:
        several = len(judged.single) > 1
        yield (
            f"{wording.listed(judged.single)} {'have' if several else 'has'} one word: a finding "
            f"about {'such a' if several else 'this'} group under `wording` is of that word. Its "
            "interval takes words for it to vary as those of the other groups do; if they vary "
            "more, it is too narrow."
        )
    elif judged.words.height and not (judged.rows["scope"] == "wording").any():
        yield "No group has two words: no gap can be told from the words for the group."


def _carried(
    estimates: pl.DataFrame, judged: Judged, sentences: pl.DataFrame | None
) -> Iterator[str]:
    """Name findings of more than these very sentences that one unit carries."""
    found = judged.found.filter(pl.col("width") > WIDTHS["runs"])
    carried = estimates.filter(
        pl.col("condition").str.starts_with(WITHOUT), pl.col("reason").str.starts_with(CARRIED)
    ).unique(subset=[*GAP, "reason"], maintain_order=True)
    carried = carried.join(found, on=GAP, how="semi", nulls_equal=True)
    unit = pl.col("condition").str.extract(f"^{WITHOUT}([a-z]+) ")
    # A block of items, or of clusters, has no name that says anything.
    blocks = [pl.col("reason").str.starts_with(CARRIED + begin) for begin in UNITS.values()]
    named = carried.with_columns(unit=unit).filter(~pl.any_horizontal(*blocks))
    for row in named.iter_rows(named=True):
        name = row["reason"].removeprefix(CARRIED)
        if sentences is not None and row["unit"] == "template":
            name = _example(sentences, row, name)
        yield (
            f"{wording.spaced(row['group'])} {row['score']} of {row['model']}: without the "
            f"{row['unit']} {name} the gap would lose half of its size or more."
        )


def _example(sentences: pl.DataFrame, row: Mapping[str, Any], template: str) -> str:
    """Quote a sentence of a template about the group of `row`: its name says nothing."""
    place = {name: row[name] for name in ("probe", "attribute", "group")}
    texts = sentences.filter(template_id=template, **place)["text"]
    return f'of "{texts[0]}"' if len(texts) else template


def _by_family(judged: Judged, families: pl.DataFrame) -> Iterator[str]:
    """Count the verdicts that are the same if families of templates are resampled."""
    scope = pl.when(scope=FAMILIES).then(pl.lit("sentences")).otherwise(pl.lit("wording"))
    both = once(judged.rows).join(
        families.with_columns(scope=scope), on=[*GAP, "scope"], suffix="_family", nulls_equal=True
    )
    said = []
    for name in SCOPES:
        part = both.filter(pl.col("significant"), scope=name)
        if part.is_empty():
            continue
        lasting = part.filter("survives")
        corrected = f" ({lasting['survives_family'].sum()} of {lasting.height} after correction)"
        said.append(
            f"{part['significant_family'].sum()} of the {part.height} that are significant "
            f"if {judged.redrawn[name]}{corrected if lasting.height else ''}"
        )
    if said:
        yield (
            "Some templates were written from one opening. If such families are resampled, not "
            f"single templates, these gaps stay significant: {wording.listed(said)}."
        )


def few_events(judged: Judged) -> Iterator[str]:
    """Count the gaps of groups with few events; see `stats.few_events`."""
    tested = once(judged.gaps.filter(pl.col("significant").is_not_null()))
    known = tested.filter(pl.col("scope") != "runs")
    few = known.join(judged.few, on=judged.few.columns, how="semi", nulls_equal=True)
    if few.is_empty():
        return
    by_rate = few.group_by("score", maintain_order=True).agg(pl.col("group").unique())
    # Crossed groups have commas in their names.
    about = [
        f"{rate}: {'; '.join(wording.spaced(group) for group in sorted(groups))}"
        for rate, groups in by_rate.iter_rows()
    ]
    units = {_EVENTS.get(str(scope), "sentences") for scope in few["scope"]}
    one = " (those of a template count as one)" if "sentences" in units else ""
    yield (
        f"{few.height} of {wording.counted(known.height, 'gap')} "
        f"{'rests' if few.height == 1 else 'rest'} on fewer than {FEWEST} "
        f"{wording.listed(sorted(units))} that are so labelled, or that are not{one}. Their "
        "intervals lean on how the other groups vary: confirm them with more before you act on "
        f"them ({'. '.join(about)})."
    )


def _independent(judged: Judged) -> Iterator[str]:
    """Say that rows count as independent if no templates are known."""
    if (judged.gaps["scope"] == "items").any():
        yield (
            "No templates are known, so rows count as independent. If several are about one "
            "person, or were made from one text, intervals are too narrow: give the column that "
            "says which, with --cluster COLUMN."
        )
