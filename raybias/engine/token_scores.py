"""Compute label logits after rows, and log-probabilities of their tokens, causal or masked.

Causal models: rows are packed as prefix trees, so one token after one prefix has one value. Labels
take their rows of the LM head alone, in float32, and tokens a few places at a time, so no [batch,
tokens, vocabulary] tensor exists. Masked models: each distinct masked copy of a sentence is one
row, sorted by length, and the model's own head sees the masked places only. A model whose own
forward pass disagrees with one of these short cuts on a sample is called the plain way instead.
Shapes: R sequences, T tokens, S prompts of P vectors, W input width, N places, A requested tokens,
H hidden, L labels, V vocabulary.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModelForMaskedLM

from raybias.config import Backbone
from raybias.engine.attention import (
    attention_window,
    fastest,
    read_samples,
    sample_tokens,
    states_at,
)
from raybias.engine.backbone import LoadedBackbone, is_encoder, load_backbone, load_pretrained
from raybias.engine.context import ON_CPU, Execution
from raybias.engine.devices import to_device
from raybias.engine.encoder import TextEncoder, load_tokenizer
from raybias.engine.packing import (
    MAX_TOKENS,
    Batch,
    PackedSequence,
    Placed,
    Row,
    common_length,
    pack,
    padded,
)
from raybias.errors import ModelError

Values = NDArray[np.float32]
Numbers = NDArray[np.int64]

#: Places whose logits over the vocabulary exist at one time.
CHUNK: Final = 256


@dataclass(frozen=True)
class LabelRows:
    """The labels' tokens, and their rows of the LM head, in float32."""

    ids: tuple[int, ...]
    weight_LH: Tensor
    bias_L: Tensor | None

    @classmethod
    def of(cls, backbone: LoadedBackbone, label_ids: Sequence[int]) -> LabelRows:
        """Copy the rows of a backbone's head."""
        head = backbone.model.get_output_embeddings()
        ids, bias = list(label_ids), getattr(head, "bias", None)
        with gathered(head.weight):
            weight_LH = head.weight.detach()[ids].float()
        with gathered(bias):
            bias_L = None if bias is None else bias.detach()[ids].float()
        return cls(tuple(ids), weight_LH, bias_L)


def gathered(parameter: Tensor | None) -> Any:
    """Return a context in which every rank holds a parameter that ZeRO-3 has sharded."""
    status = getattr(parameter, "ds_status", None)
    if status is None or status.name == "AVAILABLE":
        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters([parameter])


@dataclass(frozen=True)
class CausalReader:
    """Compute a causal model at some places of a batch.

    `packs`: rows share sequences (see `packing`); `part`: the head is applied to no other places.
    """

    backbone: LoadedBackbone
    packs: bool
    part: bool

    @property
    def max_tokens(self) -> int:
        """The longest packed sequence; 0 keeps every row by itself."""
        return MAX_TOKENS if self.packs else 0

    def labels(self, batch: Batch, prompts_SPW: Tensor, labels: LabelRows) -> Tensor:
        """Compute label logits [N, L] float32 after the prompts that `batch.adapters` numbers."""
        device = self.backbone.device
        prompts_RPW = prompts_SPW[to_device(batch.adapters, device)]
        found_NX = self._places(batch, (batch.at_R, batch.at_T), prompts_RPW)
        if not self.part:
            return found_NX[:, to_device(labels.ids, device)].float()
        # Not as a matrix product, whose bits depend on how many rows it has.
        logits_NL: Tensor = (found_NX.float()[:, None] * labels.weight_LH).sum(-1)
        return logits_NL if labels.bias_L is None else logits_NL + labels.bias_L

    def log_probs(
        self, batch: Batch, at: tuple[Tensor, Tensor], of_A: Tensor, tokens_A: Tensor
    ) -> Tensor:
        """Compute natural log-probabilities [A] float32 of tokens after places of a batch.

        `at`: each place's sequence [N] and its place there [N]; `of_A`: the place before each
        token, ascending.
        """
        device = self.backbone.device
        found_NX = self._places(batch, at)
        after_A, wanted_A = to_device(of_A, device), to_device(tokens_A, device)
        if not self.part:
            return log_probs_of(found_NX, after_A, wanted_A)
        head = self.backbone.model.get_output_embeddings()
        chunks = []
        for first in range(0, len(found_NX), CHUNK):
            begin, end = np.searchsorted(of_A.numpy(), [first, first + CHUNK])
            logits_nV = head(found_NX[first : first + CHUNK])
            chunks.append(log_probs_of(logits_nV, after_A[begin:end] - first, wanted_A[begin:end]))
        return torch.cat(chunks)

    def _places(
        self, batch: Batch, at: tuple[Tensor, Tensor], prompts_RPW: Tensor | None = None
    ) -> Tensor:
        """Compute the hidden states [N, H] at places, or the logits [N, V] of the whole model."""
        tokens_RT = to_device(batch.tokens_RT, self.backbone.device)
        given = {"input_ids": tokens_RT}
        if prompts_RPW is not None:
            text_RTW = self.backbone.embed(tokens_RT)
            inputs_RTW = torch.cat([prompts_RPW.to(text_RTW.dtype), text_RTW], dim=1)
            given = {"inputs_embeds": inputs_RTW}
        model = self.backbone.model
        return states_at(model, batch, at, packs=self.packs, part=self.part, **given)


