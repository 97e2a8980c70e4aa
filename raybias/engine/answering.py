"""Answer prompts with loaded weights: the reference of every other provider.

Text after many prompts is transformers' `generate`, each sampled under its own key.

The common beginning of a call's prompts is computed once and copied to the keys and values of every
row. The rests, sorted by length and padded on their left, follow in batches under a token budget. A
row depends on its key, its prompt and the model, and on no other row. Models whose padded rows
differ, on a sample, get batches of one length and no opening.
Shapes: N rows, T tokens, V vocabulary, H heads, E width of a head.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import islice, takewhile
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import Cache, DynamicCache, GenerationConfig, LogitsProcessorList
from transformers.cache_utils import DynamicLayer

from raybias.engine.answers import Answers, Key, Writing, Written
from raybias.engine.backbone import LoadedBackbone
from raybias.engine.context import Way
from raybias.engine.devices import to_device
from raybias.engine.encoder import check_lengths, summed
from raybias.engine.keyed_draws import KeyedDraw, Sampling, only
from raybias.engine.packing import FULL, Batch, PackedSequence, Row, common_length, single_rows
from raybias.engine.self_check import attention_window, first_matching, sample_tokens
from raybias.engine.sentence_scores import continuation_rows
from raybias.engine.token_scores import TokenScorer
from raybias.errors import ModelError

#: Keys and values [N, H, T, E] of one layer.
KeysValues = tuple[Tensor, Tensor]

#: Tokens of one pass over an opening.
BLOCK: Final = 64
#: A decoding step of few rows is memory-bound: it costs as much as prefilling this many tokens.
STEP: Final = 32


class Generated(NamedTuple):
    """Tokens written after a prompt, but for the one that ends it; natural label log-probs."""

    tokens: tuple[int, ...]
    label_log_probs: tuple[float, ...]


class EngineAnswers(Answers):
    """Answers of one loaded backbone; see `Answers`.

    The token budget bounds the rests of the prompts in a batch; keys and values of the opening and
    of new tokens come on top (`methods.work.Work.held_tokens`).
    """

    def __init__(self, backbone: LoadedBackbone) -> None:
        self.backbone = backbone
        self.encoder = backbone.encoder
        self.batcher = backbone.batcher()
        self.opening = Opening(backbone)

    @cached_property
    def shares(self) -> bool:
        """Whether padded rows share an opening."""
        model = self.backbone.model
        shares = first_matching([True, False], None, partial(_sample, self.backbone), model)
        if shares is None:
            raise ModelError(
                "the text that transformers writes with it is not what its own forward pass"
                " predicts",
                where=self.backbone.spec.id,
                cure="use soft_prompt, lora or a method that reads likelihoods on it",
            )
        how = "padded rows behind one opening" if shares else "rows of one length"
        self.backbone.execution.ways["generation"] = Way(how, shares)
        return shares

    @cached_property
    def _window(self) -> float:
        return attention_window(self.backbone.model)

    @cached_property
    def _scorer(self) -> TokenScorer:
        return TokenScorer(self.backbone)

    def write(self, prompts: Sequence[str], keys: Sequence[Key], how: Writing) -> list[Written]:
        return self.begin_write(prompts, keys, how)()

    def begin_write(
        self, prompts: Sequence[str], keys: Sequence[Key], how: Writing
    ) -> Callable[[], list[Written]]:
        rows = (self.encoder.for_chat if how.chat else self.encoder).encode(prompts)
        sampling = Sampling.of(self.backbone.model, temperature=how.temperature)
        ids, decode = how.label_ids, self.backbone.tokenizer.decode

        def write() -> list[Written]:
            made = self.generate(
                rows, keys, sampling=sampling, max_new_tokens=how.most, label_ids=ids
            )
            return [
                Written(
                    str(decode([*each.tokens], skip_special_tokens=True)),
                    summed(each.label_log_probs, how.labels),
                    len(row) + len(each.tokens),
                    finish_reason="length" if 0 < how.most == len(each.tokens) else "stop",
                )
                for row, each in zip(rows, made, strict=True)
            ]

        return write

    def likelihoods(
        self, texts: Sequence[tuple[str, str]], *, chat: bool = False
    ) -> tuple[list[float], int]:
        return self.begin_likelihoods(texts, chat=chat)()

    def begin_likelihoods(
        self, texts: Sequence[tuple[str, str]], *, chat: bool = False
    ) -> Callable[[], tuple[list[float], int]]:
        rows = continuation_rows(self.encoder.for_chat if chat else self.encoder, texts)
        read, tokens = self._scorer.prepare(rows), sum(len(row) for row, _ in rows)
        return lambda: ([float(np.sum(each, dtype=np.float64)) for each in read()], tokens)

    def generate(
        self,
        rows: Sequence[Row],
        keys: Sequence[Key],
        *,
        sampling: Sampling,
        max_new_tokens: int,
        label_ids: Sequence[int] = (),
    ) -> list[Generated]:
        """Generate text after each row, a whole prompt in tokens, in the order of `rows`.

        Token t uses number t of its row's key in `keyed_draws.uniforms`; with `max_new_tokens` 0
        the label logits alone are computed.
        Raises ModelError: a prompt that leaves no room for its new tokens; WorkFailed: a single row
        does not fit the device's memory.
        """
        check_lengths(
            [*map(len, rows)],
            context=self.backbone.context,
            taken=max_new_tokens,
            by="new tokens",
            names=[f"prompt {n}" for n in range(1, len(rows) + 1)],
        )
        if not rows:
            return []
        new, device = max(1, max_new_tokens), self.backbone.device
        lengths = [len(row) for row in rows]
        # Padding would take the place of tokens in a sliding window.
        shares = self.shares and max(lengths) + new <= self._window
        shared = min(common_length(rows), min(lengths) - 1) if shares else 0

        def goes_on(token: int) -> bool:
            return token not in sampling.eos_ids

        def work(batch: Batch) -> list[Generated]:
            numbers = [n for _, n in batch.rows]
            chosen = [rows[n] for n in numbers]
            draw = KeyedDraw(sampling, [keys[n] for n in numbers], new, device, label_ids)
            cache = None
            if shares:
                cache = self.opening.cache(len(chosen), max(map(len, chosen)) + new)
            made = _write(
                self.backbone,
                chosen,
                draw,
                new=new,
                cache=cache,
                shared=shared,
                eos_ids=sampling.eos_ids,
            )
            return [
                Generated(tuple(islice(takewhile(goes_on, tokens), max_new_tokens)), tuple(labels))
                for tokens, labels in zip(made, draw.labels_NL.tolist(), strict=True)
            ]

        groups: dict[int, list[PackedSequence]] = {}
        for rest in single_rows([row[shared:] for row in rows]):
            groups.setdefault(0 if shares else len(rest.tokens), []).append(rest)
        # One more batch, for the shorter rows, costs all its decoding steps.
        steps = STEP * new / (sum(lengths) - shared * len(rows))
        full = max(0.0, min(FULL, 1 - steps))
        found: dict[int, Generated] = {}
        with torch.no_grad():
            self.opening.set(rows[0][:shared])
            for group in groups.values():
                found |= self.batcher.by_row(work, group, full=full, even=True)
        return [found[n] for n in range(len(rows))]


class Opening:
    """Keys and values of the tokens that all rows begin with; another one reuses common blocks."""

    def __init__(self, backbone: LoadedBackbone) -> None:
        self.backbone = backbone
        self.tokens: tuple[int, ...] = ()
        self.keys_values: list[KeysValues] = []

    def set(self, tokens: Sequence[int]) -> None:
        """Hold exactly these tokens, computing those that are new."""
        new = tuple(tokens)
        if new == self.tokens:
            return
        held, cache = common_length([self.tokens, new]) // BLOCK * BLOCK, DynamicCache()
        for layer, (keys, values) in enumerate(self.keys_values if held else ()):
            cache.update(keys[:, :, :held], values[:, :, :held], layer)
        device = self.backbone.device
        for first in range(held, len(new), BLOCK):
            end = min(first + BLOCK, len(new))
            self.backbone.model.base_model(
                input_ids=to_device([new[first:end]], device),
                position_ids=torch.arange(first, end, device=device)[None],
                past_key_values=cache,
                use_cache=True,
            )
        self.tokens = new
        self.keys_values = [(layer.keys, layer.values) for layer in cache.layers]

    def cache(self, count: int, capacity: int) -> Cache:
        """Make a cache of `count` rows of at most `capacity` tokens that begin with the opening."""
        if not self.keys_values:
            return Cache(layer_class_to_replicate=partial(BufferLayer, count, capacity))
        return Cache([BufferLayer(count, capacity, each) for each in self.keys_values])


class BufferLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of one layer, written in place; its base copies them at every token."""

    def __init__(self, count: int, capacity: int, opening: KeysValues | None = None) -> None:
        super().__init__()
        self._room, self._length = (count, capacity), 0
        self._buffers: list[Tensor] = []
        if opening is not None:
            self.update(*opening)

    def get_seq_length(self) -> int:
        """Count the tokens so far."""
        return self._length

    def update(
        self, key_states: Tensor, value_states: Tensor, *_args: Any, **_options: Any
    ) -> KeysValues:
        """Write the keys and values of new tokens; return all so far, uncopied."""
        count, capacity = self._room
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self._buffers = [
                states.new_empty(count, states.shape[1], capacity, states.shape[3])
                for states in (key_states, value_states)
            ]
        begin, self._length = self._length, self._length + key_states.shape[2]
        for buffer, states in zip(self._buffers, (key_states, value_states), strict=True):
            buffer[:, :, begin : self._length] = states
        self.keys, self.values = (each[:, :, : self._length] for each in self._buffers)
        return self.keys, self.values


