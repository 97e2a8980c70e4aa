"""Ask a backbone for a text's label, with nothing but the question."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from raybias.methods.prompted import Prompted, Shot
from raybias.probes import prompts
from raybias.registry import method


@method
class ZeroShot(Prompted):
    """The question alone (004, spec of its code)."""

    kind: Literal["zero_shot"] = "zero_shot"
    """Names the kind of method."""

    def prompt(self, text: str, shots: Sequence[Shot], words: Sequence[str]) -> str:
        """Write the question for a text."""
        return prompts.zero_shot_prompt(text)
