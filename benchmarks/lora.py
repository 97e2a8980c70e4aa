"""Packed LoRA against PEFT runs one by one, on the same work.

A step of every seed: forward, backward and AdamW on each seed's own batch of eight, rank 8
on all linear layers of an OPT with a classification head. PEFT trains as its users do: one
run, batches padded to their longest row, the model in train mode.

    python benchmarks/lora.py --sst5 DIR --tokenizer DIR
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
import workload
from comparison import Comparison, Size
from peft import LoraConfig, get_peft_model
from torch.nn.functional import cross_entropy
from transformers import AutoModelForSequenceClassification
from where import between

from raybias.config import Backbone
from raybias.engine.adapters.schedule import batch_of_step
from raybias.engine.adapters.tuning import PackedTuner, TokenSet, Trial
from raybias.engine.backbone import ModelContext
from raybias.engine.context import Execution
from raybias.methods import EarlyStop, Lora
from raybias.schema import LABELS

RATE = 1e-4


def packed(
    folder: Path,
    rows: TokenSet,
    seeds: int,
    *,
    dtype: str,
    device: str,
    dropout: float = 0.1,
    deterministic: bool = False,
) -> PackedTuner:
    """Our side: the seeds as one pack, one step between evaluations on a single row."""
    method = Lora(
        seeds=tuple(range(seeds)), keep=1, learning_rates=(RATE,), batch_size=8, eval_every=1,
        early_stop=EarlyStop(after_step=10**6), max_steps=10**6, dropout=dropout,
    )  # fmt: skip
    spec = Backbone.model_validate({"id": str(folder), "dtype": dtype})
    execution = Execution(device=device, deterministic=deterministic)
    trainer = method.trainer(ModelContext(spec, LABELS, execution))
    units = [Trial(f"s{seed}", seed, RATE, "final", 1e-4, 5) for seed in method.seeds]
    one = TokenSet((min(rows.rows, key=len),), (0,))
    return PackedTuner(trainer, method.recipe, units, train=rows, validation=one)


def peft_step(
    folder: Path, rows: TokenSet, tuner: PackedTuner, *, dtype: str, device: str
) -> Callable[[int, int], None]:
    """PEFT's side: a function that takes one step of a seed."""
    method = Lora(keep=1)
    trainer: Any = tuner.trainer
    base = AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=3, dtype=getattr(torch, dtype), pad_token_id=1
    )
    config = LoraConfig(
        task_type="SEQ_CLS", r=method.rank, lora_alpha=int(method.alpha),
        lora_dropout=method.dropout, target_modules=list(trainer.widths),
    )  # fmt: skip
    model: Any = get_peft_model(base.to(device), config).train()
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=RATE)

    def step(seed: int, number: int) -> None:
        batch = batch_of_step(seed, number, rows=len(rows.rows), batch_size=8)
        tokens = [torch.tensor(rows.rows[n]) for n in batch]
        tokens_BT = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=1)
        mask_BT = torch.nn.utils.rnn.pad_sequence(
            [torch.ones_like(row) for row in tokens], batch_first=True
        )
        logits_BL = model(input_ids=tokens_BT.to(device), attention_mask=mask_BT.to(device)).logits
        target_B = torch.tensor([rows.labels[n] for n in batch], device=device)
        loss: Any = cross_entropy(logits_BL.float(), target_B)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@dataclass(frozen=True)
class Sides:
    """Contenders of one comparison: PEFT, ours one by one, ours packed; and what they share."""

    contenders: dict[str, Callable[[int], object]]
    rows: TokenSet
    model: Any