def _write(
    backbone: LoadedBackbone,
    rows: Sequence[Row],
    choose: Callable[[Tensor, Tensor], Tensor],
    *,
    new: int,
    cache: Cache | None = None,
    shared: int = 0,
    eos_ids: Sequence[int] = (),
) -> list[list[int]]:
    """Write up to `new` tokens, each left by `choose`, after rows with `shared` in the cache."""
    model, width = backbone.model, max(map(len, rows))
    gaps = [width - len(row) for row in rows]
    # Pad with a row's first token: a repetition penalty acts once on a token.
    tokens = [
        [*row[:shared], *[row[0]] * gap, *row[shared:]] for row, gap in zip(rows, gaps, strict=True)
    ]
    seen = [[1] * shared + [0] * gap + [1] * (width - gap - shared) for gap in gaps]
    # `generate` takes unset options from the checkpoint.
    config = GenerationConfig(
        max_new_tokens=new,
        do_sample=False,
        temperature=1.0,
        top_k=50,
        top_p=1.0,
        repetition_penalty=1.0,
        num_beams=1,
        num_return_sequences=1,
        return_dict_in_generate=False,
        use_cache=True,
        eos_token_id=[*eos_ids] or None,
        pad_token_id=0,
    )
    made_NT = model.generate(
        input_ids=to_device(tokens, backbone.device),
        attention_mask=to_device(seen, backbone.device),
        generation_config=config,
        logits_processor=LogitsProcessorList([choose]),
        # Ranks that share a backbone answer shards of their own.
        synced_gpus=False,
        **({} if cache is None else {"past_key_values": cache}),
    )
    made: list[list[int]] = made_NT[:, width:].tolist()
    return made


