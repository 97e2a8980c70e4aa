"""Print the results of a study."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raybias.results import Results


def show(results: Results) -> None:
    """Print the estimates with their intervals, and where the page is."""
    from raybias import report
    from raybias.measures.prediction_rows import KIND, gap_rows
    from raybias.report.estimates import gaps_table, text
    from raybias.report.judges import judged_text

    store = results.store
    study = report.as_reported(store, results.study)
    found = results.estimates.collect()
    if study.pairs or study.questions:
        asked = found.filter(found["kind"] != KIND)
        print(*text(asked, level=study.statistics.level), sep="\n\n")
    if study.probes:
        for note in report.read_notes(store):
            print(f"raybias: warning: {note}", file=sys.stderr)
        gaps = gap_rows(found, study.statistics.scope)
        components = results.table("components").collect()
        scopes = report.by_scope(gap_rows(found), components)
        said = filter(None, [report.verdict(gaps), scopes])
        print(gaps_table(found, study.statistics.scope), "", *said, sep="\n")
        if "judged" in results.tables:
            print("", judged_text(results.table("judged").collect()), sep="\n")
    print(f"\nreport: {results.report}")
