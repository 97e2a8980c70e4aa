"""Sample the next token: transformers' filters, and a draw that a key decides.

Every value beside the temperature comes from the model's generation_config, as in
transformers' `generate`. The draw is the inverse of the cumulative distribution, summed in
float64 in the order of token ids, at a number that the caller derives from the request's key;
so neither batch nor order nor worker changes a token.

Shapes: N rows, V vocabulary, B blocks of token ids, M candidates, T tokens of a history.

Rows are decoded token by token, packed behind a shared prefix (tree attention) or plainly. A row's
stem is all of its prompt but the last token. Stems are read first, without any logits; then every
step feeds one token per live row, the last prompt token to begin with, through the model's own
forward pass and head. So logits are the model's own whatever it does after its head, and they exist
for the tokens that are needed only.

Shapes: R sequences, N rows, n live rows, K columns, C cache places, T or t
tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from operator import index
from typing import Any, Final, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from raybias.engine.backbone import LoadedBackbone
from raybias.engine.devices import repeatable_sums, to_device
from raybias.engine.generation.kv_cache import BufferCache, KeysValues, layer_count
from raybias.engine.generation.packed_rows import Numbers, PackedRows
from raybias.engine.packing import Placed, Row, pack, stack
from raybias.engine.self_check import TOLERANCE, agrees, sample_tokens
from raybias.errors import ModelError

#: What `generate` takes where a generation_config says nothing.
_DEFAULT_TOP_K: Final = 50
#: Options of a generation_config that change what is drawn and that we do not have, with
#: the values at which they do nothing (None is always one).
_FOREIGN: Final[dict[str, tuple[object, ...]]] = {
    "typical_p": (1.0,),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "top_h": (),
    "no_repeat_ngram_size": (0,),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "num_beams": (1,),
    "guidance_scale": (1, 1.0),
    "bad_words_ids": (),
    "sequence_bias": (),
    "suppress_tokens": ([],),
    "begin_suppress_tokens": ([],),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "exponential_decay_length_penalty": (),
}
#: Token ids are searched in blocks of this many.
_BLOCK: Final = 32


@dataclass(frozen=True)
class Sampling:
    """Values that decide how a token is drawn.

    Attributes
    ----------
    temperature: 0 takes the most likely token.
    top_k: how many tokens stay, 0 for all; top_p: the share of probability that stays, 1 for
        all; min_p: the least probability that stays, relative to the largest, 0 for none.
    repetition_penalty: divides the logits of tokens that the row already has; 1 for none.
    eos_ids: tokens that end a row.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    eos_ids: tuple[int, ...]

    @classmethod
    def of(cls, model: Any, *, temperature: float) -> Sampling:
        """Read the model's generation_config, under another temperature.

        Raises
        ------
        ModelError: the generation_config asks for something that would silently be left out, or
            has a value of another kind.
        """
        config = model.generation_config
        for name, neutral in _FOREIGN.items():
            value = getattr(config, name, None)
            if value is not None and value not in neutral:
                raise ModelError(
                    f"the model's generation_config sets {name}: {value!r}, which is not supported",
                    where=str(model.config.name_or_path),
                    cure=f"remove {name} from generation_config.json",
                )
        eos = config.eos_token_id
        if eos is None:
            eos = getattr(model.config, "eos_token_id", None)
        ids = eos if isinstance(eos, list) else [] if eos is None else [eos]
        try:
            sampling = cls(
                temperature=float(temperature),
                top_k=_DEFAULT_TOP_K if config.top_k is None else int(config.top_k),
                top_p=1.0 if config.top_p is None else float(config.top_p),
                min_p=0.0 if getattr(config, "min_p", None) is None else float(config.min_p),
                repetition_penalty=float(config.repetition_penalty or 1.0),
                eos_ids=tuple(map(index, ids)),
            )
            Sampler(sampling)
        except (TypeError, ValueError, OverflowError) as error:
            raise ModelError(
                f"the model's generation_config has a wrong value ({error})",
                where=str(model.config.name_or_path),
                cure="mend generation_config.json",
            ) from error
        return sampling

    def record(self) -> dict[str, float | int | list[int]]:
        """Return the values as they are written beside results."""
        return {**asdict(self), "eos_ids": list(self.eos_ids)}