def make_reader(backbone: LoadedBackbone, purpose: str) -> CausalReader:
    """Choose the fastest reader that gives the values of the model's own forward pass."""
    ways = [
        CausalReader(backbone, packs=packs, part=part)
        for packs in (True, False)
        for part in (True, False)
    ]
    chosen = fastest(ways[:3], ways[3], _sample, dtype=backbone.model.dtype)
    best = chosen is ways[0]
    backbone.execution.note(purpose, packs=chosen.packs, part=chosen.part, fastest=best)
    return chosen


def _sample(reader: CausalReader) -> Tensor:
    """Compute label logits of a few rows after two prompt vectors, and log-probabilities too."""
    backbone = reader.backbone
    token = sample_tokens(backbone.model, 6)
    prompt_1PW = backbone.embed(torch.tensor([token[4:6]], device=backbone.device)).float()
    label_rows = LabelRows.of(backbone, token[:3])

    def read(batch: Batch) -> Tensor:
        labels_NL = reader.labels(batch, prompt_1PW, label_rows)
        count = len(batch.rows)
        of_A = torch.arange(count).repeat_interleave(len(token))
        tokens_A = torch.tensor(token).repeat(count)
        log_probs_A = reader.log_probs(batch, (batch.at_R, batch.at_T), of_A, tokens_A)
        return torch.cat([labels_NL, log_probs_A.view(count, -1)], dim=1)

    return read_samples(read, backbone.model, packs=reader.packs, alone=not reader.part)


def log_probs_of(logits_NV: Tensor, of_A: Tensor, tokens_A: Tensor) -> Tensor:
    """Compute log-probabilities [A] float32 of tokens, each under the logits numbered by `of_A`."""
    # On a CPU the fused kernel is faster than a sum of exponentials, though it writes them all.
    return logits_NV.float().log_softmax(-1)[of_A, tokens_A]


@dataclass(frozen=True)
class Tree:
    """A packed prefix tree, with the tokens that its rows go on with.

    `places_N`: distinct places that tokens follow; `of_A`, `tokens_A`: distinct tokens, each with
    the number of its place, all ascending; `rows`: the tokens of each member, in its order.
    """

    sequence: PackedSequence
    places_N: Numbers
    of_A: Numbers
    tokens_A: Numbers
    rows: tuple[Numbers, ...]

    @classmethod
    def of(cls, sequence: PackedSequence, rows: Sequence[Row], since: Sequence[int]) -> Tree:
        """List the tokens of a sequence to score: of each row of it, from the place `since` on."""
        paths = [
            np.flatnonzero(sequence.ends[: last + 1] > last)[since[n] - 1 :]
            for n, last in zip(sequence.members, sequence.lasts, strict=True)
        ]
        following = np.concatenate([rows[n][since[n] :] for n in sequence.members])
        pairs = (np.concatenate(paths) << 32) + following
        distinct_A, index = np.unique(pairs, return_inverse=True)
        places_N, of_A = np.unique(distinct_A >> 32, return_inverse=True)
        by_row = np.split(index, np.cumsum([len(path) for path in paths])[:-1])
        return cls(sequence, places_N, of_A, distinct_A & 0xFFFFFFFF, tuple(by_row))


