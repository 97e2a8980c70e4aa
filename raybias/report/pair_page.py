"""Pairs on a page: what models prefer, whether that holds under every style, and the numbers.

It reads finished tables and computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import factorial
from typing import Final

import polars as pl
from markupsafe import Markup

from raybias.report import figure_style, pair_scores, summary_tables, wording
from raybias.report.figures import Drawn
from raybias.report.summary_tables import SummaryTable
from raybias.stats.intervals import Adjust
from raybias.stats.pairs import AVERAGES, FEWEST_MODELS, ORIGINAL, VERDICTS, WEIGHTED

_KEYS: Final = ["model", "score", "probe"]


@dataclass(frozen=True)
class PairFigures:
    """The drawn figures of pairs."""

    scores: Sequence[Drawn]
    """Of `score_figures`."""
    effects: Sequence[Drawn]
    """Of `effect_figures`."""
    lists: Sequence[Drawn]
    """Of `t_figures`."""


@dataclass(frozen=True)
class StylePart:
    """What the page says of styles beside the original."""

    headline: str
    findings: tuple[str, ...]
    """What each style moves, over all pairs."""
    verdicts: tuple[tuple[str, int, str], ...]
    """Each verdict given, how often over all pairs of a metric, and its definition."""
    survivors: str
    tables: tuple[SummaryTable, ...]
    figures: tuple[Markup, ...]


@dataclass(frozen=True)
class PairSection:
    """What the page says of pairs."""

    headline: str
    findings: tuple[str, ...]
    """What each score says, over all pairs."""
    tables: tuple[SummaryTable, ...]
    """Scores, to read."""
    figures: tuple[Markup, ...]
    styles: StylePart | None
    """None where there is the original alone."""
    details: tuple[SummaryTable, ...]
    """To look up; folded."""
    lists: str
    """How many t tests between lists of sentence scores are beyond 1.96."""
    list_figures: tuple[Markup, ...]
    size: tuple[str, ...]
    """How scores go with model size, or why that is not said."""
    percent: str
    strict: bool
    corrected: bool


def pair_section(
    tables: Mapping[str, pl.DataFrame],
    figures: PairFigures,
    *,
    sizes: Mapping[str, float],
    strict: bool,
    level: float,
    adjust: Adjust,
) -> PairSection:
    """Put the tables of `pair_tables` into words.

    Parameters
    ----------
    tables: of `pair_tables`, with `bias_scores`.
    sizes: parameters of the models that are known.
    strict: whether tests of lists are paired.
    level: of the intervals.
    adjust: the correction behind `survives`.
    """
    scores = tables["bias_scores"]
    found = [*pair_scores.tables(tables), pair_scores.read_pairs(scores)]
    return PairSection(
        headline=pair_scores.headline(scores),
        findings=tuple(pair_scores.findings(scores)),
        tables=tuple(found),
        figures=_inlined(figures.scores, "s"),
        styles=_styles(tables, figures.effects, strict, adjust)
        if "style_effects" in tables
        else None,
        details=tuple(_looked_up(tables)),
        lists=_lists(tables),
        list_figures=_inlined(figures.lists, "t"),
        size=tuple(_size(tables, sizes)),
        percent=f"{100 * level:g}%",
        strict=strict,
        corrected=adjust != "none",
    )


def survivors(effects: pl.DataFrame, adjust: Adjust) -> str:
    """Count the effects of styles that are significant, by our tests and by the paper's."""
    tested = effects.filter(pl.col("p_value").is_not_null())["survives"]
    marked = effects["paper"].drop_nulls()
    how = (
        "survive Benjamini-Hochberg over the whole family"
        if adjust != "none"
        else "have an interval that excludes 0, without a correction for many tests"
    )
    return (
        f"{tested.sum()} of {len(tested)} effects of a style {how}; the paper's two-proportion z "
        f"test, which takes a pair's two styles for strangers, marks {marked.sum()} of "
        f"{len(marked)}."
    )


def _styles(
    tables: Mapping[str, pl.DataFrame], drawn: Sequence[Drawn], strict: bool, adjust: Adjust
) -> StylePart:
    stability, effects = tables["stability"], tables["style_effects"]
    whole = stability.filter(bias_type=WEIGHTED)
    counts = dict(whole.group_by("verdict").len().iter_rows())
    seen = set(stability["verdict"])
    return StylePart(
        headline=_headline(counts),
        findings=tuple(_findings(effects.filter(bias_type=WEIGHTED), strict)),
        verdicts=tuple(
            (name, int(counts.get(name, 0)), text)
            for name, text in VERDICTS.items()
            if name in seen
        ),
        survivors=survivors(effects, adjust),
        tables=tuple(_read(tables)),
        figures=_inlined(drawn, "p"),
    )


