"""Ask a backbone for a text's label, with nothing but the question."""

from __future__ import annotations

from typing import Literal

from raybias.methods.base import method
from raybias.methods.prompted import CLOSED_QUESTION, Prompted, cue_of


@method
class ZeroShot(Prompted):
    """The question alone."""

    kind: Literal["zero_shot"] = "zero_shot"
    """Names the kind of method."""
    template: str = CLOSED_QUESTION
    """The question, with `{text}` and, if it lists the label words, `{choices}`."""
    cue: str = cue_of(CLOSED_QUESTION, "Answer: The sentiment is")
    """What the answer begins with."""
