"""raybias: social bias of language models, measured at the scale of a Ray cluster.

The names below are the public interface; everything else may change. Importing the
package loads neither torch nor Ray.
"""

from importlib.metadata import version as _version

from raybias.api.audits import audit
from raybias.api.files import compare, design, export, measure
from raybias.api.labels import judge_labels, judge_sheet
from raybias.api.studies import convert, demo, doctor, open, plan, run, serve, write_report
from raybias.config import (
    Backbone,
    PairProbe,
    Probe,
    QuestionProbe,
    Study,
    TrainingSet,
    load_study,
    study_schema,
)
from raybias.errors import BadInput, RaybiasError, WorkFailed
from raybias.methods import (
    ChainOfThought,
    Classify,
    Continuation,
    Coreference,
    DecisionLikelihood,
    FewShot,
    Full,
    Lora,
    OptionAnswer,
    OptionLikelihood,
    PairScore,
    Prefix,
    SentenceLikelihood,
    SoftPrompt,
    TripleLikelihood,
    ZeroShot,
)
from raybias.probes import pair_items, probe_items
from raybias.probes.design import check_probe
from raybias.probes.sources import check_data, data_sets, download_data
from raybias.results import Results

__all__ = [
    "Backbone",
    "BadInput",
    "ChainOfThought",
    "Classify",
    "Continuation",
    "Coreference",
    "DecisionLikelihood",
    "FewShot",
    "Full",
    "Lora",
    "OptionAnswer",
    "OptionLikelihood",
    "PairProbe",
    "PairScore",
    "Prefix",
    "Probe",
    "QuestionProbe",
    "RaybiasError",
    "Results",
    "SentenceLikelihood",
    "SoftPrompt",
    "Study",
    "TrainingSet",
    "TripleLikelihood",
    "WorkFailed",
    "ZeroShot",
    "audit",
    "check_data",
    "check_probe",
    "compare",
    "convert",
    "data_sets",
    "demo",
    "design",
    "doctor",
    "download_data",
    "export",
    "judge_labels",
    "judge_sheet",
    "load_study",
    "measure",
    "open",
    "pair_items",
    "plan",
    "probe_items",
    "run",
    "serve",
    "study_schema",
    "write_report",
]

__version__ = _version("raybias")
