"""Statistics of pairs: preference, style effects, coreference, from score files alone.

Zhao2025's tables, and what it argues for: style as an intervention on a pair whose
content is held fixed.
"""

from raybias.stats.pairs.changes import SCOPE, score_changes
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
from raybias.stats.pairs.preference import preferences
from raybias.stats.pairs.scores import bias_scores
from raybias.stats.pairs.size_trends import FEWEST_MODELS, model_size, sizes_in_names
from raybias.stats.pairs.stability import VERDICTS, stability
from raybias.stats.pairs.winobias import MEAN as MEAN_PROMPT
from raybias.stats.pairs.winobias import winobias

__all__ = [
    "AVERAGES",
    "DIRECTIONS",
    "FEWEST_MODELS",
    "LISTED_STYLES",
    "MEAN_PROMPT",
    "ORIGINAL",
    "PAIR_SCOPES",
    "REDRAWN",
    "SCOPE",
    "UNWEIGHTED",
    "VERDICTS",
    "WEIGHTED",
    "bias_scores",
    "coreference_outcomes",
    "effects",
    "model_size",
    "pair_outcomes",
    "preferences",
    "score_changes",
    "sizes_in_names",
    "stability",
    "style_components",
    "style_scopes",
    "t_tests",
    "winobias",
]