def _inlined(drawn: Sequence[Drawn], prefix: str) -> tuple[Markup, ...]:
    return tuple(
        Markup(figure_style.inline(figure.svg, f"{prefix}{place}"))
        for place, figure in enumerate(drawn)
    )


def _lists(tables: Mapping[str, pl.DataFrame]) -> str:
    if "tables6_7_t_values" not in tables:
        return ""
    table = tables["tables6_7_t_values"]
    own = pl.col("first").str.replace("_stereo$", "_anti") == pl.col("second")
    sides = table.filter(own, pl.col("t_value").is_not_null())
    higher, lower = (
        sides.filter("marked", sign * pl.col("t_value") > 0).height for sign in (1, -1)
    )
    return (
        f"{table['marked'].sum():,} of {table['t_value'].count():,} tests of two lists have |t| "
        f"above 1.96. Within one style, the stereotyping sentences are so scored higher than the "
        f"others in {higher} of {wording.counted(sides.height, 'test')}, and lower in {lower}."
    )


def _size(tables: Mapping[str, pl.DataFrame], sizes: Mapping[str, float]) -> Iterator[str]:
    """A sentence per metric on the preference of the originals, and what all trends say."""
    if "size" not in tables:
        found = wording.counted(len(sizes), "model", "different models")
        yield (
            f"There {'is' if len(sizes) == 1 else 'are'} {found} here whose number of parameters "
            f"is known, and no trend is given: with fewer than {FEWEST_MODELS} that differ, which "
            "models were chosen would decide it."
        )
        return
    table = tables["size"]
    whole = table.filter(bias_type=WEIGHTED, style=ORIGINAL, quantity="value")
    for row in whole.iter_rows(named=True):
        yield (
            f"{row['probe'] or 'pairs'} ({row['score']}), originals: over {row['n_models']} models "
            f"of {wording.magnitude(row['smallest'])} to {wording.magnitude(row['largest'])} "
            f"parameters, each tenfold goes with {wording.signed(row['slope'], 1)} points "
            f"{wording.span(row['low'], row['high'], 1)}; rank correlation "
            f"{wording.signed(row['spearman'], 2)}, p {wording.probability(row['p_value'])}."
        )
    passed = (table.filter(pl.col(name) <= 0.05).height for name in ("p_value", "q_value"))
    models = int(table["n_models"].max())  # type: ignore[arg-type]
    yield (
        f"Of {table.height:,} rank correlations of scores and effects with size, {next(passed)} "
        f"have p at most 0.05, and {next(passed)} after correction. {models} models in perfect "
        f"order have p {wording.probability(2 / factorial(models))}, and no less is possible."
    )


def _headline(counts: Mapping[str, int]) -> str:
    total = sum(counts.values())
    changed = sum(counts.get(name, 0) for name in list(VERDICTS)[:3])
    moved = counts.get("moves, sign kept", 0)
    of = wording.counted(total, "metric")
    if changed:
        return f"The conclusion depends on style in {changed} of {of}."
    if moved:
        return f"Style moves {moved} of {of}, but no conclusion changes its sign."
    return f"No style is shown to move any of {of}."


def _findings(effects: pl.DataFrame, strict: bool) -> Iterator[str]:
    """A sentence per style and direction of what it moves."""
    mark = pl.col("survives" if strict else "paper").fill_null(False)
    named = effects.with_columns(up=pl.col("effect") > 0)
    by = ["style", "test", "up"]
    for (style, test, up), part in named.filter(mark).group_by(by, maintain_order=True):
        what = "preference" if test == "mcnemar" else "pro \N{MINUS SIGN} anti"
        moved = f"{_spaced(str(style))} {'raises' if up else 'lowers'} {what}"
        metrics = named.filter(style=style, test=test).height
        sizes = sorted(part["effect"].abs())
        if metrics == 1:
            row = part.row(0, named=True)
            yield f"{moved} by {sizes[0]:.1f} points {wording.span(row['low'], row['high'], 1)}"
        else:
            ends = " to ".join(dict.fromkeys(f"{size:.1f}" for size in (sizes[0], sizes[-1])))
            yield f"{moved} in {part.height} of {metrics} metrics, by {ends} points"


