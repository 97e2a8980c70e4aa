"""Read what a folder that PEFT saved says of its adapter; no torch.

The adapter of a model is a folder with adapter_config.json and adapter_model.safetensors. Its base
is named in the first. raybias saves such folders too, with how the tuned model reads texts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from safetensors import SafetensorError, safe_open

from raybias.errors import ModelError, said_by
from raybias.opening import check_file

#: PEFT's file names.
ADAPTER_CONFIG: Final = "adapter_config.json"
ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"
_PICKLED: Final = "adapter_model.bin"
#: The record of a run that raybias tuned, and its part about how texts are read.
RAYBIAS: Final = "raybias.json"
READS: Final = "reads"
#: PEFT's name of the vectors of a prompt.
PROMPT: Final = "prompt_embeddings"
#: Before the names of weights in PEFT's files.
PREFIX: Final = "base_model.model."
#: PEFT's kinds that are vectors before a text, and what they are.
_PROMPTS: Final = {"PROMPT_TUNING": "a soft prompt", "PREFIX_TUNING": "a prefix"}
#: Those that need more than vectors before a text or other weights.
_OTHERS: Final = ("P_TUNING", "MULTITASK_PROMPT_TUNING", "CPT", "ADAPTION_PROMPT")


@dataclass(frozen=True)
class PeftAdapter:
    """An adapter in a folder.

    kind: PEFT's name of it, such as LORA.
    task: PEFT's name of what its model is for, such as SEQ_CLS; empty if it names none.
    base: the model that was adapted, as a hub id or folder.
    revision: of the base on the hub; None for its default.
    """

    folder: Path
    kind: str
    task: str
    base: str
    revision: str | None

    @property
    def is_prompt(self) -> bool:
        """Whether it is vectors before a text, and leaves the weights of its base as they are."""
        return self.kind in _PROMPTS

    @property
    def described(self) -> str:
        """What it is in words, with PEFT's name."""
        return f"{_PROMPTS.get(self.kind, 'an adapter')} (PEFT's {self.kind})"

    @property
    def is_classifier(self) -> bool:
        """Whether its model has a classification head."""
        return self.task == "SEQ_CLS"

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the weights that its file holds, as its base calls them.

        Raises ModelError: the file is cut off, or cannot be read.
        """
        try:
            with safe_open(self.folder / ADAPTER_WEIGHTS, framework="numpy") as tensors:
                return {
                    name.removeprefix(PREFIX): tuple(tensors.get_slice(name).get_shape())
                    for name in tensors.keys()  # noqa: SIM118
                }
        except (SafetensorError, OSError) as error:
            raise ModelError(
                f"{ADAPTER_WEIGHTS} is no whole file of safetensors ({said_by(error)})",
                where=str(self.folder),
                cure="save the adapter again",
            ) from error

    def shape_of(self, name: str) -> tuple[int, ...]:
        """Return the shape of one of its weights; ModelError: not there."""
        if name not in self.shapes:
            raise ModelError(
                f"its {ADAPTER_WEIGHTS} lacks {name}",
                where=str(self.folder),
                cure="save the adapter again, whole",
            )
        return self.shapes[name]

    def count_classes(self) -> int | None:
        """Count the classes of its own classification head; None if it has no head."""
        whole = [shape for name, shape in self.shapes.items() if "lora_" not in name]
        # The last layer of a head is the narrowest of those that are saved whole.
        return min((shape[0] for shape in whole if len(shape) == 2), default=None)


def adapter_in(folder: Path) -> PeftAdapter | None:
    """Read the adapter of a folder; None if it holds a whole model, or none.

    Raises ModelError: a config that names no base, an adapter of a kind that raybias does not read,
    or pickled or missing weights.
    """
    where, path = str(folder), folder / ADAPTER_CONFIG
    try:
        if not path.is_file() or any(folder.glob("model*.safetensors")):
            return None
    except OSError as error:
        raise ModelError(
            f"cannot be read ({said_by(error)})", where=where, cure="check the path"
        ) from error
    content = read_json(path)
    kind, base = str(content.get("peft_type")), content.get("base_model_name_or_path")
    if not isinstance(base, str) or not base:
        raise ModelError(
            f"is a PEFT adapter, and its {ADAPTER_CONFIG} does not name the base model",
            where=where,
            cure="write its hub id or folder there as base_model_name_or_path",
        )
    if kind in _OTHERS:
        raise ModelError(
            f"is a PEFT adapter of the kind {kind}, which raybias does not read",
            where=where,
            cure="give one of weights, such as LORA, or of PROMPT_TUNING or PREFIX_TUNING; or serve"
            " the model, and name it as a backbone with an `endpoint`",
        )
    if not (folder / ADAPTER_WEIGHTS).is_file():
        pickled = (folder / _PICKLED).is_file()
        held = f"pickled weights ({_PICKLED})" if pickled else "no weights"
        raise ModelError(
            f"is a PEFT adapter with {held}",
            where=where,
            cure="save it with `save_pretrained(folder, safe_serialization=True)`",
        )
    revision = content.get("revision")
    task = str(content.get("task_type") or "").removeprefix("TaskType.")
    return PeftAdapter(folder, kind, task, base, revision if isinstance(revision, str) else None)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object of a model's folder; ModelError: unreadable, or no object."""
    try:
        check_file(path)
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"{path.name} cannot be read ({said_by(error)})",
            where=str(path.parent),
            cure="save the adapter again",
        ) from error
    if not isinstance(content, dict):
        raise ModelError(
            f"{path.name} holds no object", where=str(path.parent), cure="save the adapter again"
        )
    return content
