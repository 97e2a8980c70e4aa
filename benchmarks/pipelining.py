"""Batches side by side over the devices of a layer split, against one batch after another.

Both sides are ours, and compute the same batches to the same bits on a CPU. On GPUs the layers are
split over as many as there are, up to --devices. A CPU's devices are taken to be cores: each batch
computes on one, and no two batches are in the layers of one device at the same time. This holds
for forward passes; in tuning gradients may overlap more freely than GPUs would let them.

    python benchmarks/pipelining.py --shape 125m --budget 512
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any
from unittest import mock

import labelling
import torch
import typer
import workload

from raybias.config import Backbone
from raybias.engine.adapters.base import SoftPromptTrainer, TrainingBatch
from raybias.engine.backbone import LoadedBackbone, blocks, layer_split, load_backbone
from raybias.engine.context import Execution
from raybias.methods import SoftPrompt

PEER, OURS = "one after another", "side by side"
LABEL_IDS = (2, 3, 4)


@contextmanager
def taking_turns(model: Any, devices: int) -> Iterator[None]:
    """Let one batch at a time into the layers of each device, on a CPU."""
    first, *others = [threading.Lock() for _ in range(devices)]
    inside = list(blocks(model))
    with ExitStack() as hooks:
        for n, block in enumerate(inside):
            turn = [first, *others][n * devices // len(inside)]
            taken = block.register_forward_pre_hook(lambda *_, turn=turn: turn.acquire() and None)
            given = block.register_forward_hook(
                lambda *_, turn=turn: turn.release(), always_call=True
            )
            hooks.callback(taken.remove)
            hooks.callback(given.remove)
        yield


def main(
    rounds: Annotated[int, typer.Option(help="Interleaved rounds; medians are taken.")] = 5,
    items: Annotated[int, typer.Option(help="Texts.")] = 256,
    runs: Annotated[int, typer.Option(help="Runs of a tuning step, of 16 rows each.")] = 8,
    devices: Annotated[int, typer.Option(help="That the layers are split over.")] = 2,
    budget: Annotated[int, typer.Option(help="Tokens of a batch.")] = 512,
    shape: workload.ShapeOption = "125m",
    device: workload.DeviceOption = "cpu",
    dtype: Annotated[str, typer.Option(help="Of both sides.")] = "float32",
    out: workload.OutOption = None,
) -> None:
    """Time reading and tuning on both sides."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder = workload.save_model(
            Path(temporary), shape=shape, dtype=dtype, device="cpu", merges=None
        )
        spec = Backbone.model_validate({"id": str(folder), "dtype": dtype})
        split = Execution(budget, device, devices=1 if device == "cpu" else devices)
        loaded = load_backbone(spec, split)
    texts = workload.items(None, items, attributes=("race",))
    rows = loaded.encoder.encode([str(text) for text in texts])
    method, labels = SoftPrompt(), [n % 3 for n in range(16)]
    sides: dict[str, SoftPromptTrainer] = {}
    for name, passes in ((PEER, 1), (OURS, devices)):
        execution = Execution(budget, device, devices=devices, passes=passes)
        model = LoadedBackbone(loaded.encoder, loaded.model, execution)
        sides[name] = SoftPromptTrainer(model, LABEL_IDS, method)

    def read(name: str) -> torch.Tensor:
        with ExitStack() as stack:
            if device == "cpu":
                stack.enter_context(taking_turns(loaded.model, devices))
            return labelling.label_logits(sides[name], rows)

    def tune(name: str) -> Any:
        trainer = sides[name]
        return trainer.gradients(
            [
                TrainingBatch(
                    trainer.init_weights(s), rows[16 * s :][:16], labels, s, 0, dropout=False
                )
                for s in range(runs)
            ]
        )

    table = []
    for what, work in (("label scores", read), ("a step of prompt tuning", tune)):
        contenders = {name: lambda _turn, name=name, work=work: work(name) for name in sides}
        timings = workload.interleave(contenders, rounds=rounds, device=device)
        table += [
            (what, name, timings.median(name), timings.ratio(PEER, name)) for name in contenders
        ]
    apart = float((read(PEER) - read(OURS)).abs().max())
    with mock.patch.object(
        loaded.model.base_model, "forward", wraps=loaded.model.base_model.forward
    ) as forward:
        read(OURS)
    layers = len(set(layer_split(loaded.model, [f"d{n}" for n in range(devices)]).values()))
    total = sum(map(len, rows))
    note = (
        f"{items} texts of {total} tokens, read in {forward.call_count} batches; steps of {runs}"
        f" runs; batches of {budget} tokens, layers over {layers} devices. Label scores are"
        f" {apart:.1g} apart at most."
    )
    headers = ("work", "batches", "s", "x peer")
    workload.publish(
        f"Pipelining over a layer split, OPT-{shape} shape, {rounds} rounds",
        [f"{workload.markdown(table, headers)}\n\n{note}"],
        device=device, peer="accelerate", out=out,
    )  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
