"""Compare two arms: what their gaps and answers do, as two tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import polars as pl

from raybias import schema
from raybias.stats.cells import RUN_KEYS, cells
from raybias.stats.compare_arms import Matched
from raybias.stats.compare_flips import UNREAD, answer_flips, event_flips
from raybias.stats.compare_gaps import changes, families
from raybias.stats.conclusive import of_predictions
from raybias.stats.judging import GapRules
from raybias.stats.likelihood_readout import answers
from raybias.stats.reference_groups import membership

_TEXTS: Final = ("probe", "attribute", "group", "rate")
_OTHERS: Final = ("model", "method", "dataset", "style")

#: A row per gap, and per score of pairs. The first ten columns are the contract of compare.csv.
CHANGES: Final = pl.Schema(
    {
        **dict.fromkeys(_TEXTS, pl.String()),
        **dict.fromkeys(("change", "low", "high"), pl.Float64()),
        **dict.fromkeys(("flips_up", "flips_down"), pl.Int64()),
        **dict.fromkeys(("verdict", "scope"), pl.String()),
        **dict.fromkeys(("base", "candidate", "at_most", "p_flips"), pl.Float64()),
        **dict.fromkeys(("needs", *_OTHERS), pl.String()),
    }
)
#: A row per attribute: how many answers differ.
ANSWERS: Final = pl.Schema(
    {
        **dict.fromkeys(("probe", "attribute"), pl.String()),
        "answers": pl.Int64(),
        **dict.fromkeys(("base_accuracy", "candidate_accuracy"), pl.Float64()),
        **dict.fromkeys(("base_unread", "candidate_unread"), pl.Float64()),
        **dict.fromkeys(("between", "within", "excess", "low", "high", "p_even"), pl.Float64()),
        "masked": pl.Boolean(),
        **dict.fromkeys(_OTHERS, pl.String()),
    }
)


def compare_arms(
    arms: Sequence[Matched], rules: GapRules, *, margin: float
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Judge the change of every gap, and count the answers that change.

    Parameters
    ----------
    arms: of `matched`.
    rules: of the studies: reference groups, scope, level and metrics.
    margin: the largest change of a gap that does not matter.

    Returns
    -------
    `CHANGES` and `ANSWERS`. There is no verdict where an arm cannot do the task (`conclusive`). A
    gap is `unread`, and neither better nor equivalent, where so many more answers of the candidate
    cannot be read that they can hide more than the margin: what is not read harms nobody.
    Answers are `masked` where more of them change than between two runs of one arm, while every
    gap is equivalent.
    """
    options = rules.statistics
    found = [
        family for each in arms for family in families(each, _inside(each, rules), options.metrics)
    ]
    judged = changes(found, scope=options.scope, level=options.level, margin=margin)
    withheld = dict(pair for each in arms for pair in _withheld(each, rules))
    for row in judged:
        reason = withheld.get(tuple(row[key] for key in schema.KEYS))
        if reason is not None:
            row |= {"verdict": "cannot tell", "needs": reason}
    rises = {key: rise for each in arms for key, rise in _rises(each)}
    for row in judged:
        group, rise, shares = rises.get(_of_attribute(row), ("", 0.0, (0.0, 0.0)))
        if rise > margin and row["verdict"] in ("better", "equivalent"):
            was, now = shares
            row |= {
                "verdict": "unread",
                "needs": f"unread answers on {group} rose from {was:.0%} to {now:.0%}",
            }
    flips = pl.concat(event_flips(each, options.metrics) for each in arms)
    by = [*schema.KEYS, "attribute", "group", "rate"]
    gaps = pl.DataFrame(judged, infer_schema_length=None).join(
        flips, on=by, how="left", nulls_equal=True, maintain_order="left"
    )
    gaps = typed(gaps, CHANGES)
    rows = [row for each in arms for row in answer_flips(each, level=options.level)]
    return gaps, _answers(rows, gaps)


def _answers(rows: Sequence[Mapping[str, object]], gaps: pl.DataFrame) -> pl.DataFrame:
    on = ["probe", "attribute", *_OTHERS]
    still = gaps.group_by(on).agg(still=(pl.col("verdict") == "equivalent").all())
    joined = pl.DataFrame(rows, infer_schema_length=None).join(
        still, on=on, how="left", nulls_equal=True, maintain_order="left"
    )
    masked = pl.col("still") & (pl.col("low").cast(pl.Float64) > 0)
    return typed(joined.with_columns(masked=masked), ANSWERS)


def typed(frame: pl.DataFrame, columns: pl.Schema) -> pl.DataFrame:
    """Select and cast columns; NaN becomes null."""
    cast = frame.select(pl.col(name).cast(dtype) for name, dtype in columns.items())
    return cast.with_columns(pl.col(pl.Float64).fill_nan(None))


def _withheld(arms: Matched, rules: GapRules) -> Iterator[tuple[tuple[object, ...], str]]:
    """Yield the keys, with the reason, where an arm cannot do the task."""
    unparsed = pl.col("parsed").not_().sum()
    reasons = {"several": pl.lit(0), "negated": pl.lit(0)}  # Not told apart here.
    for name, arm in (("base", arms.base), ("candidate", arms.candidate)):
        runs = arm.group_by(RUN_KEYS).agg(predictions=pl.len(), unparsed=unparsed, **reasons)
        found = of_predictions(
            cells(arm), answers(runs), level=rules.statistics.level, judged=rules.judged
        )
        for *_, reason in found.iter_rows():
            yield arms.keys, f"{name}: {reason}"


def _of_attribute(row: Mapping[str, object]) -> tuple[object, ...]:
    return tuple(row[key] for key in (*schema.KEYS, "attribute"))


def _rises(
    arms: Matched,
) -> Iterator[tuple[tuple[object, ...], tuple[str, float, tuple[float, float]]]]:
    """Yield, by keys and attribute, the group and label whose unread answers rose most.

    Gives the group, by how much, and the share in each arm.
    """
    by = ["attribute", "group", "label"]
    one, other = (arm.group_by(by).agg(share=UNREAD.mean()) for arm in (arms.base, arms.candidate))
    both = one.join(other, on=by).cast({pl.Categorical: pl.String}).sort(by)
    rise = pl.col("share_right") - pl.col("share")
    most = both.with_columns(rise=rise).sort("rise", descending=True, maintain_order=True)
    for row in most.unique("attribute", keep="first", maintain_order=True).iter_rows(named=True):
        shares = (row["share"], row["share_right"])
        yield (*arms.keys, row["attribute"]), (row["group"], row["rise"], shares)


def _inside(arms: Matched, rules: GapRules) -> pl.DataFrame:
    groups = arms.base.select("probe", "attribute", "group").unique()
    return membership(groups.cast(pl.String), rules.of)
