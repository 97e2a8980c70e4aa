"""Questions with options by likelihood: ours against lm-eval's HFLM.

Both get the same requests, a prompt with each of its options, of neighbouring questions of BBQ as
one shard of a study holds, on the same random weights. HFLM reads each prompt once for each option;
ours shares what questions and options begin with, among them the ambiguous context that a
disambiguated one goes on from. The limit is what shared openings alone would give: tokens of all
requests over distinct ones. `--wordings 10` asks with ten wordings of the unknown option, as
lm-eval's task does.

    python benchmarks/options.py --bbq Age.jsonl --rounds 3 --tokenizer DIR
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
from comparison import Comparison, MissingError, Size
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from raybias.config import QuestionProbe
from raybias.engine.packing import Row
from raybias.engine.scoring.causal_logprobs import TokenScorer
from raybias.engine.scoring.continuations import added_up, continuation_rows
from raybias.methods import OptionLikelihood
from raybias.probes import question_items

UNKNOWNS = (
    "Cannot answer", "Can't be determined", "Cannot be determined", "Can't answer", "Not known",
    "Not enough info", "Not enough information", "Not answerable", "Undetermined", "Unknown",
)  # fmt: skip
Requests = list[tuple[str, str]]


def requests_of(bbq: Path, *, items: int, wordings: int) -> list[Requests]:
    """Cut the questions into requests: prompt and continuation of each option."""
    method = OptionLikelihood()
    rows = question_items(QuestionProbe(source="bbq", data=str(bbq))).to_dicts()
    found = []
    for first in range(0, len(rows) - items + 1, items):
        asked: Requests = []
        for item in rows[first : first + items]:
            (question,) = method.requests(item, chat=False)
            named = [o for n, o in enumerate(question.options) if n != item["unknown"]]
            options = [*named, *UNKNOWNS[:wordings]] if wordings else question.options
            text = question.text + question.cue
            asked += [(text, f" {option}") for option in options]
        found.append(asked)
    return found


def harness(lm: Any, asked: Requests) -> torch.Tensor:
    """Log-likelihoods [N] of all continuations."""
    requests = [
        Instance(request_type="loglikelihood", doc={}, arguments=each, idx=n)
        for n, each in enumerate(asked)
    ]
    return torch.tensor([value for value, _ in lm.loglikelihood(requests, disable_tqdm=True)])


@dataclass(frozen=True)
class Sides:
    """HFLM and ours, how far apart their results are, and the token rows of each turn."""

    contenders: dict[str, Callable[[int], torch.Tensor]]
    gap: float
    rows: Sequence[Sequence[tuple[Row, int]]]


def sides(
    bbq: Path, *, rounds: int, items: int, wordings: int, batch: int, shape: str, device: str,
    merges: Path | None = None,
) -> Sides:  # fmt: skip
    """Make both sides and compare their results."""
    workload.need_tokenizer(merges, bbq)
    with tempfile.TemporaryDirectory() as temporary:
        folder = workload.save_model(
            Path(temporary), shape=shape, dtype="float32", device=device, merges=merges
        )
        backbone = workload.load(folder, dtype="float32", device=device)
        model = workload.load_peer(folder, dtype="float32", device=device)
    asked = requests_of(bbq, items=items, wordings=wordings)[: rounds + 1]
    rows = [continuation_rows(backbone.encoder, each) for each in asked]
    scorer = TokenScorer(backbone)
    lm = HFLM(
        pretrained=model, tokenizer=backbone.tokenizer, batch_size=batch,
        max_length=workload.CONTEXT, add_bos_token=True,
    )  # fmt: skip
    contenders: dict[str, Callable[[int], torch.Tensor]] = {
        f"HFLM float32, batch {batch}": lambda turn: harness(lm, asked[turn]),
        "ours float32": lambda turn: torch.tensor(added_up(scorer.prepare(rows[turn])())),
    }
    theirs, ours = (work(0) for work in contenders.values())
    return Sides(contenders, float((theirs - ours).abs().max()), rows)


def comparisons(size: Size) -> Iterator[Comparison]:
    """Compare the reading of BBQ's questions with HFLM's."""
    folder = size.folder("bbq")
    files = sorted(folder.glob("*.jsonl*")) if folder is not None else []
    if not files:
        raise MissingError("needs bbq in --data (`raybias data download bbq`)")
    torch.set_num_threads(size.threads)
    items = max(1, size.items // 8)
    made = sides(
        files[0], rounds=size.rounds, items=items, wordings=0, batch=32, shape=size.shape,
        device=size.device, merges=size.merges,
    )  # fmt: skip
    timings = workload.interleave(made.contenders, rounds=size.rounds, device=size.device)
    peer, ours = made.contenders
    work = f"questions with options, {items} questions"
    yield timings.compared(work, ours=ours, peer=peer, device=size.device)


def main(
    bbq: Annotated[Path, typer.Option(help="A file of BBQ, with or without answers.")],
    rounds: Annotated[int, typer.Option(help="Interleaved rounds; medians are taken.")] = 3,
    items: Annotated[int, typer.Option(help="Questions of a request.")] = 128,
    wordings: Annotated[int, typer.Option(help="Wordings of unknown; 0 for the published.")] = 0,
    batch: Annotated[int, typer.Option(help="Rows of HFLM's batch.")] = 32,
    shape: workload.ShapeOption = "125m",
    device: workload.DeviceOption = "cpu",
    tokenizer: workload.TokenizerOption = None,
    threads: workload.ThreadsOption = 2,
    out: workload.OutOption = None,
) -> None:
    """Time the reading of questions with options in float32."""
    torch.set_num_threads(threads)
    made = sides(
        bbq, rounds=rounds, items=items, wordings=wordings, batch=batch, shape=shape,
        device=device, merges=tokenizer,
    )  # fmt: skip
    rows, peer = made.rows, next(iter(made.contenders))
    timings = workload.interleave(made.contenders, rounds=rounds, device=device)
    tokens = [row for each in rows[1:] for row, _ in each]
    limit = sum(map(len, tokens)) / sum(
        workload.distinct_tokens([row for row, _ in each]) for each in rows[1:]
    )
    table = [
        (name, timings.median(name), timings.busy(name), timings.ratio(peer, name),
         timings.busy_ratio(peer, name))
        for name in timings.wall
    ]  # fmt: skip
    note = (
        f"{len(tokens) / items / rounds:.0f} options a question,"
        f" {sum(map(len, tokens)) / len(tokens):.1f} tokens a row; shared openings alone would give"
        f" {limit:.2f}x, and ours reaches {timings.busy_ratio(peer, 'ours float32') / limit:.0%} of"
        f" it in processor time. Largest difference of log-likelihoods {made.gap:.1e}."
    )
    headers = ("side", "s", "processor s", "x HFLM", "x HFLM, processor")
    title = f"Questions with options, OPT-{shape} shape, {items} questions a request"
    parts = [workload.markdown(table, headers), note]
    workload.publish(title, parts, device=device, peer="lm_eval", out=out)


if __name__ == "__main__":
    typer.run(main)
