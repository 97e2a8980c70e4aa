"""Sample the next token: transformers' filters, and a draw that a key decides.

All values but the temperature come from the model's generation_config, as in `generate`. The draw
inverts the cumulative distribution, in float64 and the order of token ids, at the key's number, so
neither batch nor order nor worker changes a token.
Shapes: N rows, V vocabulary, B blocks of token ids, M candidates, T tokens of a row so far, L label
ids.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from operator import index
from typing import Any, Final

import torch
from torch import Tensor
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
from raybias.engine import keyed_draws
from raybias.engine.answers import Key
from raybias.engine.devices import repeatable_sums, to_device
from raybias.errors import ModelError

#: The default of `generate`.
_DEFAULT_TOP_K: Final = 50
#: Unsupported options that change draws, with their neutral values beside None.
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
    "penalty_alpha": (0.0,),
    "stop_strings": (),
}
_BLOCK: Final = 32


@dataclass(frozen=True)
class Sampling:
    """The values of a draw, named as in transformers; `eos_ids` end a row.

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
        """Take the model's generation_config, with another temperature.

        Raises ModelError: an unsupported option, or a value of the wrong type.
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
        """Return the values for the record beside results."""
        return {**asdict(self), "eos_ids": list(self.eos_ids)}


class Sampler:
    """Choose tokens from logits."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self._penalty = RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)
        # In the order of transformers' `generate`.
        self._filters = LogitsProcessorList()
        if sampling.temperature not in (0, 1):
            self._filters.append(TemperatureLogitsWarper(sampling.temperature))
        if sampling.top_k:
            self._filters.append(TopKLogitsWarper(top_k=sampling.top_k))
        if sampling.top_p < 1:
            self._filters.append(TopPLogitsWarper(top_p=sampling.top_p))
        if sampling.min_p:
            self._filters.append(MinPLogitsWarper(min_p=sampling.min_p))

    @property
    def is_greedy(self) -> bool:
        """Whether no random number is needed."""
        return self.sampling.temperature == 0

    def choose(
        self, logits_NV: Tensor, *, history_NT: Tensor | None, uniforms_N: Tensor | None
    ) -> Tensor:
        """Draw the next token of each row [N].

        `history_NT`: all tokens of each row so far, for a repetition penalty, which acts once on a
        token; `uniforms_N`: a number in [0, 1) per row, float64; unused where `is_greedy`.
        """
        if self.sampling.repetition_penalty != 1:
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


class KeyedDraw(LogitsProcessor):  # type: ignore[misc]
    """Leave `generate` one token a row: token t is drawn by number t of the row's key.

    It serves one call of `generate`, of at most `length` tokens. `labels_NL`: natural
    log-probabilities [N, L] of `label_ids` after the prompts, float32.
    """

    def __init__(
        self,
        sampler: Sampler,
        keys: Sequence[Key],
        length: int,
        device: torch.device,
        label_ids: Sequence[int] = (),
    ) -> None:
        self._sampler, self._step = sampler, 0
        self._label_ids_L = to_device(torch.tensor([*label_ids], dtype=torch.long), device)
        self._uniforms_NT: Tensor | None = None
        if not sampler.is_greedy:
            keys_N2 = keyed_draws.keys([seeding.key(*each) for each in keys], device)
            self._uniforms_NT = keyed_draws.uniforms(keys_N2, length)
        self.labels_NL = torch.empty(len(keys), 0, device=device)

    def __call__(self, tokens_NT: Tensor, logits_NV: Tensor) -> Tensor:
        """Draw the next token of each row; overwrite the logits so that they allow no other."""
        logits_NV = logits_NV.float()
        if self._step == 0 and len(self._label_ids_L):
            self.labels_NL = logits_NV.log_softmax(-1)[:, self._label_ids_L]
        drawn_NT = self._uniforms_NT
        uniforms_N = None if drawn_NT is None else drawn_NT[:, self._step]
        self._step += 1
        chosen_N = self._sampler.choose(logits_NV, history_NT=tokens_NT, uniforms_N=uniforms_N)
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
