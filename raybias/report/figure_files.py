"""Keep OUT/figures to the last report: what an earlier one wrote there and this one lacks goes."""

from __future__ import annotations

import json
from typing import Final

from raybias.seal import digest
from raybias.storage import Draft, Store

_FOLDER: Final = "figures/"
#: Lists the files of the last report in OUT/figures, each with its sha256.
_LIST: Final = f"{_FOLDER}written.json"


def written_files(store: Store) -> dict[str, str]:
    """Read the sha256 of each file that the last report wrote to OUT/figures."""
    if not store.exists(_LIST):
        return {}
    with store.reading(_LIST, "as a list of figures"):
        content = json.loads(store.read_text(_LIST))
        return {str(name): str(sha) for name, sha in content.items()}


def replace_figures(draft: Draft) -> None:
    """List the figures that a draft holds; delete those of the earlier report that it lacks.

    A file that was changed since, or that no report wrote, stays.
    """
    before = written_files(draft)
    now = {name: digest(data) for name, data in draft.held.items() if name.startswith(_FOLDER)}
    if before or now:
        draft.write_text(_LIST, json.dumps(dict(sorted(now.items())), indent=0) + "\n")
    for name in before.keys() - now.keys():
        inside = name.startswith(_FOLDER) and draft.is_file(name)
        if inside and digest(draft.read_bytes(name)) == before[name]:
            draft.delete(name)
