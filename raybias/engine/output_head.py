"""The LM head of a causal model, applied to a few positions instead of a whole forward pass.

Some models change their logits after the head: Gemma caps them, Cohere and Granite scale them. The
change is read from the loaded model itself: its head is given hidden states of several sizes, and
the logits that the model returns are compared with those of the head.
Shapes: N positions, T tokens, H hidden, V vocabulary, L labels.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Factors of the hidden states that the head is tried with. Powers of two are exact in every dtype;
#: the largest takes logits far beyond any cap.
_FACTORS: Final = (1, 8, 64)
#: Rounding errors of a cap or a scale (three operations), in units of the dtype's epsilon.
_ROUNDINGS: Final = 4


@dataclass(frozen=True)
class LogitTransform:
    """What a model does to the logits of its head: cap * tanh(scale * logits / cap).

    `scale`: a factor; `cap`: bound of the absolute value; None without one.
    """

    scale: float = 1.0
    cap: float | None = None

    def __call__(self, logits: Tensor) -> Tensor:
        """Transform logits of any shape."""
        if self.scale != 1:
            logits = logits * self.scale
        if self.cap is None:
            return logits
        return torch.tanh(logits / self.cap) * self.cap


@dataclass(frozen=True)
class OutputHead:
    """An LM head with the transformation after it; `layer`: maps hidden states to logits."""

    layer: torch.nn.Module
    transform: LogitTransform

    def logits(self, hidden_NH: Tensor) -> Tensor:
        """Compute the logits [N, V] of the model for its last hidden states [N, H]."""
        return self.transform(self.layer(hidden_NH))


@dataclass(frozen=True)
class LabelRows:
    """The rows of an LM head for the label words, in float32, and the head's transformation."""

    ids: tuple[int, ...]
    weight_LH: Tensor
    bias_L: Tensor | None
    transform: LogitTransform

    @classmethod
    def of(cls, head: OutputHead, label_ids: Sequence[int]) -> LabelRows:
        """Copy the rows of a head, from all ranks that share it."""
        weight: Tensor = head.layer.get_parameter("weight")
        bias: Tensor | None = getattr(head.layer, "bias", None)
        ids = list(label_ids)
        with gathered(weight):
            weight_LH = weight.detach()[ids].float()
        with gathered(bias):
            bias_L = None if bias is None else bias.detach()[ids].float()
        return cls(tuple(ids), weight_LH, bias_L, head.transform)

    def logits(self, hidden_NH: Tensor) -> Tensor:
        """Compute the label logits [N, L] float32 for last hidden states [N, H]."""
        # Not as a matrix product: the bits of a product depend on how many rows it has.
        logits_NL: Tensor = (hidden_NH.float()[:, None] * self.weight_LH).sum(-1)
        if self.bias_L is not None:
            logits_NL = logits_NL + self.bias_L
        return self.transform(logits_NL)


def gathered(parameter: Tensor | None) -> Any:
    """Return a context in which every rank has the whole of a parameter that ZeRO-3 shards."""
    status = getattr(parameter, "ds_status", None)
    if status is None or status.name == "AVAILABLE":
        return nullcontext()
    import deepspeed

    return deepspeed.zero.GatheredParameters([parameter])


def read_output_head(model: PreTrainedModel, tokens: Sequence[int]) -> OutputHead | None:
    """Find the LM head of a loaded model, and what the model does to its logits.

    tokens: of one row, at least one, for the forward pass in which the head is tried.

    Returns None if the head's logits are not the model's by any transformation known here; such a
    model must be called as a whole.
    """
    layer = model.get_output_embeddings()
    if layer is None or getattr(layer, "weight", None) is None:
        return None

    head_logits: list[Tensor] = []

    def enlarge_input(_layer: torch.nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return torch.cat([args[0] * factor for factor in _FACTORS], dim=1), *args[1:]

    def keep_output(_layer: torch.nn.Module, _args: Any, output: Tensor) -> None:
        head_logits.append(output)

    hooks = (
        layer.register_forward_pre_hook(enlarge_input),
        layer.register_forward_hook(keep_output),
    )
    try:
        input_ids = torch.tensor([list(tokens)], device=model.device)
        with torch.no_grad():
            logits: Tensor = model(input_ids=input_ids, use_cache=False).logits
    # A model that calls its head otherwise, or takes no `use_cache`.
    except (RuntimeError, ValueError, TypeError, AttributeError, LookupError):
        return None
    finally:
        for hook in hooks:
            hook.remove()

    if len(head_logits) != 1 or head_logits[0].shape != logits.shape:
        return None
    transform = fit_transform(head_logits[0].to(logits.device), logits, model.config.to_dict())
    return None if transform is None else OutputHead(layer, transform)


def fit_transform(
    head_logits: Tensor, logits: Tensor, config: Mapping[str, Any]
) -> LogitTransform | None:
    """Find the transformation from a head's logits to a model's, both of any one shape.

    config: of the model; a scale or a cap is one of its numbers.

    Returns None if no candidate explains the logits up to rounding.
    """
    if torch.equal(head_logits, logits):
        return LogitTransform()

    expected = logits.double()
    tolerance = _ROUNDINGS * torch.finfo(logits.dtype).eps * expected.abs()
    best, least_error = None, math.inf
    for transform in _candidates(config):
        error = (transform(head_logits.double()) - expected).abs()
        mean_error = float(error.mean())
        if mean_error < least_error and bool((error <= tolerance).all()):
            best, least_error = transform, mean_error
    return best


def _candidates(config: Mapping[str, Any]) -> Iterator[LogitTransform]:
    for value in sorted(set(_numbers(config))):
        yield LogitTransform(scale=value)
        yield LogitTransform(scale=1 / value)
        yield LogitTransform(cap=value)


def _numbers(config: Mapping[str, Any]) -> Iterator[float]:
    """Yield the positive finite numbers of a config, and of the configs inside it."""
    for value in config.values():
        if isinstance(value, Mapping):
            yield from _numbers(value)
        elif isinstance(value, int | float) and value is not True and 0 < value < math.inf:
            yield float(value)
