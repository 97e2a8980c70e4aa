"""The engine's passes on a GPU that is not there, for tests/engine/test_determinism.py. Not a test.

Torch's fake tensors have a device and a shape and no values: to mix devices, and to ask for a
value, is an error. So is a copy from the host that would wait for a GPU, as all but `to_device` do.
The device is torch's for backends written in Python, which a process has once.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[2]))


from benchmarks import labelling
from raybias.config import Backbone
from raybias.engine.adapters.base import TrainingBatch, stack_weights
from raybias.engine.adapters.prefix import PrefixTrainer
from raybias.engine.adapters.vectors import SoftPromptTrainer
from raybias.engine.answering import Opening
from raybias.engine.backbone import ModelContext, layer_split
from raybias.engine.devices import to_device
from raybias.engine.keyed_draws import KeyedDraw, Sampling
from raybias.engine.masked_scores import MaskedScorer, load_masked
from raybias.engine.packing import Placed, stack
from raybias.engine.token_scores import TokenScorer
from raybias.methods import Full, Lora, Prefix, SoftPrompt
from raybias.methods.finetuned import VectorTuned
from raybias.schema import LABELS
from support import backbones, pair_models

ROWS = [(1, 5, 6, 7, 9), (1, 5, 8), (1, 9, 10, 11, 12, 13, 14), (1, 5, 6, 20)]
GPU = "gpu"


class Host(TorchFunctionMode):
    """Bring in what the host holds, which torch does below the modes otherwise, if by `to_device`.

    `events` has what is asked of the device, between the passes that a caller puts there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.events: list[str] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        # Transformers' own are few, and in no step.
        caller = sys._getframe(1)
        while caller.f_code.co_name == "__torch_function__":
            caller = caller.f_back
        ours = caller.f_globals["__name__"].partition(".")[0] in ("raybias", __name__)
        waits = ours and caller.f_code is not to_device.__code__
        if func is torch.tensor:
            device = given.pop("device", torch.device("cpu"))
            if waits and _on_gpu(device):
                raise Waits("torch.tensor")
            return _there(func(*args, **given), device)
        if func is torch.Tensor.to and not _on_gpu(args[0].device):
            for device in filter(_on_gpu, (*args[1:], *given.values())):
                if waits:
                    raise Waits("Tensor.to")
                return _there(args[0], device)
        if func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__) and _on_gpu(args[0].device):
            places = args[1] if isinstance(args[1], tuple) else (args[1],)
            if waits and any(isinstance(each, list) or _of_host(each) for each in places):
                raise Waits("an index")
        if func is torch.Tensor.cpu:
            self.events.append("asked")
        if func is torch.Tensor.numpy:
            return np.zeros(args[0].shape, np.float32)
        return func(*args, **given)


class Waits(AssertionError):
    """A copy to the device that waits until the device is done."""


def _on_gpu(place: Any) -> bool:
    return isinstance(place, torch.device) and place.type == GPU


def _of_host(place: Any) -> bool:
    return isinstance(place, torch.Tensor) and not _on_gpu(place.device)