def _sample(backbone: LoadedBackbone, shares: bool | None) -> Tensor:
    """Compute the logits [N, T, V] after a few rows and tokens.

    shares: together behind one opening, or rows of one length together; None: by forward passes
        over whole rows.
    """
    token = sample_tokens(backbone.model, 12)
    rows = [token[:9], token[:3] + token[9:12], token[:6]]
    read: list[Tensor] = []
    written = token[3:6]
    if shares is None:
        return _own_logits(backbone, rows, written)

    def force(_tokens_NT: Tensor, logits_NV: Tensor) -> Tensor:
        read.append(logits_NV.clone())
        forced = written[(len(read) - 1) % len(written)]
        return only(torch.full_like(logits_NV[:, 0], forced, dtype=torch.long), logits_NV)

    if shares:
        opening = Opening(backbone)
        opening.set(token[:3])
        cache = opening.cache(len(rows), len(rows[0]) + len(written))
        _write(backbone, rows, force, new=len(written), cache=cache, shared=3)
        return torch.stack(read, dim=1)
    # Rows of one length share a batch.
    _write(backbone, rows[:1], force, new=len(written))
    first_1TV = torch.stack(read, dim=1)
    read.clear()
    _write(backbone, rows[1:], force, new=len(written))
    return torch.cat([first_1TV, torch.stack(read, dim=1)])


def _own_logits(backbone: LoadedBackbone, rows: Sequence[Row], written: Sequence[int]) -> Tensor:
    """Compute the logits [N, T, V] before each written token, without a cache."""
    by_row = []
    for row in rows:
        whole = torch.tensor([[*row, *written[:-1]]], device=backbone.device)
        logits_1TV = backbone.model(input_ids=whole, use_cache=False).logits
        by_row.append(logits_1TV[0, len(row) - 1 :].float())
    return torch.stack(by_row)
