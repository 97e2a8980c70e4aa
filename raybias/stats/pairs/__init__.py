"""Statistics of pairs: preference, style effects, coreference, from score files alone.

Zhao2025's tables, and what it argues for: style as an intervention on a pair whose
content is held fixed.
"""

from raybias.stats.pairs.changes import SCOPE, read_outcomes, score_changes
from raybias.stats.pairs.effects import effects
from raybias.stats.pairs.list_t_tests import LISTED_STYLES, t_tests
from raybias.stats.pairs.outcomes import (
    AVERAGES,
    DIRECTIONS,
    ORIGINAL,
    UNWEIGHTED,
    WEIGHTED,
    coreference_outcomes,
    pair_outcomes,
)
from raybias.stats.pairs.over_styles import (
    PAIR_SCOPES,
    REDRAWN,
    style_components,
    style_scopes,
)
from raybias.stats.pairs.preference import preferences, summary, with_intervals
from raybias.stats.pairs.reading import ScoreFiles, holds_scores, read_score_files
from raybias.stats.pairs.scores import bias_scores
from raybias.stats.pairs.size_trends import FEWEST_MODELS, model_size, sizes_in_names
from raybias.stats.pairs.stability import VERDICTS, stability
from raybias.stats.pairs.winobias import summary as winobias_summary
from raybias.stats.pairs.winobias import winobias

__all__ = [
    "AVERAGES",
    "DIRECTIONS",
    "FEWEST_MODELS",
    "LISTED_STYLES",
    "ORIGINAL",
    "PAIR_SCOPES",
    "REDRAWN",
    "SCOPE",
    "UNWEIGHTED",
    "VERDICTS",
    "WEIGHTED",
    "ScoreFiles",
    "bias_scores",
    "coreference_outcomes",
    "effects",
    "holds_scores",
    "model_size",
    "pair_outcomes",
    "preferences",
    "read_outcomes",
    "read_score_files",
    "score_changes",
    "sizes_in_names",
    "stability",
    "style_components",
    "style_scopes",
    "summary",
    "t_tests",
    "winobias",
    "winobias_summary",
    "with_intervals",
]
