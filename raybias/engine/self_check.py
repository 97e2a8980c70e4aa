"""Compare fast ways of calling a model with the model's own forward pass.

Fast ways (rows packed under a tree mask, the LM head on a few positions, a shared prefix) are tried
on a few rows of each loaded model; no list of architectures says which model can take them. A
difference counts in units of rounding: how far the model's own values move if every input embedding
is changed by one unit in the last place.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from random import Random
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch
from torch import Tensor

from raybias.engine.devices import out_of_memory
from raybias.errors import ModelError, said_by

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Root-mean-square differences that are accepted without a measurement of rounding, as a share of
#: the values' root mean square.
_NEGLIGIBLE: Final = {torch.float32: 1e-5, torch.bfloat16: 2e-3, torch.float16: 2.5e-4}
#: Accepted difference in units of the measured rounding. A fast way rounds in every layer, the
#: measurement at the input only.
_ROUNDINGS: Final = 4.0


#: Fields of configs, and attributes of attention modules, that bound how far a token looks back.
_WINDOW: Final = re.compile(r"window|attention_chunk|attn_chunk")
#: Other fields with such names: counts, patterns, and numbers of layers.
_NO_WINDOW: Final = re.compile(r"layers|pattern|num_|_num|kernel|block|mamba|conv|audio|vision")

#: What a model raises that does not take a way of being called.
MISFITS: Final = (
    RuntimeError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    AssertionError,
)

ExecutionMode = TypeVar("ExecutionMode")


def attention_window(model: PreTrainedModel) -> float:
    """Return how many tokens a row may have so that every layer sees all of it; inf without limit.

    The window is any number with such a name in the config, or in a module of the model.
    """
    config = model.config.get_text_config().to_dict()
    sizes = [config, *(vars(module) for module in model.modules())]
    return min((size for fields in sizes for size in _window_sizes(fields)), default=float("inf"))


def _window_sizes(fields: dict[str, Any]) -> Iterator[int]:
    for name, value in fields.items():
        if not _WINDOW.search(name) or _NO_WINDOW.search(name):
            continue
        sizes = value if isinstance(value, list | tuple) else [value]
        yield from (size for size in sizes if type(size) is int and size > 0)


def sample_tokens(model: PreTrainedModel, count: int) -> list[int]:
    """Return `count` token ids from all over a model's vocabulary, always the same.

    Special tokens are left out: some models take padding for the end of a row.
    """
    config = model.config.get_text_config()
    specials: set[int | None] = {0}
    for name in ("pad_token_id", "bos_token_id", "eos_token_id", "mask_token_id"):
        ids = getattr(config, name, None)
        specials |= set(ids) if isinstance(ids, list | tuple) else {ids}
    random = Random(0)
    spread = (random.randrange(config.vocab_size) for _ in range(100 * count))
    return list(islice((token for token in spread if token not in specials), count))


@contextmanager
def jittered_embeddings(model: PreTrainedModel) -> Iterator[None]:
    """Change every input embedding by one unit in the last place, up or down in turn."""

    def jitter(_layer: torch.nn.Module, _args: Any, output: Tensor) -> Tensor:
        sign = 1.0 - 2.0 * (torch.arange(output.shape[-1], device=output.device) % 2)
        return output * (1.0 + sign * torch.finfo(output.dtype).eps).to(output.dtype)

    hook = model.get_input_embeddings().register_forward_hook(jitter)
    try:
        yield
    finally:
        hook.remove()


def first_matching(
    modes: Iterable[ExecutionMode],
    plain: ExecutionMode,
    sample: Callable[[ExecutionMode], Tensor],
    model: PreTrainedModel,
) -> ExecutionMode:
    """Return the first of `modes` that has the values of the plain mode, or the plain mode.

    sample: computes values [N, ...] of the same N rows in a mode.
    """
    with torch.no_grad():
        expected, rounding = measure_rounding(model, lambda: sample(plain))
        for mode in modes:
            # An architecture may take other inputs, or keep its hidden states elsewhere.
            with suppress(*MISFITS):
                values = sample(mode)
                if agrees(values, expected, rounding=rounding, dtype=model.dtype):
                    return mode
    return plain


def measure_rounding(model: PreTrainedModel, sample: Callable[[], Tensor]) -> tuple[Tensor, float]:
    """Return a model's values [N, ...], and the root-mean-square difference that rounding makes.

    Raises ModelError: the model's own forward pass fails, as one without kernels for its dtype.
    """
    try:
        expected = sample()
        with jittered_embeddings(model):
            jittered = sample()
    except MISFITS as error:
        if out_of_memory(error):
            raise
        raise ModelError(
            f"its own forward pass fails ({said_by(error)})",
            where=str(model.config._name_or_path),
            cure="set its dtype to float32, or choose another model",
        ) from error
    return expected, _rms(jittered.float() - expected.float())


def agrees(values: Tensor, expected: Tensor, *, rounding: float, dtype: torch.dtype) -> bool:
    """Check whether values [N, ...] differ from the expected ones by no more than rounding.

    rounding: root-mean-square difference that rounding alone makes, in the units of the values.
    dtype: of the model.

    Every row must agree by itself: a fault may concern long rows only.
    """
    if values.shape != expected.shape or not bool(values.isfinite().all()):
        return False
    allowed = _ROUNDINGS * rounding + _NEGLIGIBLE[dtype] * max(1.0, _rms(expected))
    return all(_rms(row) <= allowed for row in values.float() - expected.float())


def _rms(values: Tensor) -> float:
    return float(values.float().square().mean().sqrt())


def crossing_lengths(window: float, longest: int) -> Sequence[int]:
    """Return lengths of rows below and above a window; none if `longest` tokens do not cross it."""
    if window + 3 > longest:
        return ()
    return int(window) - 1, int(window) + 3
