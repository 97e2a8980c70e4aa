"""What a trained classification head gives for a text; no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: What a head gives for each class: probabilities of which one holds, a probability for each by
#: itself, or a number.
Outputs = Literal["softmax", "sigmoid", "number"]


@dataclass(frozen=True)
class TrainedHead:
    """What a checkpoint's classification head gives for a text, by its config.json.

    classes: names of its outputs, in their order.
    outputs: what they are, as transformers' text-classification pipeline takes them.
    """

    classes: tuple[str, ...]
    outputs: Outputs
