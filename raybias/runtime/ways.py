"""Write down in OUT how each backbone was read and on what, and warn of refused short cuts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from raybias.storage import Store

if TYPE_CHECKING:
    import torch

    from raybias.engine.backbone import ModelContext

#: One file for each backbone and purpose.
FOLDER: Final = "readers"


def device_name(device: torch.device) -> str:
    """Return the kind of a GPU, as its maker names it, or what else a device is."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def keep_ways(store: Store, context: ModelContext) -> None:
    """Write how a model that is in use is read, where OUT does not have it yet."""
    import torch

    from raybias.engine.quantised import quantisation

    on = device_name(torch.device(context.execution.device))
    for purpose, way in context.execution.ways.items():
        name = f"{FOLDER}/{context.spec.name}.{purpose.replace(' ', '_')}.json"
        if not store.exists(name):
            how = quantisation(context.spec)
            record = {
                "backbone": context.spec.name,
                "purpose": purpose,
                "way": way.how,
                "fastest": way.fastest,
                "dtype": context.spec.dtype,
                "quantised": how.method if how is not None else None,
                "device": on,
                "torch": torch.__version__,
                "deterministic": torch.are_deterministic_algorithms_enabled(),
            }
            store.write_text(name, json.dumps(record, indent=1))


def slow_ways(store: Store) -> Iterator[str]:
    """Yield a line for each backbone of OUT that is read in a slower way than others."""
    for name in store.files(FOLDER, suffix=".json"):
        record = json.loads(store.read_text(name))
        if not record["fastest"]:
            yield (
                f"warning: {record['backbone']} is read slowly for {record['purpose']}"
                f" ({record['way']}): a short cut gave other values than the model"
                f" in {record['dtype']} on {record['device']}"
            )
