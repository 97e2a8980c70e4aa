"""Statistics: predictions to cells to rates, gaps and accuracies.

Polars and SciPy only; every function here works from files or tables, with no
model and no cluster.
"""

from raybias.stats.breakdown import by_template, by_term, largest
from raybias.stats.cells import cells, term_cells, without_extras
from raybias.stats.corpus import corpus_correlations, marked_rates
from raybias.stats.gaps import gaps
from raybias.stats.markedness import markedness, members
from raybias.stats.paper_tsv import write_paper_tsv
from raybias.stats.predictions import read_predictions
from raybias.stats.rates import ALL, accuracies, rates
from raybias.stats.readouts import (
    LIKELIHOOD,
    UNREADABLE,
    UNREADABLE_SHARE,
    answers,
    fingerprints,
    repeated_runs,
    unreadable,
    warn_repeated,
    with_likelihood,
    with_readouts,
)
from raybias.stats.reference import REFERENCE_GROUPS, StatisticsWarning
from raybias.stats.summaries import composition, extremes, net_significance, spans, spans_mean
from raybias.stats.tally import Counts, count_answers, read_cells, read_counts

__all__ = [
    "ALL",
    "LIKELIHOOD",
    "REFERENCE_GROUPS",
    "UNREADABLE",
    "UNREADABLE_SHARE",
    "Counts",
    "StatisticsWarning",
    "accuracies",
    "answers",
    "by_template",
    "by_term",
    "cells",
    "composition",
    "corpus_correlations",
    "count_answers",
    "extremes",
    "fingerprints",
    "gaps",
    "largest",
    "marked_rates",
    "markedness",
    "members",
    "net_significance",
    "rates",
    "read_cells",
    "read_counts",
    "read_predictions",
    "repeated_runs",
    "spans",
    "spans_mean",
    "term_cells",
    "unreadable",
    "warn_repeated",
    "with_likelihood",
    "with_readouts",
    "without_extras",
    "write_paper_tsv",
]
