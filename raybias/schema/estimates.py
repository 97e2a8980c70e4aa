"""The one table of results: what was estimated, of what, and how sure it is."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

#: One row per estimate. Text that does not apply is empty. `condition` is the context, task or
#: background that the score belongs to, `style` the style or prompt (`all`: over several);
#: `statistic` is what the value is (rate, gap, difference, ratio or score), `scope` what the
#: interval resamples. `n` are the answers that count, `units` what is resampled of them. `p` is
#: two-sided, `q` corrected for many tests; `reason` says why there is no interval, or no verdict,
#: or that the value is smaller than the margin.
ESTIMATES: Final = pa.schema(
    [
        *(
            (name, pa.string())
            for name in (
                *("kind", "model", "method", "dataset", "probe", "style", "condition"),
                *("attribute", "group", "score", "statistic", "scope"),
            )
        ),
        *((name, pa.float64()) for name in ("value", "low", "high", "p", "q")),
        *((name, pa.bool_()) for name in ("significant", "survives")),
        ("mde", pa.float64()),
        *((name, pa.int64()) for name in ("n", "units")),
        ("reason", pa.string()),
    ]
)
