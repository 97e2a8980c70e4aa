"""Draw random numbers by counter: a hash of keys and places in integer tensor operations.

They have the same bits on every device and in any batch; a generator's depend on earlier draws and
on the kind of GPU. The hash is "lowbias32" (C. Wellons, hash-prospector). A key is a pair of int32,
in a tensor's last dimension.

The next token is sampled by transformers' filters, and a draw that a key decides. All values but
the temperature come from the model's generation_config, as in `generate`. The draw inverts the
cumulative distribution, in float64 and the order of token ids, at the key's number, so neither
batch nor order nor worker changes a token.
Shapes: N keys or rows, C numbers of each, V vocabulary, B blocks of token ids, M candidates, T
tokens of a row so far, L label ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import index
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from raybias import seeding
from raybias.engine.answers import Key
from raybias.engine.attention import product_attention
from raybias.engine.devices import repeatable_sums, to_device
from raybias.errors import ModelError, said_by

# lowbias32's multipliers, as int32.
_FIRST: Final = 0x7FEB352D
_SECOND: Final = 0x846CA68B - 2**32


def keys(numbers: Sequence[int], device: torch.device) -> Tensor:
    """Return the keys [N, 2] of numbers below 2^63, such as those of `seeding.key`."""
    halves = torch.tensor([(n >> 32, n & 0xFFFFFFFF) for n in numbers]).view(-1, 2)
    return to_device(halves.to(torch.int32), device)


def joined(one: Tensor, other: Tensor | int) -> Tensor:
    """Combine keys with other keys, or int32 [..., 1], to keys [..., 2]."""
    return _mixed(_mixed(one.clone()) ^ other)


def counter(count: int, device: torch.device) -> Tensor:
    """Return the hashed counter, int32 [C], that the first `count` words of all keys share."""
    return _mixed(torch.arange(count, dtype=torch.int32, device=device))


def words(keys_N2: Tensor, count: int, counter_C: Tensor | None = None) -> Tensor:
    """Return the first `count` random int32 of each key [N, C]; `counter_C` is `counter`'s."""
    counter_C = counter(count, keys_N2.device) if counter_C is None else counter_C
    words_NC = counter_C ^ keys_N2[:, :1]
    words_NC *= keys_N2[:, 1:] | 1
    words_NC = _folded(words_NC, 16)
    words_NC *= _SECOND
    return _folded(words_NC, 15)


def uniforms(keys_N2: Tensor, count: int) -> Tensor:
    """Return the first `count` numbers in [0, 1) of each key [N, C], float64 with 53 bits."""
    words_NC2 = words(keys_N2, 2 * count).view(len(keys_N2), count, 2).long()
    high_NC, low_NC = words_NC2.unbind(-1)
    whole_NC = ((high_NC & (2**27 - 1)) << 26) + (low_NC & (2**26 - 1))
    return whole_NC.double() / 2**53


