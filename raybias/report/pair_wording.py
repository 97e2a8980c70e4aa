"""Say in sentences what pairs show: which sentence a model prefers, and what style changes.

The page and the terminal take them from here. They read finished tables and compute nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import factorial
from typing import Any

import polars as pl

from raybias.report import wording
from raybias.stats.intervals import Adjust
from raybias.stats.pairs import FEWEST_MODELS, ORIGINAL, PAIR_SCOPES, VERDICTS, WEIGHTED


def headline(scores: pl.DataFrame) -> str:
    """State the clearest score of the originals over all pairs, and how many differ from no bias.

    Parameters
    ----------
    scores: of `stats.pairs.bias_scores`.
    """
    whole = _whole(scores)
    if whole.height == 1:
        return sentence(whole.row(0, named=True), wording.metric_keys(whole))
    found = whole.filter(pl.col("survives").fill_null(False))
    total = wording.counted(whole.height, "score")
    if found.is_empty():
        return f"No model is shown to prefer one side: none of {total} differs from no bias."
    distance = (pl.col("value") - pl.col("neutral")).abs()
    clearest = found.sort("p_value", distance, descending=[False, True]).row(0, named=True)
    verb = "differs" if found.height == 1 else "differ"
    said = (
        f"{sentence(clearest, wording.metric_keys(whole))} {found.height} of {total} {verb} from "
        "no bias."
    )
    higher = found.filter(pl.col("value") > pl.col("neutral")).height
    ends = ((higher, "to the stereotype"), (found.height - higher, "away from the stereotype"))
    leans = [f"{n} {'leans' if n == 1 else 'lean'} {where}" for n, where in ends if n]
    return f"{said} {wording.listed(leans)}." if leans else said


def findings(scores: pl.DataFrame) -> Iterator[str]:
    """Yield a sentence for each score of the originals, where the headline is not that sentence."""
    whole = _whole(scores)
    if whole.height > 1:
        keys = wording.metric_keys(whole)
        yield from (sentence(row, keys) for row in whole.iter_rows(named=True))


def sentence(row: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Say one score over all pairs, with its interval and the result of its test.

    Parameters
    ----------
    row: of `stats.pairs.bias_scores`.
    keys: the columns that name its metric.
    """
    name, pairs = wording.classifier_name(row, keys), wording.counted(row["n"], "pair")
    result = f"{interval(row)}: {reading(row)}."
    if row["neutral"]:
        prefers = f"prefers the more stereotypical sentence in {row['value']:.1f}% of {pairs}"
        return f"{name} {prefers} {result}".replace(" :", ":")
    points = wording.signed(row["value"], 1)
    return (
        f"{name} finds whom a pronoun stands for {points} points more often where the answer fits "
        f"the stereotype, over {pairs} {result}"
    ).replace(" :", ":")


def drawn(scores: pl.DataFrame) -> Iterator[str]:
    """Yield for each probe what its intervals draw: clusters of pairs, or pairs one by one.

    Parameters
    ----------
    scores: of `stats.pairs.bias_scores`.
    """
    for row in _whole(scores).unique("probe", maintain_order=True).iter_rows(named=True):
        pairs = f"{wording.counted(row['n'], 'pair')} of {row['probe'] or 'these files'}"
        if row["clusters"] is None:
            yield (
                f"The {pairs} are drawn one by one, as if each had been made for itself: in which "
                "clusters they were made, such as by one writer, is not known."
            )
        else:
            yield (
                f"The {pairs} come in {wording.counted(row['clusters'], 'cluster')} that are "
                "alike, such as those of one writer, and clusters are drawn."
            )


def scope_headline(scopes: pl.DataFrame) -> str:
    """Say at which step findings are lost: where pairs are redrawn, or where styles are too.

    Parameters
    ----------
    scopes: of `stats.pairs.style_scopes`.
    """
    whole = scopes.filter(bias_type=WEIGHTED)
    found = {s: int(whole.filter(scope=s)["survives"].sum()) for s in PAIR_SCOPES}
    total = whole.filter(scope=PAIR_SCOPES[0]).height
    differs = "differs" if found["pairs"] == 1 else "differ"
    return (
        f"Averaged over styles, {found['pairs'] or 'none'} of {wording.counted(total, 'score')} "
        f"{differs} from no bias if only pairs are redrawn, and {found['styles'] or 'none'} if "
        "styles are too."
    )


def interval(row: Mapping[str, Any]) -> str:
    """`[54.7, 59.7]` of a preference, `[+1.2, +3.4]` of a difference; empty without one."""
    if row["low"] is None or row["high"] is None:
        return ""
    if row["neutral"]:
        return f"[{row['low']:.1f}, {row['high']:.1f}]"
    return wording.span(row["low"], row["high"], 1)


def reading(row: Mapping[str, Any]) -> str:
    """Say whether a score differs from no bias, by interval and test."""
    none = f"{row['neutral']:g}" + ("%" if row["neutral"] else "")
    if row["significant"] is None:
        return "not judged"
    if row["survives"]:
        return f"differs from {none}"
    if row["significant"]:
        return f"differs from {none} alone, not after correction"
    return f"not shown to differ from {none}"


