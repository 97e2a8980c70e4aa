"""The study file: what is measured, on which models, with which rules."""

from raybias.config.parts import (
    Backbone,
    MethodFields,
    PairProbe,
    Probe,
    QuestionProbe,
    StyleOptions,
    TrainingSet,
)
from raybias.config.reading import parse_yaml, to_yaml
from raybias.config.section import Profile
from raybias.config.study import (
    Resources,
    Scope,
    Statistics,
    Study,
    load_study,
    parse_study,
    study_schema,
)

__all__ = [
    "Backbone",
    "MethodFields",
    "PairProbe",
    "Probe",
    "Profile",
    "QuestionProbe",
    "Resources",
    "Scope",
    "Statistics",
    "Study",
    "StyleOptions",
    "TrainingSet",
    "load_study",
    "parse_study",
    "parse_yaml",
    "study_schema",
    "to_yaml",
]