def kept(
    keys_N2: Tensor, shape: Sequence[int], dropped: float, counter_C: Tensor | None = None
) -> Tensor:
    """Return a dropout mask of values [N, *shape], True where a value is kept.

    `dropped` is rounded to a multiple of 2^-16. A mask of more rows, in the last dimension, begins
    with that of fewer. `counter_C` is what all masks of a shape share, where it is at hand: the
    counter of half as many words as the mask has places.
    """
    *rows, width = shape
    words_NC = words(keys_N2, torch.Size(rows).numel() * ((width + 1) // 2), counter_C)
    halves = words_NC.view(torch.int16).view(len(keys_N2), *rows, -1)[..., :width]
    return halves >= min(round(dropped * 2**16), 2**16 - 1) - 2**15


class KeyedDropout(TorchFunctionMode):
    """Draw all dropout of a pass by counter, keyed by `parts`; attention is a plain product."""

    def __init__(self, *parts: str | int) -> None:
        super().__init__()
        self._key, self._calls = seeding.key(*parts), 0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func is torch.nn.functional.dropout:
            return self._dropout(*args, **given)
        attention = func is torch.nn.functional.scaled_dot_product_attention
        if attention and given.get("dropout_p"):
            lost = given.pop("dropout_p")
            return product_attention(*args, **given, dropout=lambda each: self._dropout(each, lost))
        return func(*args, **given)

    def _dropout(
        self, values: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False
    ) -> Tensor:
        if not training or not p:
            return values
        key_12 = joined(keys([self._key], values.device), self._calls)
        self._calls += 1
        mask = kept(key_12, [values.numel()], p).view(values.shape)
        dropped = values * mask / (1 - p)
        return values.copy_(dropped) if inplace else dropped


def _mixed(words: Tensor) -> Tensor:
    words = _folded(words, 16)
    words *= _FIRST
    words = _folded(words, 15)
    words *= _SECOND
    return _folded(words, 16)


def _folded(words: Tensor, places: int) -> Tensor:
    moved = words >> places
    moved &= 2 ** (32 - places) - 1
    words ^= moved
    return words


#: The default of `generate`.
_DEFAULT_TOP_K: Final = 50
#: Unsupported options that change draws, with their neutral values beside None.
_FOREIGN: Final[dict[str, tuple[object, ...]]] = {
    **dict.fromkeys(("typical_p", "num_beams", "guidance_scale"), (1,)),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff", "penalty_alpha"), (0,)),
    **dict.fromkeys(("no_repeat_ngram_size", "min_length", "min_new_tokens"), (0,)),
    **dict.fromkeys(("suppress_tokens", "begin_suppress_tokens"), ([],)),
    **dict.fromkeys(("top_h", "bad_words_ids", "sequence_bias", "stop_strings"), ()),
    **dict.fromkeys(("forced_bos_token_id", "forced_eos_token_id"), ()),
    "exponential_decay_length_penalty": (),
}
_BLOCK: Final = 32


@dataclass(frozen=True)
class Sampling:
    """Choose tokens from logits, by values named as in transformers; `eos_ids` end a row.

    Without effect: `top_k` 0, `top_p` 1, `min_p` 0, `repetition_penalty` 1; `temperature` 0 takes
    the most likely token.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    eos_ids: tuple[int, ...]

    @classmethod
    def of(cls, model: Any, *, temperature: float) -> Sampling:
        """Take the model's generation_config with another temperature; ModelError: unsupported."""
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
            _ = sampling._penalty, sampling._filters
        except (TypeError, ValueError, OverflowError) as error:
            raise ModelError(
                f"the model's generation_config has a wrong value ({said_by(error)})",
                where=str(model.config.name_or_path),
                cure="mend generation_config.json",
            ) from error
        return sampling

    @cached_property
    def _penalty(self) -> LogitsProcessor:
        return RepetitionPenaltyLogitsProcessor(self.repetition_penalty)

    @cached_property
    def _filters(self) -> LogitsProcessorList:
        # In the order of transformers' `generate`.
        filters = LogitsProcessorList()
        if self.temperature not in (0, 1):
            filters.append(TemperatureLogitsWarper(self.temperature))
        if self.top_k:
            filters.append(TopKLogitsWarper(top_k=self.top_k))
        if self.top_p < 1:
            filters.append(TopPLogitsWarper(top_p=self.top_p))
        if self.min_p:
            filters.append(MinPLogitsWarper(min_p=self.min_p))
        return filters

    def choose(
        self, logits_NV: Tensor, *, history_NT: Tensor | None, uniforms_N: Tensor | None
    ) -> Tensor:
        """Draw the next token of each row [N].

        `history_NT`: all tokens of each row so far, for a repetition penalty, which acts once on a
        token; `uniforms_N`: a number in [0, 1) per row, float64; unused at temperature 0.
        """
        if self.repetition_penalty != 1:
            logits_NV = self._penalty(history_NT, logits_NV)
        if not self.temperature or uniforms_N is None:
            return logits_NV.argmax(-1)
        ids_NM, scores_NM = _candidates(logits_NV, self.top_k)
        with repeatable_sums(logits_NV.device):
            scores_NM = self._filters(None, scores_NM)
            total_NM = scores_NM.double().softmax(-1).cumsum(-1)
        # Rounding must never carry the draw past the last token that has a probability.
        most_N1 = torch.nextafter(total_NM[:, -1:], torch.zeros_like(total_NM[:, -1:]))
        goal_N1 = torch.minimum(uniforms_N[:, None] * total_NM[:, -1:], most_N1)
        at_N1 = torch.searchsorted(total_NM, goal_N1, right=True)
        return ids_NM.gather(1, at_N1)[:, 0]


class KeyedDraw(LogitsProcessor):  # type: ignore[misc]
    """Leave `generate` one token a row: token t is drawn by number t of the row's key.

    It serves one call of `generate`, of at most `length` tokens. `labels_NL`: natural
    log-probabilities [N, L] of `label_ids` after the prompts, float32.
    """

    def __init__(
        self,
        sampling: Sampling,
        rows: Sequence[Key],
        length: int,
        device: torch.device,
        label_ids: Sequence[int] = (),
    ) -> None:
        self._sampling, self._step = sampling, 0
        self._label_ids_L = to_device(torch.tensor([*label_ids], dtype=torch.long), device)
        self._uniforms_NT: Tensor | None = None
        if sampling.temperature:
            keys_N2 = keys([seeding.key(*each) for each in rows], device)
            self._uniforms_NT = uniforms(keys_N2, length)
        self.labels_NL = torch.empty(len(rows), 0, device=device)

    def __call__(self, tokens_NT: Tensor, logits_NV: Tensor) -> Tensor:
        """Draw the next token of each row; overwrite the logits so that they allow no other."""
        logits_NV = logits_NV.float()
        if self._step == 0 and len(self._label_ids_L):
            self.labels_NL = logits_NV.log_softmax(-1)[:, self._label_ids_L]
        drawn_NT = self._uniforms_NT
        uniforms_N = None if drawn_NT is None else drawn_NT[:, self._step]
        self._step += 1
        chosen_N = self._sampling.choose(logits_NV, history_NT=tokens_NT, uniforms_N=uniforms_N)
        return only(chosen_N, logits_NV)


def only(tokens_N: Tensor, logits_NV: Tensor) -> Tensor:
    """Overwrite logits to leave one token of each row."""
    return logits_NV.fill_(-torch.inf).scatter_(1, tokens_N[:, None], 0.0)


def _candidates(logits_NV: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """Select the tokens that a top-k filter can keep: ids in ascending order, and their logits.

    They are in the k blocks of ids with the largest maxima; on a CPU the filters see no others.
    """
    count, size = logits_NV.shape
    blocks = size // _BLOCK
    # On a GPU the filters are cheap, and the number of blocks would need a synchronisation.
    if not 0 < top_k < blocks or logits_NV.device.type != "cpu":
        return torch.arange(size, device=logits_NV.device).expand(count, size), logits_NV
    logits_NBK = logits_NV[:, : blocks * _BLOCK].view(count, blocks, _BLOCK)
    largest_NB = logits_NBK.amax(-1)
    bound_N1 = largest_NB.topk(top_k).values[:, -1:]
    # Temperature may round neighbours to one value, and the filter keeps whatever ties.
    bound_N1 = bound_N1 - 1e-5 * bound_N1.abs()
    kept = int((largest_NB >= bound_N1).sum(-1).max())
    chosen_Nb1 = largest_NB.topk(kept).indices.sort(-1).values[:, :, None]
    place_K = torch.arange(_BLOCK, device=logits_NV.device)
    ids_NM = (chosen_Nb1 * _BLOCK + place_K).flatten(1)
    scores_NM = logits_NBK.gather(1, chosen_Nb1.expand(-1, -1, _BLOCK)).flatten(1)
    rest_T = torch.arange(blocks * _BLOCK, size, device=logits_NV.device)
    ids_NM = torch.cat([ids_NM, rest_T.expand(count, -1)], dim=1)
    return ids_NM, torch.cat([scores_NM, logits_NV[:, blocks * _BLOCK :]], dim=1)
