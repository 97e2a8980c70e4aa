"""Estimated memory against what real passes take (about 20 s)."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaConfig, OPTConfig

from raybias.config import Backbone
from raybias.engine.memory import total
from raybias.methods import Coreference, Lora, Prefix, SoftPrompt
from raybias.methods.base import Method
from raybias.schema import LABELS
from raybias.testing import inputs
from support.ia3 import Ia3
from support.words import word_tokenizer

TOKENS, RUNS, ROWS = 2048, 3, 50
#: How many times too much an estimate may be, the process itself left out.
FACTOR = 2.5


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random models of some 20M weights, small enough to run and large enough to weigh."""
    import torch
    from transformers import AutoModelForCausalLM

    root = tmp_path_factory.mktemp("models")
    sizes: dict[str, Any] = {"num_hidden_layers": 6, "num_attention_heads": 8, "vocab_size": 1000}
    configs = {
        "opt": OPTConfig(hidden_size=512, ffn_dim=2048, word_embed_proj_dim=512, **sizes),
        "llama": LlamaConfig(hidden_size=512, intermediate_size=1376, **sizes),
    }
    words = ["<pad>", "<s>", *LABELS, *(f"w{n}" for n in range(990))]
    tokenizer = word_tokenizer(words, bos_token="<s>", eos_token="<s>", pad_token="<pad>")
    for name, config in configs.items():
        torch.manual_seed(0)
        AutoModelForCausalLM.from_config(config).save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    return root


@pytest.fixture(scope="module")
def workshop() -> Iterator[Any]:
    """Processes that begin with everything imported and nothing allocated."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["raybias.engine.context", "raybias.methods"])
    return context


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "method", "tunes"),
    [
        ("opt", SoftPrompt(), True),
        ("llama", SoftPrompt(), True),
        ("opt", Prefix(), True),
        ("llama", Prefix(prompt_length=32), True),
        ("llama", Lora(), True),
        ("opt", Ia3(), True),
        ("llama", Coreference(), False),
    ],
    ids=lambda value: getattr(value, "kind", str(value)),
)
def test_an_estimate_is_more_than_a_pass_takes_and_not_much_more(
    model: str, method: Method, tunes: bool, models: Path, workshop: Any
) -> None:
    from raybias.engine.model_shape import model_shape

    spec = Backbone(id=str(models / model), dtype="float32", bos="prepend")
    shape = model_shape(spec)
    work = method.work(inputs(spec))
    if tunes:
        shares = work.tuning_memory(shape, pack=RUNS, tokens=TOKENS, device="cpu")
    else:
        shares = work.reading_memory(shape, tokens=TOKENS, device="cpu")
    receiver, sender = workshop.Pipe(duplex=False)
    process = workshop.Process(target=_measured, args=(sender, spec, method, tunes))
    process.start()
    before, peak = receiver.recv()
    process.join()
    estimate, taken = total(shares[:-1]), peak - before  # the last share is the process
    print(f"{model} {method.name}: estimated {estimate >> 20} MiB, took {taken >> 20} MiB")
    assert peak <= total(shares)
    assert taken <= estimate <= FACTOR * taken


def _measured(sender: Connection, spec: Backbone, method: Method, tunes: bool) -> None:
    """Send the memory before a model was loaded, and the most that its passes took."""
    import torch

    torch.set_num_threads(1)
    use = _tune if tunes else _read
    # Whatever is imported late is imported now.
    use(Backbone(id="planted", dtype="float32"), method, 1)
    before = _status("VmRSS")
    use(spec, method, ROWS)
    sender.send((before, _status("VmHWM")))


def _rows(count: int) -> list[list[int]]:
    return [[1, *((7 * n + 13 * k) % 90 + 5 for k in range(20 + n % 20))] for n in range(count)]


def _tune(spec: Backbone, method: Any, count: int) -> None:
    from raybias.engine.adapters.base import TrainingBatch
    from raybias.engine.backbone import ModelContext
    from raybias.engine.context import Execution

    trainer = method.trainer(ModelContext(spec, LABELS, Execution(TOKENS)))
    shares = [
        TrainingBatch(
            trainer.init_weights(seed), _rows(count), [n % 3 for n in range(count)], seed, 1, True
        )
        for seed in range(RUNS)
    ]
    trainer.gradients(shares)


def _read(spec: Backbone, method: Any, count: int) -> None:
    from raybias.engine.answering import EngineAnswers
    from raybias.engine.backbone import load_backbone
    from raybias.engine.context import Execution
    from raybias.engine.keyed_draws import Sampling

    backbone = load_backbone(spec, Execution(TOKENS))
    generator = EngineAnswers(backbone)
    sampling = Sampling.of(backbone.model, temperature=0)
    rows = [*_rows(count), *(row[::-1] for row in _rows(count))]
    keys = [(n,) for n in range(len(rows))]
    generator.generate(rows, keys, sampling=sampling, max_new_tokens=method.answer_tokens)


def _status(field: str) -> int:
    """Bytes of a field of /proc/self/status."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:"))
