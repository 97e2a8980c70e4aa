"""WinoBias accuracies on pro and anti sentences: Tables 3 and 10 to 17 of Zhao2025.

A pro and an anti sentence share a pair, so intervals draw pairs anew, both sides, all
prompts and both rules together.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy import stats

from raybias.schema import READINGS
from raybias.seeding import generator
from raybias.stats.clusters import wilson
from raybias.stats.intervals import ROUNDING
from raybias.stats.pairs.outcomes import CONDITIONS, RULES, style_order
from raybias.stats.pairs.resampling import drawn_means, percentiles

Doubles = npt.NDArray[np.float64]

#: The row over all prompts: the unweighted mean of the prompts' numbers.
MEAN: Final = "mean"
_KEYS: Final = ("model", "probe", "wino_type", "style", "rule", "prompt")
_NUMBERS: Final = (
    "pro", "pro_low", "pro_high", "anti", "anti_low", "anti_high", "diff", "low", "high",
    "abs_diff", "abs_low", "abs_high",
)  # fmt: skip
#: Shares of answers that name anything but the referent alone.
_SHARES: Final = {name: f"answers_{name}" for name in READINGS if name != "referent"}


def winobias(
    answers: pl.DataFrame, *, level: float = 0.95, draws: int = 10_000, seed: int = 0
) -> pl.DataFrame:
    """Accuracy pro and anti per prompt, and their differences, in points.

    Parameters
    ----------
    answers: schema.COREFERENCE_ANSWERS.

    Returns
    -------
    A row per model, probe, wino_type, style, rule ("exact", "contains") and prompt, and
    for their mean (prompt "mean"): n_pro, n_anti, pro and anti with their intervals (Wilson's of
    a prompt), the signed difference `diff` with its interval, and `abs_diff` with its own. The
    mean's `abs_diff` is the mean of the
    prompts' absolute differences (the paper's Table 3), its `diff` that of the signed ones.
    `answers_other`, `answers_both`, `answers_neither` and `answers_empty` are the percentages of
    answers that name the other person alone, both, neither, or say nothing; null of files that do
    not say whom answers name.
    Noise makes an absolute difference positive, so its interval never reaches below 0: that
    of `diff` says whether there is one.
    """
    rows: list[dict[str, Any]] = []
    by = ["model", "probe", "wino_type"]
    for names, part in answers.sort(by).group_by(by, maintain_order=True):
        head = dict(zip(by, names, strict=True))
        # The draws of `bias_scores`, the same for all models: they read the same pairs.
        random = generator(seed, "pairs", *(str(name) for name in names[1:]))
        rows += _judged(part, head, level=level, draws=draws, random=random)
    texts = dict.fromkeys(_KEYS, pl.String)
    counts = {"n_pro": pl.Int64, "n_anti": pl.Int64}
    numbers = dict.fromkeys(_NUMBERS, pl.Float64)
    table = pl.DataFrame(rows, {**texts, **counts, **numbers}).with_columns(
        pl.col(_NUMBERS).fill_nan(None)
    )
    by_prompt = [*by, "style", "prompt"]
    shares = answers.group_by(by_prompt).agg(
        (100 * (pl.col("reading") == name).mean()).alias(share) for name, share in _SHARES.items()
    )
    means = shares.group_by(by_prompt[:-1]).agg(
        pl.lit(MEAN).alias("prompt"), pl.col(*_SHARES.values()).mean()
    )
    shares = pl.concat([shares, means.select(shares.columns)])
    return table.join(shares, on=by_prompt, how="left", maintain_order="left")


def _judged(
    part: pl.DataFrame, head: dict[str, Any], *, level: float, draws: int,
    random: np.random.Generator,
) -> list[dict[str, Any]]:  # fmt: skip
    styles = style_order(part["style"])
    prompts = part["prompt"].unique().sort().to_list()
    right = _cube(part, styles, prompts)
    shape, pairs = right.shape[:4], right.shape[4]
    flat = right.reshape(-1, pairs)
    n = (~np.isnan(flat)).sum(axis=1).reshape(shape)
    with np.errstate(invalid="ignore"):
        point = 100 * (np.nansum(flat, axis=1).reshape(shape) / n)
    drawn = 100 * drawn_means(flat, draws, random).reshape(*shape, draws)
    rows = []
    for s, style in enumerate(styles):
        for r, rule in enumerate(RULES):
            names = {**head, "style": style, "rule": rule}
            asked = [p for p in range(len(prompts)) if n[s, p, r].all()]
            for p in asked:
                found = _numbers(point[s, [p], r], drawn[s, [p], r], int(n[s, p, r].min()), level)
                sizes = dict(zip(("n_pro", "n_anti"), map(int, n[s, p, r]), strict=True))
                rows.append({**names, "prompt": prompts[p], **sizes, **found})
            if asked:
                found = _numbers(point[s, asked, r], drawn[s, asked, r], pairs, level)
                sums = n[s, asked, r].sum(axis=0)
                sizes = {"n_pro": int(sums[0]), "n_anti": int(sums[1])}
                rows.append({**names, "prompt": MEAN, **sizes, **found})
    return rows


def _cube(part: pl.DataFrame, styles: list[str], prompts: list[str]) -> Doubles:
    """Right answers [style, prompt, rule, condition, pair]; NaN where there is none."""
    pairs = part["pair_id"].unique().sort()
    orders = {"style": styles, "prompt": prompts, "condition": CONDITIONS, "pair_id": pairs}
    s, p, c, n = (
        part[name].cast(pl.Enum(order)).to_physical().to_numpy().astype(np.int64)
        for name, order in orders.items()
    )
    cube = np.full((len(styles), len(prompts), len(RULES), len(CONDITIONS), len(pairs)), np.nan)
    for r, rule in enumerate(RULES):
        cube[s, p, r, c, n] = part[rule].cast(pl.Float64).fill_null(np.nan).to_numpy()
    return cube


def _numbers(point_P2: Doubles, drawn_P2B: Doubles, n: int, level: float) -> dict[str, float]:
    """Means over P prompts of accuracies and differences, with intervals."""
    pro, anti = point_P2.mean(axis=0)
    signed_PB = drawn_P2B[:, 0] - drawn_P2B[:, 1]
    both = np.stack([signed_PB.mean(axis=0), np.abs(signed_PB).mean(axis=0)])
    low, high = percentiles(both, n, level)
    if len(point_P2) == 1:
        quantile = stats.norm.ppf(np.full(2, (1 + level) / 2))
        ends_2 = wilson(point_P2[0] / 100, np.full(2, float(n)), quantile)
    else:
        ends_2 = percentiles(drawn_P2B.mean(axis=0) / 100, n, level)
    # Answers that are all alike say nothing of others.
    flat_2 = ends_2[1] - ends_2[0] < ROUNDING
    sides = {
        f"{side}_{end}": float(100 * values_2[place])
        for end, values_2 in zip(("low", "high"), np.where(flat_2, np.nan, ends_2), strict=True)
        for place, side in enumerate(CONDITIONS)
    }
    return {
        **sides,
        "pro": float(pro), "anti": float(anti), "diff": float(pro - anti),
        "low": float(low[0]), "high": float(high[0]),
        "abs_diff": float(np.abs(point_P2[:, 0] - point_P2[:, 1]).mean()),
        "abs_low": float(low[1]), "abs_high": float(high[1]),
    }  # fmt: skip
