"""Choose the dtype of frozen weights by the hardware that will run a study.

bfloat16 halves memory and is fast where a processor multiplies in it; elsewhere it is emulated,
tens of times slower than float32. A CPU's instructions decide, so that a busy machine chooses as an
idle one does; a short product only warns where they are slow.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from raybias.config import Study

if TYPE_CHECKING:
    from raybias.planning.inventory import Inventory, Node

#: Kinds of GPU, as Ray names them, from before bfloat16 (compute capability below 8.0).
_OLD_GPUS: Final = frozenset({"K80", "P4", "P100", "V100", "T4"})
#: Rows, inputs and outputs of the product; a millisecond in float32 on one core.
_PRODUCT: Final = (128, 512, 512)
_ROUNDS: Final = (3, 15)
_BUDGET_S: Final = 0.2


@dataclass(frozen=True)
class Product:
    """A matrix product on a CPU, in bfloat16 against float32."""

    native: bool
    """Whether the CPU has instructions for it."""
    slowdown: float
    """Its time in bfloat16 over that in float32."""


@dataclass(frozen=True)
class Precision:
    """A dtype, and why it was chosen."""

    dtype: str
    reason: str

    def __str__(self) -> str:
        return f"dtype {self.dtype}: {self.reason}"


def measure_product() -> Product:
    """Time a product on this machine's CPU in both dtypes, in turn, for a fraction of a second."""
    import torch

    rows, inputs, outputs = _PRODUCT
    pairs = {
        dtype: (torch.ones(rows, inputs, dtype=dtype), torch.ones(outputs, inputs, dtype=dtype))
        for dtype in (torch.float32, torch.bfloat16)
    }
    best = dict.fromkeys(pairs, float("inf"))
    least, most = _ROUNDS
    end = time.perf_counter() + _BUDGET_S
    for done in range(most):
        if done >= least and time.perf_counter() > end:
            break
        for dtype, (left, right) in pairs.items():
            start = time.perf_counter()
            torch.nn.functional.linear(left, right)
            best[dtype] = min(best[dtype], time.perf_counter() - start)
    able = torch.cpu.get_capabilities()
    return Product(
        native=any(has is True for name, has in able.items() if name.endswith("bf16")),
        slowdown=best[torch.bfloat16] / best[torch.float32],
    )


def decide_dtypes(study: Study, inventory: Inventory) -> tuple[Study, Precision | None]:
    """Replace `auto` by the dtype that suits the nodes which run the study.

    Checkpoints that are quantised keep the one that they were saved for. Returns the study and the
    choice; None where no backbone leaves it open.

    Raises
    ------
    ModelError: a backbone's configuration cannot be read.
    """
    if not study.undecided:
        return study, None
    from raybias.engine.quantised import quantisation

    chosen = choose(inventory, gpus=inventory.gpus_of_worker(study.resources) > 0)
    loaded = [each for each in study.backbones if each.is_checkpoint]
    own = {each.name: quantisation(each) for each in loaded}
    dtypes = {name: how.dtype if how else chosen.dtype for name, how in own.items()}
    left = any(each.dtype == "auto" and own[each.name] is None for each in loaded)
    return study.with_dtypes(dtypes), chosen if left else None


def choose(inventory: Inventory, *, gpus: bool) -> Precision:
    """Choose bfloat16 if every device multiplies in it, and float32 otherwise.

    Parameters
    ----------
    gpus: whether the work runs on GPUs. Those of an unknown kind are taken to be able to, CPUs
        of which nothing was measured are not.
    """
    if gpus:
        return _for_gpus([node for node in inventory.nodes if node.gpus])
    return _for_cpus([node for node in inventory.nodes if node.cpus])


def _for_gpus(nodes: list[Node]) -> Precision:
    lacking = [node for node in nodes if node.bfloat16 is False or node.gpu in _OLD_GPUS]
    if lacking:
        kinds = ", ".join(sorted({node.gpu or "a GPU" for node in lacking}))
        some = f"; {len(lacking)} of {len(nodes)} nodes" if len(lacking) < len(nodes) else ""
        return Precision("float32", f"no bfloat16 on {kinds}{some}")
    if any(node.bfloat16 is None and node.gpu is None for node in nodes):
        return Precision("bfloat16", "assumed of GPUs whose kind is not known")
    kinds = ", ".join(sorted({node.gpu for node in nodes if node.gpu})) or "this GPU"
    return Precision("bfloat16", f"{kinds} can multiply in it")


def _for_cpus(nodes: list[Node]) -> Precision:
    products = [node.product for node in nodes if node.product]
    one = len(nodes) == 1
    if emulating := [each.slowdown for each in products if not each.native]:
        whose = "this CPU" if one else f"the CPU of {len(emulating)} of {len(nodes)} nodes"
        how = f"emulates bfloat16 (product {max(emulating):.1f} times slower)"
        return Precision("float32", f"{whose} {how}")
    if unknown := len(nodes) - len(products):
        whose = f"{unknown} of {len(nodes)} nodes have CPUs that are"
        return Precision("float32", f"{whose} not known to multiply in bfloat16")
    slowest = max(each.slowdown for each in products)
    measured = (
        f"product {1 / slowest:.1f} times faster"
        if slowest <= 1
        else f"although a product just took {slowest:.1f} times as long as in float32; set dtype:"
        " float32 if that holds while nothing else runs"
    )
    whose = "this CPU multiplies" if one else "the CPUs of all nodes multiply"
    return Precision("bfloat16", f"{whose} in it ({measured})")