class Sampler:
    """Choose tokens from logits."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self._penalty = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)
        self._filters = _filters(sampling)

    @property
    def is_greedy(self) -> bool:
        """Whether no random number is needed."""
        return self.sampling.temperature == 0

    @property
    def needs_history(self) -> bool:
        """Whether earlier tokens of a row change its next one."""
        return self.sampling.repetition_penalty != 1

    def choose(
        self, logits_NV: Tensor, *, history_NT: Tensor | None, uniforms_N: Tensor | None
    ) -> Tensor:
        """Draw the next token of each row [N].

        Parameters
        ----------
        logits_NV: float32.
        history_NT: all tokens of each row so far, as `rectangle` has them; read where
            `needs_history`.
        uniforms_N: a number in [0, 1) per row, float64; not read where `is_greedy`.
        """
        if self.needs_history:
            logits_NV = self._penalty(history_NT, logits_NV)
        if self.is_greedy or uniforms_N is None:
            return logits_NV.argmax(-1)
        ids_NM, scores_NM = _candidates(logits_NV, self.sampling.top_k)
        with repeatable_sums(logits_NV.device):
            scores_NM = self._filters(None, scores_NM)
            total_NM = scores_NM.double().softmax(-1).cumsum(-1)
        # Rounding must never carry the draw past the last token that has a probability.
        most_N1 = torch.nextafter(total_NM[:, -1:], torch.zeros_like(total_NM[:, -1:]))
        goal_N1 = torch.minimum(uniforms_N[:, None] * total_NM[:, -1:], most_N1)
        at_N1 = torch.searchsorted(total_NM, goal_N1, right=True)
        return ids_NM.gather(1, at_N1)[:, 0]


def rectangle(rows: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """Lay rows of tokens out as a tensor [N, T], filled up with each row's own first token.

    A token is penalised once, however often it is named.
    """
    width = max(map(len, rows))
    filled = [[*row, *[row[0]] * (width - len(row))] for row in rows]
    return to_device(filled, device)


def _filters(sampling: Sampling) -> LogitsProcessorList:
    """Build the filters in the order of transformers' `generate`."""
    filters = LogitsProcessorList()
    if sampling.temperature not in (0, 1):
        filters.append(TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        filters.append(TopKLogitsWarper(top_k=sampling.top_k))
    if sampling.top_p < 1:
        filters.append(TopPLogitsWarper(top_p=sampling.top_p))
    if sampling.min_p:
        filters.append(MinPLogitsWarper(min_p=sampling.min_p))
    return filters


def _candidates(logits_NV: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Select the tokens that a top-k filter can keep: ids in ascending order, and their logits.

    A block of ids whose largest logit is below the k-th largest of all blocks' has none of the
    k largest logits, so the filters need not see the whole vocabulary on a CPU.
    """
    count, size = logits_NV.shape
    blocks = size // _BLOCK
    # How many blocks stay would have to be waited for on a device, where the filters are cheap.
    if not 0 < top_k < blocks or logits_NV.device.type != "cpu":
        return torch.arange(size, device=logits_NV.device).expand(count, size), logits_NV
    logits_NBK = logits_NV[:, : blocks * _BLOCK].view(count, blocks, _BLOCK)
    largest_NB = logits_NBK.amax(-1)
    bound_N1 = largest_NB.topk(top_k).values[:, -1:]
    # Temperature may round neighbours to one value, and the filter keeps whatever ties.
    bound_N1 = bound_N1 - 1e-5 * bound_N1.abs()
    # Rows with more ties than others bring blocks below their bound: these are filtered.
    kept = int((largest_NB >= bound_N1).sum(-1).max())
    chosen_Nb1 = largest_NB.topk(kept).indices.sort(-1).values[:, :, None]
    place_K = torch.arange(_BLOCK, device=logits_NV.device)
    ids_NM = (chosen_Nb1 * _BLOCK + place_K).flatten(1)
    scores_NM = logits_NBK.gather(1, chosen_Nb1.expand(-1, -1, _BLOCK)).flatten(1)
    rest_T = torch.arange(blocks * _BLOCK, size, device=logits_NV.device)
    ids_NM = torch.cat([ids_NM, rest_T.expand(count, -1)], dim=1)
    return ids_NM, torch.cat([scores_NM, logits_NV[:, blocks * _BLOCK :]], dim=1)


class Rows(Protocol):
    """A batch that is being extended."""

    device: torch.device

    def step(self, live_n: Numbers, tokens_n: Tensor) -> Tensor:
        """Compute the logits [n, V] float32 after one more token of each live row.

        `live_n` are places in the batch, ascending; a row may be left out for some steps.
        """

    def leave(self, rows: Sequence[int]) -> None:
        """Forget rows that have ended."""


#: Tokens of one pass over a prefix.
BLOCK: Final = 64


class PrefixCache:
    """The keys and values of the tokens that all rows begin with.

    They are computed block by block. Another prefix reuses whole blocks that it has in common with
    this one, so its values are, on a CPU to the bit, what they are where nothing was held before.
    """

    def __init__(self, backbone: LoadedBackbone) -> None:
        self.backbone = backbone
        self.tokens: tuple[int, ...] = ()
        self.keys_values: list[KeysValues] = []

    def set(self, tokens: Sequence[int]) -> None:
        """Hold exactly these tokens, computing those that are new."""
        new = tuple(tokens)
        if new == self.tokens:
            return
        held = common_length([self.tokens, new]) // BLOCK * BLOCK
        self.tokens = new[:held]
        self.keys_values = [
            (keys[:, :, :held], values[:, :, :held]) for keys, values in self.keys_values if held
        ]
        device = self.backbone.device
        for first in range(held, len(new), BLOCK):
            end = min(first + BLOCK, len(new))
            cache = self.cache(count=1, capacity=end)
            self.backbone.model.base_model(
                input_ids=to_device([new[first:end]], device),
                position_ids=torch.arange(first, end, device=device)[None],
                past_key_values=cache,
                use_cache=True,
            )
            self.tokens, self.keys_values = new[:end], cache.first(end)

    def cache(self, *, count: int, capacity: int) -> BufferCache:
        """Allocate a key-value cache for `count` sequences that begin with the prefix."""
        layers = layer_count(self.backbone.model)
        return BufferCache(self.keys_values, layers=layers, count=count, capacity=capacity)


class PlainRows:
    """Rows of one length, read as the model reads a batch without padding.

    A model that hands out no keys and values reads its rows from the start at every step.
    """

    def __init__(self, backbone: LoadedBackbone, rows: Sequence[Row]) -> None:
        self.model: Any = backbone.model
        self.device = backbone.device
        self.tokens_NT = to_device([row[:-1] for row in rows], self.device).long()
        self.cache: Any = None
        if self.tokens_NT.shape[1]:
            read = self.model.base_model(input_ids=self.tokens_NT, use_cache=True)
            self.cache = getattr(read, "past_key_values", None)

    def step(self, live_n: Numbers, tokens_n: Tensor) -> Tensor:
        """See `Rows.step`; a row that is left out is left for good: it is read on unseen."""
        live = to_device(live_n, self.device)
        new_N1 = torch.zeros(len(self.tokens_NT), 1, dtype=torch.long, device=self.device)
        new_N1[live, 0] = tokens_n
        self.tokens_NT = torch.cat([self.tokens_NT, new_N1], dim=1)
        read = self.model(
            input_ids=self.tokens_NT if self.cache is None else new_N1,
            past_key_values=self.cache,
            use_cache=True,
        )
        self.cache = getattr(read, "past_key_values", None)
        logits_nV: Tensor = read.logits[live, -1].float()
        return logits_nV

    def leave(self, rows: Sequence[int]) -> None:
        """See `Rows.leave`; rows that have ended keep their places."""


def reads_packed(backbone: LoadedBackbone) -> bool:
    """Check whether a model reads packed rows, step by step, as it reads each of them alone."""
    token = sample_tokens(backbone.model, 15)
    rows = [token[:5], token[:3] + token[6:9], token[:2] + token[9:12], token[:2] + token[11:12]]
    batch = stack([Placed(0, 0, each) for each in pack([row[2:-1] for row in rows])])
    order = [rows[n] for _, n in batch.rows]

    def packed() -> Tensor:
        prefix = PrefixCache(backbone)
        prefix.set(token[:2])
        cache = prefix.cache(count=1, capacity=64)
        stems = PackedRows(backbone, batch, cache)
        return _forced(stems, len(rows), token)

    with torch.no_grad():
        alone = [_forced(PlainRows(backbone, [row]), 1, token) for row in order]
    tolerance = TOLERANCE[backbone.model.dtype]
    return agrees(packed, torch.cat(alone), tolerance=tolerance)


def _forced(rows: Rows, count: int, tokens: Sequence[int]) -> Tensor:
    """Compute the logits [N, steps, V] of steps whose tokens are given."""
    every_N = np.arange(count)
    forced = [torch.full((count,), token, device=rows.device) for token in tokens[:3]]
    return torch.stack([rows.step(every_N, tokens_N) for tokens_N in forced], dim=1)


def common_length(rows: Sequence[Row]) -> int:
    """Count the tokens that all rows begin with."""
    first, last = min(map(tuple, rows)), max(map(tuple, rows))
    shared = 0
    for one, other in zip(first, last, strict=False):
        if one != other:
            break
        shared += 1
    return shared
