"""Statistics: predictions to cells to rates, gaps and accuracies.

Polars and SciPy only; every function here works from files or tables, with no
model and no cluster.
"""

from raybias.stats.cells import cells, read_cells
from raybias.stats.gaps import gaps
from raybias.stats.paper_tsv import write_paper_tsv
from raybias.stats.predictions import read_predictions
from raybias.stats.rates import accuracies, rates
from raybias.stats.reference import REFERENCE_GROUPS, StatisticsWarning
from raybias.stats.summaries import net_significance, spans

__all__ = [
    "REFERENCE_GROUPS",
    "StatisticsWarning",
    "accuracies",
    "cells",
    "gaps",
    "net_significance",
    "rates",
    "read_cells",
    "read_predictions",
    "spans",
    "write_paper_tsv",
]
