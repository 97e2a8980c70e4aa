"""Questions with options by likelihood: ours against lm-eval's HFLM.

Both get the same requests, a prompt with each of its options, of neighbouring questions of BBQ as
one shard of a study holds, on the same random weights. HFLM reads each prompt once for each option;
ours shares what questions and options begin with, among them the ambiguous context that a
disambiguated one goes on from. Ten wordings of the unknown option are asked as lm-eval's task does.

    python -m benchmarks --only options --data DIR
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import torch
from harness import Comparison, MissingError, Part, Size, measured
from scoring import harness_model, log_likelihoods
from workload import saved

from raybias.config import QuestionProbe
from raybias.engine.packing import Row
from raybias.engine.sentence_scores import continuation_rows
from raybias.engine.token_scores import TokenScorer
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


def comparisons(size: Size) -> Iterator[Comparison]:
    """Compare the reading of BBQ's questions with HFLM's, as published and with ten unknowns."""
    folder = size.folder("bbq")
    files = sorted(folder.glob("*.jsonl*")) if folder is not None else []
    if not files:
        raise MissingError("needs BBQ's .jsonl files in the folder bbq of --data")
    items = max(1, size.items // 8)
    models = saved(size)
    lm = harness_model(models.peer, models.first.tokenizer, add_bos_token=True)
    scorer = TokenScorer(models.first)

    def theirs(asked: Sequence[Requests], turn: int) -> torch.Tensor:
        return log_likelihoods(lm, asked[turn])

    def own(rows: Sequence[Sequence[tuple[Row, int]]], turn: int) -> torch.Tensor:
        return torch.tensor([each.sum() for each in scorer.prepare(rows[turn])()])

    peer, ours = f"HFLM {size.dtypes[0]}, batch 32", f"ours {size.dtypes[0]}"
    for wordings in (0, len(UNKNOWNS)):
        asked = requests_of(files[0], items=items, wordings=wordings)[: size.rounds + 1]
        rows = [continuation_rows(models.first.encoder, each) for each in asked]
        sides: dict[str, Callable[[int], torch.Tensor]] = {
            peer: partial(theirs, asked),
            ours: partial(own, rows),
        }
        gap = float((sides[peer](0) - sides[ours](0)).abs().max())
        unknown = f", {wordings} wordings of unknown" if wordings else ""
        part = Part(
            title=f"{items} questions with options{unknown}",
            sides=sides,
            peers={ours: ((peer,),)},
            alike={ours: f"{gap:.1e}"},
        )
        yield from measured(part, size)
