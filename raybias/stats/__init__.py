"""Statistics: predictions to cells to rates, gaps and accuracies.

Polars and SciPy only; every function here works from files or tables, with no
model and no cluster.
"""

from raybias.stats.breakdown import by_template, by_term, largest
from raybias.stats.cells import LIKELIHOOD, cells, term_cells, without_extras
from raybias.stats.corpus import corpus_correlations, marked_rates
from raybias.stats.counts import Counts, count_files, item_counts, read_counts
from raybias.stats.design import design
from raybias.stats.gaps import GAP_KEYS, GapAnalysis, gaps
from raybias.stats.intervals import MIRROR, NO_VARIATION, ONE_RUN, REFERENCE, UNDEFINED
from raybias.stats.judged import corrected_gaps
from raybias.stats.judging import GapRules, gap_analysis
from raybias.stats.likelihood_readout import answers, with_likelihood
from raybias.stats.markedness import markedness, members
from raybias.stats.metric import DEFAULT, check_metrics
from raybias.stats.predictions import Source, read_predictions, sources
from raybias.stats.rates import ALL, accuracies, rates
from raybias.stats.reference_groups import (
    REFERENCE_GROUPS,
    StatisticsWarning,
    UnevenRuns,
    check_reference_groups,
)
from raybias.stats.summaries import composition, extremes, net_significance, spans, spans_mean

__all__ = [
    "ALL",
    "DEFAULT",
    "GAP_KEYS",
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
    "accuracies",
    "answers",
    "by_template",
    "by_term",
    "cells",
    "check_metrics",
    "check_reference_groups",
    "composition",
    "corpus_correlations",
    "corrected_gaps",
    "count_files",
    "design",
    "extremes",
    "gap_analysis",
    "gaps",
    "item_counts",
    "largest",
    "marked_rates",
    "markedness",
    "members",
    "net_significance",
    "rates",
    "read_counts",
    "read_predictions",
    "sources",
    "spans",
    "spans_mean",
    "term_cells",
    "with_likelihood",
    "without_extras",
]