class TokenScorer:
    """Score the tokens of rows with one causal model."""

    def __init__(self, backbone: LoadedBackbone) -> None:
        self.reader = make_reader(backbone, "log-probabilities")
        self.batcher = backbone.batcher()
        if not self.reader.part:
            self.batcher.tokens_per_batch = min(CHUNK, self.batcher.tokens_per_batch)

    def prepare(self, requests: Sequence[tuple[Row, int]]) -> Callable[[], list[Values]]:
        """Pack rows, without a device; return the call that scores their tokens from a place on.

        `requests`: rows, each with the place, at least 1, of the first wanted token. The call
        returns the natural log-probabilities [length - place] of each row's tokens, and raises
        WorkFailed where a single row does not fit the device's memory.
        """
        begins: dict[tuple[int, ...], int] = {}
        for row, first in requests:
            begins[tuple(row)] = min(first, begins.get(tuple(row), first))
        distinct = sorted(begins)
        starts = [begins[row] for row in distinct]
        number = {row: n for n, row in enumerate(distinct)}
        parts = [(number[tuple(row)], first - begins[tuple(row)]) for row, first in requests]
        # The last token is scored, never read; a row of one token, which nothing precedes, is in no
        # tree.
        stems = {n: row[:-1] for n, row in enumerate(distinct) if len(row) > 1}
        longest, model = max(map(len, stems.values()), default=0), self.reader.backbone.model
        whole = longest <= attention_window(model.config)
        packed = pack([*stems.values()], max_tokens=self.reader.max_tokens * whole)
        scored = [*stems]
        trees = [
            Tree.of(replace(each, members=tuple(scored[n] for n in each.members)), distinct, starts)
            for each in packed
        ]

        def read() -> list[Values]:
            values = self._read(trees, len(distinct))
            _share(distinct, values, starts)
            return [values[n][left_out:] for n, left_out in parts]

        return read

    def _read(self, trees: Sequence[Tree], count: int) -> list[Values]:
        """Compute the values of `count` rows; those in no tree have none."""
        placed = [Placed(i, tree.sequence) for i, tree in enumerate(trees)]
        values: list[Values] = [np.empty(0, np.float32)] * count

        def work(batch: Batch) -> Tensor:
            mine = [trees[i] for i in batch.adapters]
            counts = [len(tree.places_N) for tree in mine]
            starts = np.cumsum([0, *counts[:-1]])
            at_R, at_T, of_A, tokens_A = map(torch.from_numpy, (
                np.repeat(np.arange(len(mine)), counts),
                np.concatenate([tree.places_N for tree in mine]),
                np.concatenate([tree.of_A + n for tree, n in zip(mine, starts, strict=True)]),
                np.concatenate([tree.tokens_A for tree in mine]),
            ))  # fmt: skip
            with torch.no_grad():
                return self.reader.log_probs(batch, (at_R, at_T), of_A, tokens_A)

        # Copying waits for the device, so it comes after all batches.
        for batch, scored_A in [*self.batcher.each(work, placed)]:
            mine = [trees[i] for i in batch.adapters]
            ends = np.cumsum([len(tree.tokens_A) for tree in mine])
            by_tree = np.split(scored_A.cpu().numpy(), ends[:-1])
            for tree, tree_A in zip(mine, by_tree, strict=True):
                for n, places in zip(tree.sequence.members, tree.rows, strict=True):
                    values[n] = tree_A[places]
        return values


def _share(rows: Sequence[Row], values: Sequence[Values], since: Sequence[int]) -> None:
    """Give one token after one prefix one value in all sequences; rounding would decide ties."""
    for n in range(1, len(rows)):
        known, first = common_length([rows[n], rows[n - 1]]), max(since[n], since[n - 1])
        if known > first:
            before = values[n - 1][first - since[n - 1] : known - since[n - 1]]
            values[n][first - since[n] : known - since[n]] = before


def load_masked(spec: Backbone, execution: Execution = ON_CPU) -> LoadedBackbone:
    """Load, freeze and place a masked language model.

    Its context is what its positions hold: RoBERTa's begin after the padding token's id.
    Raises ModelError: as `load_pretrained` says, or a tokenizer that cannot mask.
    """
    encoder = load_tokenizer(spec)
    check_tokenizer(encoder)
    model, _ = load_pretrained(
        AutoModelForMaskedLM,
        spec,
        execution,
        cure="use a checkpoint that was saved with its masked-language-model head",
    )
    execution.begin(model)
    offsets = [
        module.padding_idx + 1
        for name, module in model.named_modules()
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None
    ]
    positions = getattr(model.config, "max_position_embeddings", None)
    limits = (encoder.context, positions and positions - max(offsets, default=0))
    context = min((limit for limit in limits if limit), default=None)
    return LoadedBackbone(replace(encoder, context=context), model, execution)


