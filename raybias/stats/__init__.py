"""Statistics: predictions to cells to rates, gaps and accuracies, without a model or cluster."""

from raybias.schema import LIKELIHOOD
from raybias.stats.breakdown import by_template, largest
from raybias.stats.checks import (
    REFERENCE_GROUPS,
    StatisticsWarning,
    UnevenRuns,
    check_reference_groups,
)
from raybias.stats.counts import (
    Counts,
    cells,
    composition,
    count_files,
    item_counts,
    read_counts,
    with_likelihood,
    without_extras,
)
from raybias.stats.design import design
from raybias.stats.gaps import GapAnalysis, GapRules, gap_analysis
from raybias.stats.intervals import MIRROR, NO_VARIATION, ONE_RUN, REFERENCE, UNDEFINED
from raybias.stats.judged import corrected_gaps
from raybias.stats.metric import DEFAULT, check_metrics, rates
from raybias.stats.predictions import Source, sources

__all__ = [
    "DEFAULT",
    "LIKELIHOOD",
    "MIRROR",
    "NO_VARIATION",
    "ONE_RUN",
    "REFERENCE",
    "REFERENCE_GROUPS",
    "UNDEFINED",
    "Counts",
    "GapAnalysis",
    "GapRules",
    "Source",
    "StatisticsWarning",
    "UnevenRuns",
    "by_template",
    "cells",
    "check_metrics",
    "check_reference_groups",
    "composition",
    "corrected_gaps",
    "count_files",
    "design",
    "gap_analysis",
    "item_counts",
    "largest",
    "rates",
    "read_counts",
    "sources",
    "with_likelihood",
    "without_extras",
]
