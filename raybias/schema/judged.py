"""Texts that a judge labelled: those that people labelled too, and gaps without its errors."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from raybias.schema.cells import KEYS

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
