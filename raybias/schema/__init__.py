"""The tables that pass between stages: column names, order and types.

Probes write items, the engine writes runs and predictions, statistics read
predictions and write cells, gaps and accuracies.
"""

from raybias.schema.cells import (
    CELLS,
    KEYS,
    TERM_CELLS,
    WORD_CELLS,
)
from raybias.schema.estimates import ESTIMATES
from raybias.schema.gaps import (
    COMPONENTS,
    CORPUS,
    DESIGN,
    GAPS,
    LEAVE_ONE_OUT,
    MARKEDNESS,
    OVER_MODELS,
    RELIABILITY,
    SCOPES,
)
from raybias.schema.items import (
    EXTRA_GROUPS,
    ITEMS,
    LABELS,
    PLACEHOLDER,
    SENTENCES,
    UNMARKED,
    Label,
)
from raybias.schema.judged import (
    JUDGED,
    LABELLED,
    TEXT_KEYS,
)
from raybias.schema.output import (
    OutputSpec,
)
from raybias.schema.pairs import (
    CONDITIONS,
    COREFERENCE_ANSWERS,
    COREFERENCES,
    DIRECTIONS,
    PAIR_SCORES,
    PAIRS,
    READINGS,
    REWRITTEN_PAIRS,
)
from raybias.schema.questions import (
    CONTEXTS,
    DECISION_ANSWERS,
    DECISIONS,
    OPTION_ANSWERS,
    OPTION_ITEMS,
    POLARITIES,
    SENTENCE_ITEMS,
    SENTENCE_SCORES,
    TRIPLE_SCORES,
    TRIPLES,
)
from raybias.schema.runs import (
    ACCURACY,
    ANSWERS,
    PREDICTIONS,
    RUNS,
    SCHEDULE,
    SCHEDULE_FILE,
)

__all__ = [
    "ACCURACY",
    "ANSWERS",
    "CELLS",
    "COMPONENTS",
    "CONDITIONS",
    "CONTEXTS",
    "COREFERENCES",
    "COREFERENCE_ANSWERS",
    "CORPUS",
    "DECISIONS",
    "DECISION_ANSWERS",
    "DESIGN",
    "DIRECTIONS",
    "ESTIMATES",
    "EXTRA_GROUPS",
    "GAPS",
    "ITEMS",
    "JUDGED",
    "KEYS",
    "LABELLED",
    "LABELS",
    "LEAVE_ONE_OUT",
    "MARKEDNESS",
    "OPTION_ANSWERS",
    "OPTION_ITEMS",
    "OVER_MODELS",
    "PAIRS",
    "PAIR_SCORES",
    "PLACEHOLDER",
    "POLARITIES",
    "PREDICTIONS",
    "READINGS",
    "RELIABILITY",
    "REWRITTEN_PAIRS",
    "RUNS",
    "SCHEDULE",
    "SCHEDULE_FILE",
    "SCOPES",
    "SENTENCES",
    "SENTENCE_ITEMS",
    "SENTENCE_SCORES",
    "TERM_CELLS",
    "TEXT_KEYS",
    "TRIPLES",
    "TRIPLE_SCORES",
    "UNMARKED",
    "WORD_CELLS",
    "Label",
    "OutputSpec",
]
