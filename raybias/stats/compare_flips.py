"""Count the answers that change from one arm to another, and ask where they do.

Many answers can change while no gap does (*masked flips*). Some always do: two runs of one arm
differ too, and that is the noise floor. A sentence is one observation, whatever the number of
runs; McNemar's test takes sentences as independent, which those of one template are not.

Shapes: R runs, I items, T templates, D draws.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy import stats

from raybias import schema
from raybias.seeding import generator
from raybias.stats.compare_arms import Matched
from raybias.stats.components import Balanced, Doubles
from raybias.stats.metric import shares
from raybias.stats.metric_types import Share

#: Whether no label could be read from an answer.
UNREAD: Final = pl.col("pred").is_null() | pl.col("parsed").not_().fill_null(value=False)
_DRAWS: Final = 1_000
#: Sort keys held at once; 8 MiB.
_CHUNK_ENTRIES: Final = 1 << 20
_NAMES: Final = (*schema.KEYS, "attribute")
Labels = npt.NDArray[np.int8]


def event_flips(arms: Matched, metrics: Sequence[str]) -> pl.DataFrame:
    """Count the sentences on which a rate's event became more frequent, and those on which rarer.

    With one run on either side these are the flips of a 2 x 2 table.

    Returns
    -------
    The keys, attribute, group and rate; `flips_up`, `flips_down`, and `p_flips`, two-sided, of
    McNemar's exact test (null without a flip).
    """
    tables = [_of_rate(arms, rate, share) for rate, share in shares(metrics).items()]
    counted = pl.concat(tables)
    p_values = [
        stats.binomtest(up, up + down).pvalue if up + down else None
        for up, down in counted.select("flips_up", "flips_down").iter_rows()
    ]
    return counted.with_columns(p_flips=pl.Series(p_values, dtype=pl.Float64))


def _of_rate(arms: Matched, rate: str, share: Share) -> pl.DataFrame:
    by = [*_NAMES, "group"]
    one, other = (
        arm.filter(share.among)
        .group_by(*by, "item_id")
        .agg(event=share.holds.fill_null(False).mean())
        for arm in (arms.base, arms.candidate)
    )
    more = pl.col("event_right") - pl.col("event")
    return (
        one.join(other, on=[*by, "item_id"], nulls_equal=True)
        .group_by(by)
        .agg(flips_up=(more > 1e-9).sum(), flips_down=(more < -1e-9).sum())
        .with_columns(rate=pl.lit(rate))
        .cast({pl.Categorical: pl.String})
        .sort(by)
    )


def answer_flips(arms: Matched, *, level: float) -> Iterator[Mapping[str, object]]:
    """Compare, by attribute, the answers that differ between the arms and between runs of one arm.

    Returns
    -------
    Rows of the keys and attribute; `answers` of a run; each arm's accuracy on them, and the share
    that cannot be read; `between`, the
    share of answers that differ between the arms, at equal seeds where they have them; `within`,
    between two runs of one arm (null where each has one run); `excess` of the first over the
    second, with `low` and `high` over templates; and `p_even`, whether changed answers are spread
    over groups as chance would: by permutation of the groups within templates.
    """
    for attribute, base in arms.base.group_by("attribute", maintain_order=True):
        candidate = arms.candidate.filter(attribute=attribute[0])
        items = base.filter(run_id=base["run_id"][0])
        labels = [_labels(part, items.height) for part in (base, candidate)]
        gold_I = items["label"].to_numpy()
        right = [float((own == gold_I).mean()) for own in labels]
        unread = [part.select(UNREAD.mean()).item() for part in (base, candidate)]
        between_I = _between(*labels, paired=arms.paired)
        within = [_between(own, own, paired=False) * _apart(own) for own in labels if len(own) > 1]
        row: dict[str, object] = {
            **dict(zip(schema.KEYS, arms.keys, strict=True)),
            "attribute": attribute[0], "answers": items.height, "between": float(between_I.mean()),
            "base_accuracy": right[0], "candidate_accuracy": right[1],
            "base_unread": unread[0], "candidate_unread": unread[1],
            "within": None, "excess": None, "low": None, "high": None,
        }  # fmt: skip
        if within:
            within_I = np.mean(within, axis=0)
            excess_I = between_I - within_I
            low, high = _over_templates(excess_I, items["template_id"], level)
            row |= {"within": float(within_I.mean()), "excess": float(excess_I.mean()),
                    "low": low, "high": high}  # fmt: skip
        key = (*arms.keys, str(attribute[0]))
        yield {**row, "p_even": _evenness(between_I, items, key)}


def _labels(predictions: pl.DataFrame, items: int) -> Labels:
    """Labels [R, I]; -1 where none could be read."""
    return predictions["pred"].fill_null(-1).to_numpy().reshape(-1, items)


def _between(one_RI: Labels, other_RI: Labels, *, paired: bool) -> Doubles:
    """Share [I] of pairs of runs that differ: runs of equal place, or every run with every one."""
    if paired:
        return np.asarray((one_RI != other_RI).mean(axis=0))
    values = np.unique(np.concatenate([one_RI, other_RI]))
    agree = ((one_RI == value).mean(axis=0) * (other_RI == value).mean(axis=0) for value in values)
    return np.asarray(1 - sum(agree))


def _apart(runs_RI: Labels) -> float:
    """Take the pairs of a run with itself, which never differ, out of a share of all pairs."""
    return len(runs_RI) / (len(runs_RI) - 1)


def _over_templates(values_I: Doubles, templates: pl.Series, level: float) -> tuple[float, float]:
    """Interval of a mean over sentences when templates are drawn; NaN where nothing varies."""
    names, place = np.unique(templates.cast(pl.String).to_numpy(), return_inverse=True)
    sizes_T, sums_T = np.bincount(place), np.bincount(place, values_I)
    mean = values_I.mean()
    parts_T = mean + len(names) * (sums_T - mean * sizes_T) / len(values_I)
    if len(names) < 2:
        return np.nan, np.nan
    low, high = Balanced(parts_T, ("template",)).estimate().interval(level)
    return float(low), float(high)


def _evenness(changed_I: Doubles, items: pl.DataFrame, key: Sequence[str]) -> float | None:
    """Test by permutation within templates whether groups differ in their changed answers."""
    place = np.argsort(items["template_id"].cast(pl.String).to_numpy(), kind="stable")
    groups = items["group"].cast(pl.String).to_numpy()[place]
    _, template = np.unique(
        items["template_id"].cast(pl.String).to_numpy()[place], return_inverse=True
    )
    names, group = np.unique(groups, return_inverse=True)
    changed_I = changed_I[place]
    if len(names) < 2 or not np.ptp(changed_I):
        return None
    member_IG = np.eye(len(names))[group]
    weights_G = 1 / member_IG.sum(axis=0)

    def unevenness(changed_DI: Doubles) -> Doubles:
        return np.asarray((changed_DI @ member_IG) ** 2 @ weights_G)

    (observed,) = unevenness(changed_I[None])
    random, reached, left = generator("flips", *key), 0, _DRAWS
    while left:
        draws = min(left, max(1, _CHUNK_ENTRIES // len(changed_I)))
        order_DI = np.argsort(template + random.random((draws, len(changed_I))), axis=1)
        reached += int((unevenness(changed_I[order_DI]) >= observed - 1e-9).sum())
        left -= draws
    return (reached + 1) / (_DRAWS + 1)
