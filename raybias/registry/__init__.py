"""Register methods, providers, probes of all kinds, training sets, styles, metrics and scores.

Each kind has a decorator and a mapping of what was registered, by name. Modules of raybias itself
are found in one package per kind. Another package lists its modules as entry points of the group
`raybias`, and may register anything in them (docs/extending.md):

    [project.entry-points.raybias]
    my_package = "my_package.extensions"
"""

from raybias.registry.mechanism import Registry
from raybias.registry.methods import method, methods
from raybias.registry.metrics import (
    BACKGROUNDS,
    Contrast,
    Metric,
    Share,
    contrast,
    metric,
    metrics,
)
from raybias.registry.probes import (
    PairSource,
    ProbeSource,
    QuestionSource,
    ReadPairs,
    Splits,
    pair_probe,
    pair_probes,
    probe,
    probes,
    question_probe,
    question_probes,
    training_set,
    training_sets,
)
from raybias.registry.providers import provider, providers
from raybias.registry.styles import Rule, Style, StyledPair, style, styles

__all__ = [
    "BACKGROUNDS",
    "Contrast",
    "Metric",
    "PairSource",
    "ProbeSource",
    "QuestionSource",
    "ReadPairs",
    "Registry",
    "Rule",
    "Share",
    "Splits",
    "Style",
    "StyledPair",
    "contrast",
    "method",
    "methods",
    "metric",
    "metrics",
    "pair_probe",
    "pair_probes",
    "probe",
    "probes",
    "provider",
    "providers",
    "question_probe",
    "question_probes",
    "style",
    "styles",
    "training_set",
    "training_sets",
]
