"""Prompt tuning: 15 seeds in one pack against 15 PEFT runs, one after another.

Both sides take the same optimizer steps on the same rows: batch 8 a seed, 8 prompt vectors,
AdamW, label logits read at each row's last token, cross-entropy over the three labels. PEFT does
what a user of it writes: the tokenizer pads to the longest row of the batch, `PeftModel` gives
logits [batch, tokens, vocabulary], and the label columns at the last position are kept. A round
times one step of all seeds of ours and `--peer-seeds` sequential steps of PEFT's (no dropout),
scaled to all seeds. Our side is the real `PackedTuner`, an evaluation on one short row included.

    python benchmarks/tuning.py --rounds 5
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
from peft import PromptTuningConfig, get_peft_model
from torch.nn.functional import cross_entropy
from where import between

from raybias.engine.adapters.schedule import batch_of_step
from raybias.engine.adapters.soft_prompt import PromptOptions, SoftPromptTrainer
from raybias.engine.adapters.tuning import PackedTuner, TokenSet, Trial
from raybias.engine.packing import pack
from raybias.engine.scoring.label_scorer import LabelScorer
from raybias.engine.verbalizer import verbalizer_ids
from raybias.methods import SoftPrompt
from raybias.methods.tuned import options_for
from raybias.schema import LABELS

RATE = 1e-3


@dataclass(frozen=True)
class Data:
    """Token rows and labels, and the label ids."""

    rows: TokenSet
    label_ids: tuple[int, ...]


def packed(
    folder: Path, data: Data, seeds: int, *, dtype: str, device: str, deterministic: bool = False
) -> PackedTuner:
    """Our side: the seeds as one pack, one step between evaluations on a single row."""
    backbone = workload.load(folder, dtype=dtype, device=device, deterministic=deterministic)
    method = SoftPrompt(
        seeds=tuple(range(seeds)), keep=1, learning_rates=(RATE,), batch_size=8, eval_every=1
    )
    units = [Trial(f"s{seed}", seed, RATE, "final", 1e-2, 5) for seed in method.seeds]
    shortest = min(data.rows.rows, key=len)
    one = TokenSet((shortest,), (0,))
    scorer = LabelScorer(backbone, data.label_ids)
    trainer = SoftPromptTrainer(scorer, options_for(PromptOptions, method))
    return PackedTuner(trainer, method.recipe, units, train=data.rows, validation=one)


def peft_step(folder: Path, data: Data, *, dtype: str, device: str) -> Callable[[int, int], None]:
    """PEFT's side: a function that takes one step of a seed."""
    config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=8)
    model: Any = get_peft_model(workload.load_peer(folder, dtype=dtype, device=device), config)
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=RATE)
    ids = list(data.label_ids)

    def step(seed: int, number: int) -> None:
        batch = batch_of_step(seed, number, rows=len(data.rows.rows), batch_size=8)
        rows = [torch.tensor(data.rows.rows[n]) for n in batch]
        tokens_BT = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=1)
        mask_BT = torch.nn.utils.rnn.pad_sequence(
            [torch.ones_like(row) for row in rows], batch_first=True
        )
        logits_BTV = model(
            input_ids=tokens_BT.to(device), attention_mask=mask_BT.to(device), use_cache=False
        ).logits
        last_B = torch.tensor([len(row) + 7 for row in rows], device=device)
        label_BL = logits_BTV[torch.arange(len(rows), device=device), last_B][:, ids]
        target_B = torch.tensor([data.rows.labels[n] for n in batch], device=device)
        loss: Any = cross_entropy(label_BL.float(), target_B)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@dataclass(frozen=True)
class Sides:
    """Contenders of one comparison, the peer first, and what they were made of.

    Attributes
    ----------
    contenders: one step of all seeds, or the part of it that `scale` makes up for.
    tuners: our packs by precision.
    step: PEFT's step of one seed.
    """

    contenders: dict[str, Callable[[int], object]]
    scale: dict[str, float]
    tuners: dict[str, PackedTuner]
    step: Callable[[int, int], None]
    data: Data
    model: Any

    @property
    def peer(self) -> str:
        """The name of PEFT's side."""
        return next(iter(self.contenders))


def sides(
    *,
    seeds: int,
    peer_seeds: int,
    shape: str,
    device: str,
    dtypes: list[str],
    sst5: Path | None = None,
    merges: Path | None = None,
    alone: bool = True,
) -> Sides:
    """Make both sides; PEFT has the first precision, and `alone` has ours one by one too."""
    workload.need_tokenizer(merges, sst5)
    first, last = dtypes[0], dtypes[-1]
    with tempfile.TemporaryDirectory() as temporary:
        folder = workload.save_model(
            Path(temporary), shape=shape, dtype=first, device=device, merges=merges
        )
        texts, labels = workload.sentences(sst5, 4000)
        backbone = workload.load(folder, dtype=last, device=device)
        rows = tuple(map(tuple, backbone.encode(texts)))
        data = Data(TokenSet(rows, tuple(labels)), verbalizer_ids(backbone.tokenizer, LABELS))
        tuners = {name: packed(folder, data, seeds, dtype=name, device=device) for name in dtypes}
        single = {
            name: packed(folder, data, 1, dtype=name, device=device)
            for name in (tuners if alone else ())
        }
        step = peft_step(folder, data, dtype=first, device=device)
    peer = f"PEFT {first}, one by one"
    contenders: dict[str, Callable[[int], object]] = {
        peer: lambda turn: [step(seed, turn) for seed in range(peer_seeds)]
    }
    for name, tuner in single.items():
        contenders[f"ours {name}, one by one"] = partial(_advance, tuner, peer_seeds)
    scale = dict.fromkeys(contenders, seeds / peer_seeds)
    for name, tuner in tuners.items():
        contenders[f"ours {name}, packed"] = partial(_advance, tuner, 1)
    return Sides(contenders, scale, tuners, step, data, backbone.model)


