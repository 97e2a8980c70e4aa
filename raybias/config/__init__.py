"""The study file: what is measured, on which models, with which rules."""

from raybias.config.parts import (
    Adequacy,
    Backbone,
    MethodFields,
    PairProbe,
    Probe,
    QuestionProbe,
    Rewriting,
    StyleOptions,
    Styles,
    TrainingSet,
    Verbalizer,
)
from raybias.config.reading import parse_yaml, to_yaml
from raybias.config.section import Location, Profile, Section
from raybias.config.study import (
    Interval,
    NodeKind,
    Resources,
    Scope,
    Statistics,
    Study,
    load_study,
    parse_study,
    study_schema,
)

__all__ = [
    "Adequacy",
    "Backbone",
    "Interval",
    "Location",
    "MethodFields",
    "NodeKind",
    "PairProbe",
    "Probe",
    "Profile",
    "QuestionProbe",
    "Resources",
    "Rewriting",
    "Scope",
    "Section",
    "Statistics",
    "Study",
    "StyleOptions",
    "Styles",
    "TrainingSet",
    "Verbalizer",
    "load_study",
    "parse_study",
    "parse_yaml",
    "study_schema",
    "to_yaml",
]
