"""Register the training set of the embedded calibration."""

from __future__ import annotations

from raybias.config import TrainingSet
from raybias.probes.planted import planted_sentences
from raybias.probes.registries import Splits, training_set


@training_set("planted")
def _sentences(training: TrainingSet) -> Splits:
    return planted_sentences()