def _there(made: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Make the like of a tensor on a device; to move a single value, torch would look at it."""
    return torch.empty(made.shape, dtype=made.dtype, device=device)


@contextmanager
def faked(host: Host | None = None) -> Iterator[torch.device]:
    with ExitStack() as stack_, FakeTensorMode(allow_non_fake_inputs=True), host or Host():
        # The device has no precision of its own, and nothing here is half.
        stack_.callback(setattr, torch, "autocast", torch.autocast)
        torch.autocast = lambda *_, **__: nullcontext()
        yield torch.device(GPU, 0)


def moved(model: Any, device: torch.device, devices: int = 1) -> None:
    """Put a model on the device, or its layers on several, with accelerate's hooks."""
    there = [torch.device(GPU, n) for n in range(devices)]
    places = layer_split(model, there) if devices > 1 else {"": device}
    for name, place in places.items():
        part = model.get_submodule(name)
        part._apply(lambda each, to=place: torch.empty(each.shape, dtype=each.dtype, device=to))
        if devices > 1:
            # What dispatch_model puts on, less moving the weights.
            add_hook_to_module(part, AlignDevicesHook(place, io_same_device=False))
    if devices > 1:
        add_hook_to_module(model, AlignDevicesHook(there[0], io_same_device=True))
    model.requires_grad_(False)


def training(
    trainer: Any, shapes: dict[str, torch.Size], device: torch.device, devices: int
) -> None:
    """Take the gradients of two runs of unequally many rows; on several devices the logits.

    Torch's autograd knows one such device.
    """
    weights = [
        {name: torch.empty(shape, device=device) for name, shape in shapes.items()}
        for _ in range(2)
    ]
    batches = [
        TrainingBatch(each, ROWS[: 4 - s], (0,) * (4 - s), 1, 3, True)
        for s, each in enumerate(weights)
    ]
    if devices > 1:
        placed = [Placed(s, each) for s in range(2) for each in trainer.prepare(ROWS[: 4 - s])]
        with torch.no_grad():
            logits_NL = trainer.forward(stack(placed), stack_weights(weights), batches)
        assert logits_NL.device == device
        return
    gradients, losses = trainer.gradients(batches)
    assert losses.device.type == GPU
    for run in gradients:
        assert {tensor.device.type for tensor in run.values()} == {GPU}


def tuning(method: Any, devices: int = 1) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        spec = backbones.spec_of("llama", folder / "llama")
        trainer = method.trainer(ModelContext(spec, LABELS))
        prompts = isinstance(method, VectorTuned)
        loaded = trainer.backbone if prompts else trainer.classifier
        shapes = {name: each.shape for name, each in trainer.init_weights(0).items()}
        with faked() as device:
            moved(loaded.model, device, devices)
            loaded.device = trainer.device = trainer.batcher.device = device
            if prompts:
                move_label_rows(trainer, device)
            if isinstance(trainer, PrefixTrainer):
                layers = len(trainer.shape.devices)
                there = tuple(torch.device(GPU, n * devices // layers) for n in range(layers))
                trainer.shape = replace(trainer.shape, devices=there)
            training(trainer, shapes, device, devices)

    return run


def move_label_rows(trainer: SoftPromptTrainer | PrefixTrainer, device: torch.device) -> None:
    trainer.device = device
    if isinstance(trainer, SoftPromptTrainer):
        rows = trainer.label_logits.rows
        trainer._start_D = torch.empty(trainer.backbone.width, device=device)
    else:
        rows = trainer.label_rows
    assert rows is not None
    for part in ("weight_LH", "bias_L"):
        if (tensor := getattr(rows, part)) is not None:
            object.__setattr__(rows, part, torch.empty(tensor.shape, device=device))


@torch.no_grad()
def decoding(folder: Path, devices: int = 1) -> None:
    """What stands around transformers' `generate`, which asks a device for values by itself."""
    loaded = backbones.load("llama", folder)
    sampler = Sampling(0.8, 5, 0.9, 0.01, 1.3, (1,))
    with faked() as device:
        moved(loaded.model, device, devices)
        loaded.device = device
        opening = Opening(loaded)
        opening.set([1, 5])
        cache = opening.cache(len(ROWS), 9)
        draw = KeyedDraw(sampler, [(n,) for n in range(len(ROWS))], 3, device, (2, 3, 4))
        tokens_NT = to_device([row[:3] for row in ROWS], device)
        for _ in range(3):
            logits_NV = loaded.model(
                input_ids=tokens_NT[:, -1:], past_key_values=cache, use_cache=True
            ).logits[:, -1]
            assert draw(tokens_NT, logits_NV).device.type == GPU
        assert (draw.labels_NL.device.type, draw.labels_NL.shape) == (GPU, (4, 3))


@torch.no_grad()
def scoring(folder: Path) -> None:
    """Read several batches, and ask for nothing before the last of them has begun."""
    loaded = backbones.load("llama", folder)
    spec = Backbone(id=str(pair_models.save("bert", folder)), dtype="float32")
    masked = load_masked(spec)
    labels = labelling.labeller(loaded, (2, 3, 4))
    tokens, words = TokenScorer(loaded), MaskedScorer(masked)
    host = Host()
    many = [[n, *range(2, 14)] for n in range(1, 40)]
    with faked(host) as device:
        for each in (loaded, masked):
            moved(each.model, device)
            each.device = device
            each.model.base_model.register_forward_pre_hook(lambda *_: host.events.append("pass"))
        move_label_rows(labels, device)
        for scorer, work in (
            (labels, lambda: labelling.label_logits(labels, many)),
            (tokens, tokens.prepare([(row, 1) for row in many])),
            (words, words.prepare([[(row, 2) for row in many]])),
        ):
            scorer.batcher.device, scorer.batcher.tokens_per_batch = device, 200
            host.events.clear()
            work()
            passes = host.events.index("asked")
            assert passes > 1, host.events
            assert "pass" not in host.events[passes:], host.events


def waits(folder: Path) -> None:
    """What must be found: a copy that waits for the device."""
    with faked() as device:
        torch.ones(2, device=device) + torch.ones(2).to(device)


def misplaced(folder: Path) -> None:
    """What must be found: a tensor made without its device."""
    with faked() as device:
        torch.ones(2, device=device) + torch.ones(2)


PASSES: dict[str, Callable[[Path], None]] = {
    "soft prompts": tuning(SoftPrompt()),
    "prefixes": tuning(Prefix()),
    "lora": tuning(Lora(dropout=0.1)),
    "full": tuning(Full()),
    "scoring": scoring,
    "decoding": decoding,
    "soft prompts on two": tuning(SoftPrompt(), 2),
    "prefixes on two": tuning(Prefix(), 2),
    "lora on two": tuning(Lora(dropout=0.1), 2),
    "decoding on two": partial(decoding, devices=2),
    "waits": waits,
    "misplaced": misplaced,
}


def main() -> None:
    _setup_privateuseone_for_python_backend(GPU)
    with tempfile.TemporaryDirectory() as folder:
        for name, run in PASSES.items():
            try:
                run(Path(folder))
                print(f"{name}: ok", flush=True)
            except Exception as error:
                if "-v" in sys.argv:
                    raise
                print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)


if __name__ == "__main__":
    main()