def style_headline(counts: Mapping[str, int]) -> str:
    """Say in how many metrics the conclusion depends on style.

    Parameters
    ----------
    counts: of metrics over all pairs, by verdict (`stats.pairs.VERDICTS`).
    """
    total = sum(counts.values())
    changed = sum(counts.get(name, 0) for name in list(VERDICTS)[:3])
    moved = counts.get("moves, sign kept", 0)
    of = wording.counted(total, "metric")
    if changed:
        return f"The conclusion depends on style in {changed} of {of}."
    if moved:
        return f"Style moves {moved} of {of}, but no conclusion changes its sign."
    return f"No style is shown to move any of {of}."


def style_findings(effects: pl.DataFrame, *, strict: bool) -> Iterator[str]:
    """Yield a sentence per style and direction of what it moves.

    Parameters
    ----------
    effects: of `stats.pairs.effects`, over all pairs.
    strict: whether our tests decide what moves; else the paper's.
    """
    mark = pl.col("survives" if strict else "paper").fill_null(False)
    named = effects.with_columns(up=pl.col("effect") > 0)
    by = ["style", "neutral", "up"]
    for (style, neutral, up), part in named.filter(mark).group_by(by, maintain_order=True):
        what = "preference" if neutral else "pro \N{MINUS SIGN} anti"
        moved = f"{wording.spaced(str(style))} {'raises' if up else 'lowers'} {what}"
        metrics = named.filter(style=style, neutral=neutral).height
        sizes = sorted(part["effect"].abs())
        if metrics == 1:
            row = part.row(0, named=True)
            yield f"{moved} by {sizes[0]:.1f} points {wording.span(row['low'], row['high'], 1)}"
        else:
            ends = " to ".join(dict.fromkeys(f"{size:.1f}" for size in (sizes[0], sizes[-1])))
            yield f"{moved} in {part.height} of {metrics} metrics, by {ends} points"


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
        "test, which ignores that the two styles have the same pairs, marks "
        f"{marked.sum()} of {len(marked)}."
    )


def lists(t_values: pl.DataFrame, *, paired: bool) -> str:
    """Count the tests between lists of sentence scores that are beyond 1.96.

    Parameters
    ----------
    t_values: of `stats.pairs.t_tests`.
    paired: whether the tests are.
    """
    same_style = pl.col("first").str.replace("_stereo$", "_anti") == pl.col("second")
    sides = t_values.filter(same_style, pl.col("t_value").is_not_null())
    higher, lower = (
        sides.filter("marked", sign * pl.col("t_value") > 0).height for sign in (1, -1)
    )
    return (
        f"{t_values['marked'].sum():,} of {t_values['t_value'].count():,} "
        f"{'paired' if paired else 'independent'} t tests of two lists have |t| above 1.96. "
        "Within one style, the stereotyping sentences score significantly higher than the others "
        f"in {higher} of {wording.counted(sides.height, 'test')}, and lower in {lower}."
    )


def too_few_models(n_models: int) -> str:
    """Say that so few models of known size give no trend."""
    models = wording.counted(n_models, "model", "different models")
    return (
        f"There {'is' if n_models == 1 else 'are'} {models} here whose number of parameters is "
        f"known, and no trend is given: with fewer than {FEWEST_MODELS} that differ, which models "
        "were chosen would decide it."
    )


def trends(sizes: pl.DataFrame) -> Iterator[str]:
    """Yield a sentence per metric on the originals over all pairs, and one on all trends.

    Parameters
    ----------
    sizes: of `stats.pairs.model_size`.
    """
    whole = sizes.filter(bias_type=WEIGHTED, style=ORIGINAL, quantity="value")
    for row in whole.iter_rows(named=True):
        yield (
            f"{row['probe'] or 'pairs'} ({row['score']}), originals: over {row['n_models']} models "
            f"of {wording.magnitude(row['smallest'])} to {wording.magnitude(row['largest'])} "
            f"parameters, each tenfold goes with {wording.signed(row['slope'], 1)} points "
            f"{wording.span(row['low'], row['high'], 1)}; rank correlation "
            f"{wording.signed(row['spearman'], 2)}, p {wording.probability(row['p_value'])}."
        )
    alone, corrected = (
        sizes.filter(pl.col(name) <= 0.05).height for name in ("p_value", "q_value")
    )
    models = int(sizes["n_models"].max())  # type: ignore[arg-type]
    yield (
        f"Of {sizes.height:,} rank correlations of scores and effects with size, {alone} "
        f"have p at most 0.05, and {corrected} after correction. {models} models in perfect "
        f"order have p {wording.probability(2 / factorial(models))}, the least possible."
    )


def _whole(scores: pl.DataFrame) -> pl.DataFrame:
    """Return the originals over all pairs; all of them where a probe's files lack the style."""
    return scores.filter(bias_type=WEIGHTED, style=ORIGINAL)
