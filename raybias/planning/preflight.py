"""Refuse unusable models, label words, targets and lengths before any work; pin the models.

Only tokenizers and configurations are read. A hub model is pinned to its commit, the files of a
local one are hashed, and the version of another engine is fixed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from safetensors import SafetensorError, safe_open

from raybias.config import Study
from raybias.engine.checkpoint import (
    file_hashes,
    folder_of,
    has_safetensors,
    locate,
    refuse_pickled,
)
from raybias.errors import ConfigError, ModelError
from raybias.methods.base import methods_of
from raybias.planning.prepared import Items, PreparedStudy
from raybias.planning.stage_plans import Plan
from raybias.stats import check_metrics, check_reference_groups
from raybias.storage import Store
from raybias.study_record import Record, refuse_other


def check_inputs(prepared: PreparedStudy) -> None:
    """Refuse what no run of the study could work with.

    Raises
    ------
    ModelError: a model or tokenizer that a method cannot use, label words that share a token, LoRA
        targets that match nothing, or texts longer than the context.
    DataError: a training set without the splits that a method needs, or too few shots.
    ConfigError: label words without an answer, an unknown metric, or unknown reference groups.
    """
    study, data = prepared.study, prepared.data
    check_metrics(study.statistics.metrics)
    check_references(study, data.items)
    for backbone in study.backbones:
        for method in methods_of(study, backbone):
            method.check(prepared.inputs(method, backbone))


def check_libraries(planned: Plan) -> None:
    """Refuse a plan that needs a package which is not installed, or not for its devices."""
    backbones = {each.name: each for each in planned.decided.backbones}
    for stage in planned.scoring:
        backbones[stage.backbone].check_device(stage.gpus)
    sharded = [each.backbone for each in (*planned.tuning, *planned.scoring) if each.sharded]
    if sharded and find_spec("deepspeed") is None:
        raise ConfigError(
            f"{sharded[0]} is shared among workers with ZeRO-3, which needs deepspeed",
            cure="`pip install 'raybias[zero]'` on every node, or choose `resources.shard: never`",
        )


def check_references(study: Study, items: Items) -> None:
    """Refuse reference groups that a probe's items, by probe, do not have."""
    for probe in study.probes:
        check_reference_groups(
            items[probe.name],
            probe.reference_groups,
            where=f"probe {probe.name}, reference_groups",
        )


def check_rewritten(prepared: PreparedStudy, items: Items) -> None:
    """Refuse rewritten pairs, by probe, that are too long for a backbone that scores them."""
    for backbone in prepared.study.backbones:
        for method in methods_of(prepared.study, backbone):
            if method.reads == "pairs":
                method.check(prepared.inputs(method, backbone, items))


def resolve_models(study: Study) -> tuple[Study, dict[str, dict[str, str]]]:
    """Pin hub models to commits; return the study, and local files' sha256 by model and file.

    Raises ModelError: a missing, closed or pickled model; ConfigError: an engine that is missing or
    in another version.
    """
    revisions: dict[str, str | None] = {}
    models = {}
    for name, spec in study.checkpoints.items():
        folder = folder_of(spec.id)
        if folder is None:
            revisions[name] = locate(spec.id, spec.revision).commit
        else:
            refuse_pickled(folder, spec.id)
            revisions[name] = spec.revision
            models[name] = file_hashes(folder)
    installed = tuple(each.as_installed() for each in study.backbones)
    return study.model_copy(update={"backbones": installed}).pinned(revisions), models


def check_models(store: Store, record: Record, names: Sequence[str]) -> None:
    """Refuse local models whose files are not those that an OUT was made with, if it names any."""
    for name in names:
        held = record.models.get(name)
        folder = folder_of(record.study.checkpoints[name].id)
        if held is not None and folder is not None:
            found = file_hashes(folder)
            refuse_other(store, {"models": {name: held}}, {"models": {name: found}})


def check_weights(study: Study) -> None:
    """Refuse a local model without weights, or with some that are missing or cut off."""
    for spec in study.checkpoints.values():
        folder = folder_of(spec.id)
        if folder is None:
            continue
        if not has_safetensors(folder):
            raise ModelError(
                "holds no weights (*.safetensors)",
                where=spec.id,
                cure="copy or download them into the folder, then run this again",
            )
        for index in sorted(folder.glob("*.safetensors.index.json")):
            if missing := sorted(name for name in _parts(index) if not (folder / name).is_file()):
                more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
                raise ModelError(
                    f"lacks {missing[0]}{more}, which {index.name} names",
                    where=spec.id,
                    cure="fetch what is missing",
                )
        for path in sorted(folder.glob("*.safetensors")):
            try:
                with safe_open(path, framework="numpy"):
                    pass
            except (SafetensorError, OSError) as error:
                raise ModelError(
                    f"{path.name} is no whole file of safetensors ({error})",
                    where=spec.id,
                    cure="fetch it again",
                ) from error


def _parts(index: Path) -> set[str]:
    """Return the files that an index of weights names; one that is malformed names none."""
    try:
        content = json.loads(index.read_bytes())
        return {str(name) for name in content["weight_map"].values()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return set()