def comparisons(size: Size) -> Iterator[Comparison]:
    """Compare a step of all seeds with PEFT's, in both precisions."""
    torch.set_num_threads(size.threads)
    made = sides(
        seeds=size.seeds, peer_seeds=min(3, size.seeds), shape=size.shape, device=size.device,
        dtypes=["float32", "bfloat16"], sst5=size.folder("sst5"), merges=size.merges, alone=False,
    )  # fmt: skip
    timings = workload.interleave(
        made.contenders, rounds=size.rounds, device=size.device, scale=made.scale
    )
    for name in made.tuners:
        yield timings.compared(
            f"prompt tuning, {size.seeds} seeds", ours=f"ours {name}, packed", peer=made.peer,
            device=size.device,
        )  # fmt: skip


def main(
    rounds: Annotated[int, typer.Option(help="Interleaved rounds; medians are taken.")] = 5,
    seeds: Annotated[int, typer.Option(help="Seeds of the pack.")] = 15,
    peer_seeds: Annotated[int, typer.Option(help="Sequential steps a round, scaled up.")] = 3,
    shape: workload.ShapeOption = "125m",
    device: workload.DeviceOption = "cpu",
    dtype: Annotated[
        str, typer.Option(help="Ours beside float32: bfloat16, float16.")
    ] = "bfloat16",
    full: Annotated[bool, typer.Option(help="Also PEFT and ours in float32.")] = True,
    sst5: Annotated[Path | None, typer.Option(help="Folder with SST-5's files.")] = None,
    tokenizer: workload.TokenizerOption = None,
    threads: workload.ThreadsOption = 2,
    peak: workload.PeakOption = None,
    out: workload.OutOption = None,
) -> None:
    """Time a step of all seeds, packed and one by one."""
    torch.set_num_threads(threads)
    made = sides(
        seeds=seeds, peer_seeds=peer_seeds, shape=shape, device=device,
        dtypes=["float32", dtype] if full else [dtype], sst5=sst5, merges=tokenizer,
    )  # fmt: skip
    contenders, peer, tuners, data = made.contenders, made.peer, made.tuners, made.data
    timings = workload.interleave(contenders, rounds=rounds, device=device, scale=made.scale)
    tokens = seeds * needed_tokens(data, seeds, range(rounds + 1))
    flops = workload.model_flops(made.model, tokens, backward=True)
    table = []
    for name in contenders:
        precision = next(word for word in workload.DTYPES if word in name)
        limit = peak or workload.peak_tflops(precision, device)
        reached = flops / timings.effective(name, device) / 1e12
        table.append(
            (name, timings.median(name), timings.busy(name), timings.ratio(peer, name),
             timings.busy_ratio(peer, name), reached, limit, f"{reached / limit:.0%}")
        )  # fmt: skip
    headers = (
        f"{seeds} seeds, a step each", "s", "processor s", "x PEFT", "x PEFT, processor",
        "TFLOP/s of needed work", "peak", "utilisation",
    )  # fmt: skip
    ours = {
        f"ours {name}, packed": partial(_advance, tuner, 1, 0) for name, tuner in tuners.items()
    }
    workload.publish(
        f"Prompt tuning, OPT-{shape} shape, batch 8 a seed, {rounds} rounds",
        [
            workload.markdown(table, headers),
            f"Needed work: {tokens / seeds:.0f} tokens a seed and step (distinct text, one prompt),"
            " blocks only, forward and the gradient of activations. Peak: a large matrix product"
            " in the same precision, measured beside the rounds or given.",
            between(ours, dict.fromkeys(ours, flops), device),
        ],
        device=device, peer="peft", out=out,
    )  # fmt: skip


def needed_tokens(data: Data, seeds: int, steps: range) -> float:
    """Mean tokens of a seed's step that no method can leave out: distinct text, one prompt."""
    rows = data.rows.rows
    batches = [
        batch_of_step(seed, step, rows=len(rows), batch_size=8)
        for seed in range(seeds) for step in steps
    ]  # fmt: skip
    found = [pack([rows[n] for n in batch], max_tokens=10**6) for batch in batches]
    return 8 + sum(len(sequence.tokens) for (sequence,) in found) / len(found)


def _advance(tuner: PackedTuner, times: int, _turn: int) -> None:
    for _ in range(times):
        tuner.advance()


if __name__ == "__main__":
    typer.run(main)
