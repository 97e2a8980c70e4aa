"""Label logits of probe items: ours against batched Hugging Face and lm-eval's HFLM.

All sides get the same tokens in the same requests (`--items` neighbouring items, as one shard of
a study holds) and give three label scores an item. Hugging Face: the whole request sorted by
length, padded batches of 16 and 32, whole logits, the last position's label columns. HFLM: three
`loglikelihood` requests an item, text + " negative", " neutral", " positive", at batch 32; it
computes an item's context once for its three one-token continuations. Results are compared first.

    python benchmarks/scoring.py --rounds 3
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
import workload
from comparison import Comparison, Size
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from raybias.engine.backbone import LoadedBackbone
from raybias.engine.scoring.label_scorer import LabelScorer
from raybias.engine.verbalizer import verbalizer_ids
from raybias.schema import LABELS


def hugging_face(
    model: Any, rows: Sequence[Sequence[int]], ids: list[int], *, batch: int
) -> torch.Tensor:
    """Label logits [N, 3] from padded batches, longest first."""
    order = sorted(range(len(rows)), key=lambda n: -len(rows[n]))
    found_NL = torch.zeros(len(rows), len(ids))
    with torch.inference_mode():
        for first in range(0, len(rows), batch):
            numbers = order[first : first + batch]
            tokens = [torch.tensor(rows[n]) for n in numbers]
            tokens_BT = torch.nn.utils.rnn.pad_sequence(tokens, batch_first=True, padding_value=1)
            last_B = torch.tensor([len(row) - 1 for row in tokens], device=model.device)
            mask_BT = torch.arange(tokens_BT.shape[1], device=model.device) <= last_B[:, None]
            logits_BTV = model(
                input_ids=tokens_BT.to(model.device), attention_mask=mask_BT.long(), use_cache=False
            ).logits
            at_B = torch.arange(len(numbers), device=model.device)
            found_NL[numbers] = logits_BTV[at_B, last_B][:, ids].float().cpu()
    return found_NL


def harness(lm: Any, texts: Sequence[str]) -> torch.Tensor:
    """Log-likelihoods [N, 3] of the three label words after each text."""
    requests = [
        Instance(request_type="loglikelihood", doc={}, arguments=(text, f" {label}"), idx=place)
        for text in texts
        for place, label in enumerate(LABELS)
    ]
    found = [value for value, _ in lm.loglikelihood(requests, disable_tqdm=True)]
    return torch.tensor(found).view(len(texts), len(LABELS))


def same(ours_NL: torch.Tensor, theirs_NL: torch.Tensor) -> str:
    """How far two sides' label probabilities differ."""
    gap_NL = ours_NL.softmax(-1) - theirs_NL.softmax(-1)
    agree = (ours_NL.argmax(-1) == theirs_NL.argmax(-1)).double().mean()
    return f"{float(gap_NL.abs().max()):.1e}, {float(agree):.1%}"


