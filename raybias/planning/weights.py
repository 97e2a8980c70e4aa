"""Look at the weights of local models before any work; of each file the header alone is read."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors import SafetensorError, safe_open

from raybias.config import Study
from raybias.engine.checkpoint import folder_of, has_safetensors
from raybias.errors import ModelError


def check_weights(study: Study) -> None:
    """Refuse a local model without weights, or with some that are missing or cut off.

    Raises
    ------
    ModelError: names the model and the file.
    """
    for spec in study.checkpoints.values():
        folder = folder_of(spec.id)
        if folder is not None:
            _check_folder(folder, spec.id)


def _check_folder(folder: Path, model: str) -> None:
    if not has_safetensors(folder):
        raise ModelError(
            "holds no weights (*.safetensors)",
            where=model,
            cure="copy or download them into the folder, then run this again",
        )
    for index in sorted(folder.glob("*.safetensors.index.json")):
        if missing := sorted(name for name in _parts(index) if not (folder / name).is_file()):
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            raise ModelError(
                f"lacks {missing[0]}{more}, which {index.name} names",
                where=model,
                cure="fetch what is missing",
            )
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="numpy"):
                pass
        except (SafetensorError, OSError) as error:
            raise ModelError(
                f"{path.name} is no whole file of safetensors ({error})",
                where=model,
                cure="fetch it again",
            ) from error


def _parts(index: Path) -> set[str]:
    """Return the files that an index of weights names; one that is malformed names none."""
    try:
        content = json.loads(index.read_bytes())
        return {str(name) for name in content["weight_map"].values()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return set()