def _read(tables: Mapping[str, pl.DataFrame]) -> list[SummaryTable]:
    effects = tables["style_effects"]
    found = [
        _verdict_facts(tables["stability"].filter(bias_type=WEIGHTED)),
        _effect_facts(effects.filter(bias_type=WEIGHTED)),
    ]
    if "variance" in tables:
        shares = tables["variance"].filter(bias_type="all").drop("bias_type", "total")
        title = "Shares of variance: style, content (which pair it is), and their interaction"
        found.append(summary_tables.plain(title, shares))
    return found


def _metric_keys(frame: pl.DataFrame) -> list[str]:
    """The model, and whatever else tells metrics apart."""
    return ["model", *(key for key in ("score", "probe") if frame[key].n_unique() > 1)]


def _verdict_facts(stability: pl.DataFrame) -> SummaryTable:
    keys = _metric_keys(stability)
    rows = tuple(
        (
            *(row[key] for key in keys),
            f"{row['original']:.1f}",
            f"{row['lowest']:.1f} to {row['highest']:.1f}",
            f"{row['moved']} of {row['n_styles']}",
            f"{wording.signed(row['largest_effect'], 1)} ({_spaced(row['largest_style'])})",
            _share(row["flip_share"]),
            row["verdict"],
        )
        for row in stability.iter_rows(named=True)
    )
    headers = (*keys, "original", "over styles", "styles that move it", "largest effect", "flips",
               "verdict")  # fmt: skip
    return SummaryTable("Does the conclusion hold under every style? Over all pairs", headers, rows)


def _effect_facts(effects: pl.DataFrame) -> SummaryTable:
    keys = _metric_keys(effects)
    rows = tuple(
        (
            *(row[key] for key in keys),
            _spaced(row["style"]),
            f"{row['n']:,}",
            f"{row['original']:.1f}",
            f"{row['value']:.1f}",
            f"{wording.signed(row['effect'], 1)} {wording.span(row['low'], row['high'], 1)}",
            _share(row["flip_share"]),
            wording.probability(row["q_value"]),
            "moves it" if row["survives"] else "not shown",
        )
        for row in effects.iter_rows(named=True)
    )
    headers = (*keys, "style", "pairs", "original", "under it", "effect and interval", "flips", "q",
               "reading")  # fmt: skip
    title = "Average paired effect of each style, in points, over all pairs"
    return SummaryTable(title, headers, rows)


def _spaced(style: str) -> str:
    return style.replace("_", " ")


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.1%}"


def _looked_up(tables: Mapping[str, pl.DataFrame]) -> list[SummaryTable]:
    kinds = ~pl.col("bias_type").is_in(AVERAGES)
    scores = tables["bias_scores"].select(
        *_KEYS, "bias_type", "style", "n", "ties", "value", "low", "high", "p_value", "q_value",
        "significant", "survives", "resolvable",
    )  # fmt: skip
    found = [summary_tables.plain("Every score, with its interval and test", scores)]
    if "style_effects" in tables:
        effects = tables["style_effects"].select(
            *_KEYS, "bias_type", "style", "n", "original", "value", "effect", "low", "high",
            "flip_share", "q_value", "survives", "pairs_needed", "resolvable",
        )  # fmt: skip
        found += [
            summary_tables.plain("Verdict by bias type", tables["stability"].filter(kinds).select(
                *_KEYS, "bias_type", "original", "lowest", "highest", "moved", "smallest_effect",
                "pairs_needed", "verdict")),
            summary_tables.plain("Effect of each style by bias type", effects),
        ]  # fmt: skip
    for name, title in (
        ("table2_summary", "Scores of the originals and extreme changes (Table 2)"),
        ("tables8_9_scores", "Preference scores (Tables 8 and 9)"),
        ("tables6_7_t_values", "t tests of lists of sentence scores (Tables 6 and 7)"),
        ("table3_winobias", "WinoBias, mean over prompts (Table 3)"),
        ("tables10_17_winobias", "WinoBias by prompt (Tables 10 to 17)"),
        ("size", "Trends with model size: points for each tenfold of parameters"),
    ):
        if name in tables:
            found.append(summary_tables.plain(title, tables[name]))
    return [table for table in found if table.rows]
