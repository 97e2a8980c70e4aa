"""Ask a backbone for a text's label, with nothing but the question."""

from __future__ import annotations

from typing import Literal

from raybias.methods.prompted import CLOSED_QUESTION, Prompted
from raybias.registry import method


@method
class ZeroShot(Prompted):
    """The question alone."""

    kind: Literal["zero_shot"] = "zero_shot"
    """Names the kind of method."""
    template: str = f"{CLOSED_QUESTION}Answer: The sentiment is"
    """The prompt for one sentence, with `{text}` and, if it lists the label words, `{choices}`."""
