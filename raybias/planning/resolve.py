"""Find out, before any work, which weights a study's models are; every worker loads those.

A model of the hub is pinned to a commit, so a branch that moves during a study changes nothing.
Of a local folder the files are hashed, so that others under its name are noticed. Where another
engine than the built-in one loads them, its version is fixed too.
"""

from __future__ import annotations

from collections.abc import Sequence

from raybias.config import Study
from raybias.engine.checkpoint import file_hashes, folder_of, locate, refuse_pickled
from raybias.storage import Store
from raybias.study_record import Record, refuse_other


def resolve_models(study: Study) -> tuple[Study, dict[str, dict[str, str]]]:
    """Pin each model of the hub to its commit, and hash the files of each local one.

    Returns the study, with commits as revisions, and by name and file the sha256 of local models.

    Raises
    ------
    ModelError: a model that is not there, that this machine has no access to, or whose weights are
        pickled.
    ConfigError: an engine that is not installed, or in another version than the study names.
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
    """Refuse local models whose files are not those that an OUT was made with.

    Parameters
    ----------
    names: of the backbones to look at. An OUT that names no files is taken as it is.

    Raises
    ------
    OutputError: names the file that changed.
    ModelError: the folder is gone.
    """
    for name in names:
        held = (record.models or {}).get(name)
        folder = folder_of(record.study.checkpoints[name].id)
        if held is not None and folder is not None:
            found = file_hashes(folder)
            refuse_other(store, {"models": {name: held}}, {"models": {name: found}})
