"""What is made of counts: gaps, their intervals, what they rest on, and what a judge says."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from raybias.schema.cells import KEYS

#: The first ten columns are the public contract of gaps.csv. `significant` says that the
#: interval excludes zero, `survives` that it does so after the correction for many tests;
#: `no_verdict` says why both are null, and is null where they are not. `scope` is what the
#: interval covers (`stats.scopes`), `mde` the smallest true gap that the same design would call
#: significant four times out of five, and `equivalent` (null without a margin) says that the gap
#: is smaller than the margin.
GAPS: Final = pa.schema(
    [
        ("model", pa.string()),
        ("attribute", pa.string()),
        ("group", pa.string()),
        ("rate", pa.string()),
        ("gap", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("half_width", pa.float64()),
        ("n_runs", pa.int64()),
        ("significant", pa.bool_()),
        ("method", pa.string()),
        ("dataset", pa.string()),
        ("probe", pa.string()),
        ("style", pa.string()),
        ("mean_rate", pa.float64()),
        ("sd", pa.float64()),
        ("n_items", pa.int64()),
        ("in_mean", pa.bool_()),
        ("interval", pa.string()),
        ("p_value", pa.float64()),
        ("q_value", pa.float64()),
        ("survives", pa.bool_()),
        ("no_verdict", pa.string()),
        ("scope", pa.string()),
        ("mde", pa.float64()),
        ("equivalent", pa.bool_()),
    ]
)

#: One row per gap and scope: what its interval covers (`stats.scopes`); columns as in GAPS.
SCOPES: Final = pa.schema(
    [
        ("model", pa.string()),
        ("attribute", pa.string()),
        ("group", pa.string()),
        ("rate", pa.string()),
        ("gap", pa.float64()),
        ("scope", pa.string()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("p_value", pa.float64()),
        ("mde", pa.float64()),
        ("equivalent", pa.bool_()),
        ("significant", pa.bool_()),
        ("q_value", pa.float64()),
        ("survives", pa.bool_()),
        ("no_verdict", pa.string()),
        *((key, pa.string()) for key in KEYS[1:]),
    ]
)

#: One row per gap and source of its variance. `variance` is of one run, template, cell or word;
#: unbiased, so it can be negative.
COMPONENTS: Final = pa.schema(
    [
        ("model", pa.string()),
        ("attribute", pa.string()),
        ("rate", pa.string()),
        ("group", pa.string()),
        ("facets", pa.string()),
        ("variance", pa.float64()),
        ("levels", pa.string()),
        *((key, pa.string()) for key in KEYS[1:]),
    ]
)

#: What a gap would be without one of its templates, or without one of its group's words: the
#: lowest and the highest such gap, and what they leave out. `carried_by` names the template or
#: word without which the gap turns its sign or loses half of its size; null where none does so.
LEAVE_ONE_OUT: Final = pa.schema(
    [
        ("model", pa.string()),
        ("attribute", pa.string()),
        ("group", pa.string()),
        ("rate", pa.string()),
        ("gap", pa.float64()),
        ("unit", pa.string()),
        ("lowest", pa.float64()),
        ("lowest_without", pa.string()),
        ("highest", pa.float64()),
        ("highest_without", pa.string()),
        ("carried_by", pa.string()),
        *((key, pa.string()) for key in KEYS[1:]),
    ]
)

#: One row per mean gap over models and scope (`stats.over_models`). `n_lowest` and `n_highest`
#: count the models in which the group is that extreme (groups at one end share the model),
#: `p_lowest` and `p_highest` are the chance of so many where groups exchange their names within
#: each template.
OVER_MODELS: Final = pa.schema(
    [
        ("attribute", pa.string()),
        ("group", pa.string()),
        ("rate", pa.string()),
        ("gap", pa.float64()),
        ("scope", pa.string()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("p_value", pa.float64()),
        ("q_value", pa.float64()),
        ("significant", pa.bool_()),
        ("survives", pa.bool_()),
        ("n_models", pa.int64()),
        ("n_lowest", pa.float64()),
        ("p_lowest", pa.float64()),
        ("n_highest", pa.float64()),
        ("p_highest", pa.float64()),
        *((key, pa.string()) for key in KEYS[1:]),
    ]
)

#: One row per ranking and scope (`stats.reliability`): of `groups` by a classifier's gaps, or of
#: `models` (`model` is empty) by the gap of one `group`. `spread` is the standard deviation of the
#: true gaps, `error` that of one estimate, and `reliability` spread^2 / (spread^2 + error^2).
RELIABILITY: Final = pa.schema(
    [
        ("ranking", pa.string()),
        ("model", pa.string()),
        ("attribute", pa.string()),
        ("rate", pa.string()),
        ("group", pa.string()),
        ("scope", pa.string()),
        ("reliability", pa.float64()),
        ("spread", pa.float64()),
        ("error", pa.float64()),
        ("n_ranked", pa.int64()),
        *((key, pa.string()) for key in KEYS[1:]),
    ]
)

#: One row per attribute, rate and plan (`stats.design`): `now`, more `runs`, `templates` or `words`
#: alone, and the `cheapest`. `words` are those of the group with the fewest (null where no group
#: has two), `half_width` that of an average gap's interval (four times of five from `half_low` to
#: `half_high`), `cost` that of what is added.
DESIGN: Final = pa.schema(
    [
        ("probe", pa.string()),
        ("attribute", pa.string()),
        ("rate", pa.string()),
        ("scope", pa.string()),
        ("plan", pa.string()),
        ("runs", pa.int64()),
        ("templates", pa.int64()),
        ("words", pa.int64()),
        ("half_width", pa.float64()),
        ("reached", pa.bool_()),
        ("cost", pa.float64()),
        ("unit", pa.string()),
        ("half_low", pa.float64()),
        ("half_high", pa.float64()),
    ]
)

#: How often a corpus has a group's term before a noun (`marked`), and the noun without any
#: listed term (`bare`, the same in all rows of a noun).
CORPUS: Final = pa.schema(
    [
        ("attribute", pa.string()),
        ("group", pa.string()),
        ("term", pa.string()),
        ("noun", pa.string()),
        ("marked", pa.int64()),
        ("bare", pa.int64()),
    ]
)

#: What naming a group does to a rate, beside its gap on the same templates. `effect` is
#: "marking_effect", "neutral_effect", "beyond_neutral" or "gap".
MARKEDNESS: Final = pa.schema(
    [
        ("model", pa.string()),
        ("attribute", pa.string()),
        ("group", pa.string()),
        ("rate", pa.string()),
        ("effect", pa.string()),
        ("estimate", pa.float64()),
        ("low", pa.float64()),
        ("high", pa.float64()),
        ("p_value", pa.float64()),
        ("q_value", pa.float64()),
        ("significant", pa.bool_()),
        ("survives", pa.bool_()),
        ("sd", pa.float64()),
        ("n_runs", pa.int64()),
        ("n_templates", pa.int64()),
        ("in_mean", pa.bool_()),
        ("method", pa.string()),
        ("dataset", pa.string()),
        ("probe", pa.string()),
        ("style", pa.string()),
        ("no_verdict", pa.string()),
        ("scope", pa.string()),
    ]
)

#: What names one judged text.
TEXT_KEYS: Final = (*KEYS, "run_id", "item_id")

#: One row per text that a person labelled. `row` names it on the sheet, `human` is the person's
#: label (schema.Label), null where the sheet is not filled in yet.
LABELLED: Final = pa.schema(
    [
        ("row", pa.string()),
        *((name, pa.string()) for name in TEXT_KEYS),
        *((name, pa.string()) for name in ("attribute", "group", "template_id")),
        *((name, pa.int8()) for name in ("label", "pred", "human")),
    ]
)

#: One row per gap of judged texts. The first seven columns are of the gap corrected for the
#: judge's errors, `judged_gap` and its interval of the judge's verdicts alone. Of the group's
#: `labelled` texts, people find `held` in the rate's share, the judge `wrongly_held` ones more and
#: `missed` ones less. `weight` is what the verdicts count by, `scope` what both intervals cover.
JUDGED: Final = pa.schema(
    [
        *((name, pa.string()) for name in ("model", "attribute", "group", "rate")),
        *((name, pa.float64()) for name in ("gap", "low", "high")),
        *((name, pa.float64()) for name in ("judged_gap", "judged_low", "judged_high")),
        *((name, pa.int64()) for name in ("labelled", "held", "wrongly_held", "missed")),
        ("weight", pa.float64()),
        *((name, pa.string()) for name in KEYS[1:]),
        ("scope", pa.string()),
        ("p_value", pa.float64()),
        ("q_value", pa.float64()),
        ("significant", pa.bool_()),
        ("survives", pa.bool_()),
        ("no_verdict", pa.string()),
    ]
)