def sides(
    *, seeds: int, shape: str, device: str, dtype: str, sst5: Path | None = None,
    merges: Path | None = None,
) -> Sides:  # fmt: skip
    """Make all sides, in one precision."""
    workload.need_tokenizer(merges, sst5)
    with tempfile.TemporaryDirectory() as temporary:
        folder = workload.save_model(
            Path(temporary), shape=shape, dtype=dtype, device=device, merges=merges
        )
        texts, labels = workload.sentences(sst5, 4000)
        encoded = workload.load(folder, dtype=dtype, device="cpu").encode(texts)
        rows = TokenSet(tuple(map(tuple, encoded)), tuple(labels))
        together = packed(folder, rows, seeds, dtype=dtype, device=device)
        alone = packed(folder, rows, 1, dtype=dtype, device=device)
        step = peft_step(folder, rows, together, dtype=dtype, device=device)
    contenders: dict[str, Callable[[int], object]] = {
        f"PEFT {dtype}, one by one": lambda turn: [step(seed, turn) for seed in range(seeds)],
        f"ours {dtype}, one by one": partial(_advance, alone, seeds),
        f"ours {dtype}, packed": partial(_advance, together, 1),
    }
    trainer: Any = together.trainer
    return Sides(contenders, rows, trainer.classifier.model)


def comparisons(size: Size) -> Iterator[Comparison]:
    """Compare a step of all seeds with PEFT's."""
    torch.set_num_threads(size.threads)
    # A third of soft prompts' seeds: a step of LoRA costs more.
    seeds = max(2, size.seeds // 3)
    made = sides(
        seeds=seeds, shape=size.shape, device=size.device, dtype="float32",
        sst5=size.folder("sst5"),
        merges=size.merges,
    )  # fmt: skip
    peer, _, ours = made.contenders
    timings = workload.interleave(
        {name: made.contenders[name] for name in (peer, ours)}, rounds=size.rounds,
        device=size.device,
    )  # fmt: skip
    yield timings.compared(f"LoRA, {seeds} seeds", ours=ours, peer=peer, device=size.device)


def main(
    rounds: Annotated[int, typer.Option(help="Interleaved rounds; medians are taken.")] = 5,
    seeds: Annotated[int, typer.Option(help="Seeds of the pack.")] = 5,
    shape: workload.ShapeOption = "125m",
    device: workload.DeviceOption = "cpu",
    dtype: Annotated[str, typer.Option(help="Of the frozen weights, both sides.")] = "float32",
    sst5: Annotated[Path | None, typer.Option(help="Folder with SST-5's files.")] = None,
    tokenizer: workload.TokenizerOption = None,
    threads: workload.ThreadsOption = 2,
    peak: workload.PeakOption = None,
    out: workload.OutOption = None,
) -> None:
    """Time a step of all seeds, packed and one by one."""
    torch.set_num_threads(threads)
    made = sides(seeds=seeds, shape=shape, device=device, dtype=dtype, sst5=sst5, merges=tokenizer)
    contenders, rows = made.contenders, made.rows
    peer = next(iter(contenders))
    timings = workload.interleave(contenders, rounds=rounds, device=device)
    lengths = [
        len(rows.rows[n])
        for seed in range(seeds) for turn in range(rounds + 1)
        for n in batch_of_step(seed, turn, rows=len(rows.rows), batch_size=8)
    ]  # fmt: skip
    tokens = sum(lengths) / (rounds + 1)
    flops = workload.model_flops(made.model, tokens, backward=True)
    limit = peak or workload.peak_tflops(dtype, device)
    table = []
    for name in contenders:
        reached = flops / timings.effective(name, device) / 1e12
        table.append(
            (name, timings.median(name), timings.busy(name), timings.ratio(peer, name),
             timings.busy_ratio(peer, name), reached, limit, f"{reached / limit:.0%}")
        )  # fmt: skip
    headers = (
        f"{seeds} seeds, a step each", "s", "processor s", "x PEFT", "x PEFT, processor",
        "TFLOP/s of needed work", "peak", "utilisation",
    )  # fmt: skip
    workload.publish(
        f"LoRA on all linear layers, OPT-{shape} shape, batch 8 a seed, {rounds} rounds",
        [
            workload.markdown(table, headers),
            between(
                {name: partial(contenders[name], 0) for name in contenders if name != peer},
                dict.fromkeys(contenders, flops), device,
            ),
            f"Needed work: {tokens / seeds:.0f} tokens a seed and step, frozen blocks only, forward"
            " and the gradient of activations; the factors come on top. Peak: a large matrix"
            " product in the same precision.",
        ],
        device=device, peer="peft", out=out,
    )  # fmt: skip


def _advance(tuner: PackedTuner, times: int, _turn: int) -> None:
    for _ in range(times):
        tuner.advance()


if __name__ == "__main__":
    typer.run(main)
