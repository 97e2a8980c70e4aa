"""raybias: social bias of language models, measured at the scale of a Ray cluster.

The names below are the public interface; everything else may change. Importing the
package loads neither torch nor Ray.
"""

from raybias.api.statistics import (
    calibrate,
    compare,
    corpus_counts,
    design,
    gaps,
    metrics,
    options,
    pairs,
    triples,
)
from raybias.api.studies import (
    demo,
    doctor,
    open,
    pair_items,
    plan,
    probe_items,
    run,
    serve,
    write_report,
)
from raybias.config import (
    Backbone,
    PairProbe,
    Probe,
    Study,
    TrainingSet,
    load_study,
    study_schema,
)
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
from raybias.probes.catalogue import check_data, data_sets, download_data
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
    "metrics",
    "open",
    "options",
    "pair_items",
    "pairs",
    "plan",
    "probe_items",
    "run",
    "serve",
    "study_schema",
    "triples",
    "write_report",
]
