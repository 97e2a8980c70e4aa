"""raybias: social bias of language models, measured at the scale of a Ray cluster.

The names below are the public interface; everything else may change. Importing the
package loads neither torch nor Ray.
"""

from raybias.api import (
    calibrate,
    check_data,
    compare,
    corpus_counts,
    data_sets,
    demo,
    design,
    doctor,
    download_data,
    gaps,
    load_study,
    open,
    pair_items,
    pairs,
    plan,
    probe_items,
    run,
    serve,
    study_schema,
    write_report,
)
from raybias.config import Backbone, PairProbe, Probe, Study, TrainingSet
from raybias.errors import BadInput, RaybiasError, WorkFailed
from raybias.methods import (
    ChainOfThought,
    Coreference,
    FewShot,
    Full,
    Ia3,
    Lora,
    PairScore,
    SoftPrompt,
    ZeroShot,
)
from raybias.results import Results

__all__ = [
    "Backbone",
    "BadInput",
    "ChainOfThought",
    "Coreference",
    "FewShot",
    "Full",
    "Ia3",
    "Lora",
    "PairProbe",
    "PairScore",
    "Probe",
    "RaybiasError",
    "Results",
    "SoftPrompt",
    "Study",
    "TrainingSet",
    "WorkFailed",
    "ZeroShot",
    "calibrate",
    "check_data",
    "compare",
    "corpus_counts",
    "data_sets",
    "demo",
    "design",
    "doctor",
    "download_data",
    "gaps",
    "load_study",
    "open",
    "pair_items",
    "pairs",
    "plan",
    "probe_items",
    "run",
    "serve",
    "study_schema",
    "write_report",
]