def scored_loader(spec: Backbone) -> Callable[..., LoadedBackbone]:
    """Choose what loads a model whose tokens are scored: `load_masked` or `load_backbone`."""
    return load_masked if is_encoder(spec) else load_backbone


def check_tokenizer(encoder: TextEncoder) -> None:
    """Refuse a tokenizer that cannot mask, or puts nothing around a sentence, with a ModelError."""
    tokenizer = encoder.tokenizer
    if tokenizer.mask_token_id is None:
        raise ModelError(
            "the tokenizer has no mask token, which masked scores need",
            where=encoder.spec.id,
            cure="use a masked language model, or a causal score",
        )
    ids = tokenizer("")["input_ids"]
    if len(ids) < 2:
        raise ModelError(
            f"the tokenizer puts {len(ids)} special tokens around a sentence, and masked scores "
            "leave out the first token and the last",
            where=encoder.spec.id,
            cure="give it the post-processor that the model was trained with",
        )


class MaskedScorer:
    """Score masked tokens with one model; `part`: its head is applied to the wanted places only."""

    def __init__(self, backbone: LoadedBackbone) -> None:
        self.backbone, model = backbone, backbone.model
        self.mask = int(backbone.tokenizer.mask_token_id)
        self.pad = int(backbone.tokenizer.pad_token_id or 0)
        self.batcher, self._wanted = backbone.batcher(), threading.local()
        hook = model.base_model.register_forward_hook(self._keep)
        self.part = fastest([True], False, self._sample, dtype=model.dtype)
        if not self.part:
            hook.remove()
        backbone.execution.note("masked tokens", packs=False, part=self.part, fastest=self.part)

    def prepare(self, requests: Sequence[Sequence[tuple[Row, int]]]) -> Callable[[], list[Values]]:
        """Mask rows, without a device; return the call that scores their tokens.

        `requests`: groups of token ids, with the specials around them, each with a place to mask.
        The call returns, by group, the natural log-probability of each row's token at its place,
        and raises WorkFailed where a single row does not fit the device's memory.
        """
        flat = [each for group in requests for each in group]
        asked: dict[tuple[int, tuple[int, ...]], list[int]] = {}
        for a, (row, place) in enumerate(flat):
            copy = (place, (*row[:place], self.mask, *row[place + 1 :]))
            asked.setdefault(copy, []).append(a)
        numbers, device = list(asked.values()), self.backbone.device
        placed = []
        for n, (place, row) in enumerate(asked):
            tokens, ends = np.array(row, np.int64), np.full(len(row), len(row))
            sequence = PackedSequence(tokens, np.arange(len(row)), ends, (n,), (place,))
            placed.append(Placed(0, sequence))

        def work(batch: Batch) -> tuple[list[int], Tensor]:
            by_row = [numbers[n] for _, n in batch.rows]
            mine = [a for each in by_row for a in each]
            with torch.no_grad():
                logits_RV = self.logits(batch, part=self.part)
                of_A = to_device([r for r, each in enumerate(by_row) for _ in each], device)
                tokens_A = to_device([flat[a][0][flat[a][1]] for a in mine], device)
                return mine, log_probs_of(logits_RV, of_A, tokens_A)

        def read() -> list[Values]:
            log_probs_A = np.empty(len(flat), np.float32)
            # Copying waits for the device, so it comes after all batches.
            for _, (mine, values_A) in [*self.batcher.each(work, placed)]:
                log_probs_A[mine] = values_A.cpu().numpy()
            return np.split(log_probs_A, np.cumsum([*map(len, requests)]))[:-1]

        return read

    def logits(self, batch: Batch, *, part: bool) -> Tensor:
        """Compute the logits [R, V] at the place of each row."""
        tokens_RT, mask_RT, at_R, at_T = (
            to_device(each, self.backbone.device)
            for each in (*padded(batch, self.pad), batch.at_R, batch.at_T)
        )
        self._wanted.at = (at_R, at_T) if part else None
        try:
            found: Tensor = self.backbone.model(
                input_ids=tokens_RT, attention_mask=mask_RT.long()
            ).logits
        finally:
            self._wanted.at = None
        return found[0] if part else found[at_R, at_T]

    def _keep(self, _module: torch.nn.Module, _given: Any, output: Any) -> Any:
        if (at := getattr(self._wanted, "at", None)) is not None:
            output.last_hidden_state = output.last_hidden_state[at][None]
        return output

    def _sample(self, part: bool) -> Tensor:
        read = partial(self.logits, part=part)
        return read_samples(read, self.backbone.model, packs=False, alone=False)