def shards(texts: Sequence[str], size: int, count: int) -> list[list[str]]:
    """`count` runs of `size` neighbouring texts, spread over all of them."""
    step = max(1, (len(texts) - size) // max(1, count - 1))
    return [list(texts[n * step : n * step + size]) for n in range(count)]


@dataclass(frozen=True)
class Sides:
    """Contenders of one comparison, and what they read.

    Attributes
    ----------
    peers: Hugging Face at two batch sizes, then HFLM.
    rows: token rows of each turn.
    """

    peers: dict[str, Callable[[int], torch.Tensor]]
    ours: dict[str, Callable[[int], torch.Tensor]]
    rows: list[list[list[int]]]
    backbone: LoadedBackbone


def sides(
    *, rounds: int, items: int, shape: str, device: str, dtypes: list[str],
    amazon: Path | None = None, merges: Path | None = None,
) -> Sides:  # fmt: skip
    """Make all sides; peers have the first precision."""
    workload.need_tokenizer(merges, amazon)
    first = dtypes[0]
    with tempfile.TemporaryDirectory() as temporary:
        folder = workload.save_model(
            Path(temporary), shape=shape, dtype=first, device=device, merges=merges
        )
        backbones = {name: workload.load(folder, dtype=name, device=device) for name in dtypes}
        model = workload.load_peer(folder, dtype=first, device=device)
    backbone = backbones[first]
    ids = verbalizer_ids(backbone.tokenizer, LABELS)
    requests = shards(workload.items(amazon, 10**6), items, rounds + 1)
    rows = [backbone.encode(texts) for texts in requests]
    lm = HFLM(
        pretrained=model, tokenizer=backbone.tokenizer, batch_size=32, max_length=workload.CONTEXT,
        add_bos_token=True,
    )  # fmt: skip
    peers: dict[str, Callable[[int], torch.Tensor]] = {
        f"Hugging Face {first}, batch {batch}": _hugging_face(model, rows, list(ids), batch)
        for batch in (16, 32)
    }
    peers[f"HFLM {first}, batch 32"] = lambda turn: harness(lm, requests[turn])
    ours = {f"ours {name}": _ours(LabelScorer(each, ids), rows) for name, each in backbones.items()}
    return Sides(peers, ours, rows, backbone)


def comparisons(size: Size) -> Iterator[Comparison]:
    """Compare label scores of probe items with the better of two batch sizes, and with HFLM."""
    torch.set_num_threads(size.threads)
    made = sides(
        rounds=size.rounds, items=size.items, shape=size.shape, device=size.device,
        dtypes=["float32", "bfloat16"], amazon=size.folder("amazon"),
        merges=size.merges,
    )  # fmt: skip
    timings = workload.interleave(
        {**made.peers, **made.ours}, rounds=size.rounds, device=size.device
    )
    *plain, harness_name = made.peers
    best = min(plain, key=timings.busy)
    for peer in (best, harness_name):
        for ours in made.ours:
            yield timings.compared(
                f"label scores, {size.items} items", ours=ours, peer=peer, device=size.device
            )


def main(
    rounds: Annotated[int, typer.Option(help="Interleaved rounds; medians are taken.")] = 3,
    items: Annotated[int, typer.Option(help="Items of a request.")] = 512,
    shape: workload.ShapeOption = "125m",
    device: workload.DeviceOption = "cpu",
    dtype: Annotated[
        str, typer.Option(help="Ours beside float32: bfloat16, float16.")
    ] = "bfloat16",
    full: Annotated[
        bool, typer.Option(help="Peers and ours in float32; else all in dtype.")
    ] = True,
    amazon: Annotated[Path | None, typer.Option(help="Folder with the Amazon templates.")] = None,
    tokenizer: workload.TokenizerOption = None,
    threads: workload.ThreadsOption = 2,
    peak: workload.PeakOption = None,
    out: workload.OutOption = None,
) -> None:
    """Time label scoring of requests of probe items."""
    torch.set_num_threads(threads)
    made = sides(
        rounds=rounds, items=items, shape=shape, device=device,
        dtypes=["float32", dtype] if full else [dtype], amazon=amazon, merges=tokenizer,
    )  # fmt: skip
    peers, ours = made.peers, made.ours
    expected_NL = next(iter(ours.values()))(0)
    alike = {name: same(work(0), expected_NL) for name, work in {**peers, **ours}.items()}
    timings = workload.interleave({**peers, **ours}, rounds=rounds, device=device)
    timed = [row for shard in made.rows[1:] for row in shard]
    publish(
        timings, alike, timed, made.backbone, rounds=rounds, peak=peak,
        title=f"Label scoring, OPT-{shape} shape, {items} items a request, {rounds} rounds",
        device=device, out=out,
    )  # fmt: skip


def _hugging_face(
    model: Any, rows: list[list[list[int]]], ids: list[int], batch: int
) -> Callable[[int], torch.Tensor]:
    return lambda turn: hugging_face(model, rows[turn], ids, batch=batch)


def _ours(scorer: LabelScorer, rows: list[list[list[int]]]) -> Callable[[int], torch.Tensor]:
    return lambda turn: scorer.score(rows[turn])


def publish(
    timings: workload.Timings,
    alike: dict[str, str],
    rows: list[list[int]],
    backbone: LoadedBackbone,
    *,
    rounds: int,
    peak: float | None,
    title: str,
    device: str,
    out: Path | None,
) -> None:
    """Print and write the report."""
    *peers, harness_name = (name for name in timings.wall if not name.startswith("ours"))
    best = min(peers, key=timings.median)
    tokens = sum(map(len, rows))
    distinct = len({tuple(row[:n]) for row in rows for n in range(1, len(row) + 1)})
    flops = workload.model_flops(backbone.model, tokens // rounds, backward=False)
    table = []
    for name in timings.wall:
        precision = next(word for word in workload.DTYPES if word in name)
        limit = peak or workload.peak_tflops(precision, device)
        reached = flops / timings.effective(name, device) / 1e12
        table.append(
            (name, timings.median(name), timings.busy(name), timings.ratio(best, name),
             timings.ratio(harness_name, name), timings.busy_ratio(best, name),
             timings.busy_ratio(harness_name, name), reached, f"{reached / limit:.0%}", alike[name])
        )  # fmt: skip
    headers = (
        "side", "s", "processor s", "x best HF", "x HFLM", "x best HF, processor",
        "x HFLM, processor", "TFLOP/s", "of peak", "probability gap, same label",
    )  # fmt: skip
    note = (
        f"{tokens / len(rows):.1f} tokens an item, {distinct / tokens:.0%} of them distinct "
        "openings. TFLOP/s: blocks only, every token of every item counted, so shared openings "
        "may carry ours past the peak. Last column: against our first, on one request."
    )
    parts = [workload.markdown(table, headers), note]
    workload.publish(title, parts, device=device, peer="lm_eval", out=out)


if __name__ == "__main__":
    typer.run(main)
