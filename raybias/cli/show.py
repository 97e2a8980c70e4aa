"""Print the results of a study."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raybias.config import Profile
    from raybias.results import Results


def show(results: Results, *, profile: Profile | None = None) -> None:
    """Print the gaps with their intervals, the scores of pairs, and where the page is.

    Parameters
    ----------
    profile: that the statistics were restated by, if any.
    """
    from raybias import report
    from raybias.report.estimates import text
    from raybias.report.judge_section import judged_text

    store, study = results.store, results.study
    if profile is not None:
        study = report.restated(study, profile)
    if study.pairs or study.questions:
        found = results.estimates.collect()
        print(*text(found, level=study.statistics.level), sep="\n\n")
    if study.probes:
        for note in report.read_notes(store):
            print(f"raybias: warning: {note}", file=sys.stderr)
        shown = ("gaps", "scopes", "components")
        report.print_gap_table({name: results.table(name).collect() for name in shown})
        if "judged" in results.tables:
            print("", judged_text(results.table("judged").collect()), sep="\n")
    print(f"\nreport: {results.report}")
