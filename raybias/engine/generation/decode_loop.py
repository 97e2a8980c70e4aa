"""Decode with continuous batching: waiting rows take the slots of rows that have ended.

A row's tokens are the same whenever it begins and whatever is beside it: its draws are numbered by
its own steps.

Shapes: N slots, n live ones, T steps, L label ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from raybias import seeding
from raybias.engine import keyed_draws
from raybias.engine.devices import to_device
from raybias.engine.generation.packed_rows import Numbers, PackedRows
from raybias.engine.generation.sampling import PrefixCache, Rows, Sampler, common_length, rectangle
from raybias.engine.packing import FULL, Placed, Row, stack

Key = tuple[str | int, ...]

#: Steps after which a device of this kind is asked which rows have ended. To ask a GPU is to wait
#: for it; on a CPU a step for a row that has ended costs what any other costs.
LOOK: Final = {"cpu": 1, "cuda": 8}
#: Rows go on or are replaced once one part in this many can: a pass for each would cost more than
#: the steps that it saves.
_PART: Final = 4


@dataclass(frozen=True)
class Generated:
    """Text generated after one prompt.

    Attributes
    ----------
    tokens: new tokens, without the one that ended the row.
    label_log_probs: natural log-probabilities of the label ids behind the prompt, float32.
    """

    tokens: tuple[int, ...]
    label_log_probs: tuple[float, ...]


@dataclass(frozen=True)
class Continuation:
    """A second prompt for each row, built from the text generated after the first one.

    Attributes
    ----------
    prompts: from numbers of rows and the tokens generated after each of them to whole prompts in
        tokens; it may be called for a row more than once.
    keys, max_new_tokens: as for `generate`.
    """

    prompts: Callable[[Sequence[int], Sequence[tuple[int, ...]]], Sequence[Row]]
    keys: Sequence[Key]
    max_new_tokens: int


@dataclass(frozen=True)
class DecodeRequest:
    """Prompts that are decoded with the same options."""

    rows: Sequence[Row]
    keys: Sequence[Key]
    sampler: Sampler
    max_new_tokens: int
    label_ids: list[int]
    then: Continuation | None = None


@dataclass
class _Slot:
    """A row that is being continued: its number in the request, its prompt, and what is written."""

    number: int
    prompt: Row
    first: Generated | None = None
    """What was generated after the first prompt, once the second one is continued."""
    tokens: list[int] = field(default_factory=list)
    labels: Sequence[float] = ()
    fresh: bool = True
    """Whether no step has read it."""
    ended: bool = False

    @property
    def path(self) -> list[int]:
        return [*self.prompt, *self.tokens]


class DecodeLoop:
    """Continue the rows of a batch, and those that wait behind it as far as there is room.

    Parameters
    ----------
    numbers: of the batch's rows in the request, in its order.
    """

    def __init__(self, rows: Rows, request: DecodeRequest, numbers: Sequence[int]) -> None:
        self.rows = rows
        self.request = request
        self.slots = [_Slot(number, request.rows[number]) for number in numbers]
        self.results: dict[int, tuple[Generated, ...]] = {}
        #: Steps that each slot's row may still take.
        self.steps_N = np.full(len(numbers), max(1, request.max_new_tokens))
        self.live_n = np.arange(len(numbers))
        self._draws_NT = self._uniforms([request.keys[number] for number in numbers])
        self._labels: list[tuple[list[int], Tensor]] = []
        #: Slots whose rows have ended.
        self.empty: list[int] = []
        #: Slots whose first text is complete, and whose second prompt is to come.
        self._first_done: list[int] = []

    def run(self, waiting: WaitingRows | None = None) -> None:
        """Decode until all rows have ended, and what was taken of those that wait."""
        look = LOOK.get(self.rows.device.type, LOOK["cuda"])
        unseen: list[tuple[Numbers, Tensor]] = []
        self._begin()
        while len(self.live_n):
            drawn_n = self._step()
            unseen.append((self.live_n, drawn_n))
            self.steps_N[self.live_n] -= 1
            going_n = self.steps_N[self.live_n] > 0
            if len(unseen) == look or not going_n.any():
                before, self.live_n = self.live_n, self._look(unseen)
                unseen = []
                if self._refill(waiting):
                    self._begin()
                    continue
                going_n = np.isin(before, self.live_n)
            else:
                self.live_n = self.live_n[going_n]
            self._follow(drawn_n, going_n)

    def assign(self, slots: Sequence[int], numbers: Sequence[int]) -> None:
        """Give empty slots to other rows of the request, whose prompts `rows` has read."""
        for n, number in zip(slots, numbers, strict=True):
            self.slots[n] = _Slot(number, self.request.rows[number])
        self.steps_N[[*slots]] = max(1, self.request.max_new_tokens)
        self._redraw(slots, [self.request.keys[number] for number in numbers])
        self.empty = sorted({*self.empty} - {*slots})

    def _step(self) -> Tensor:
        """Read one more token of each live row, and draw the next."""
        sampler = self.request.sampler
        logits_nV = self.rows.step(self.live_n, self._last_n)
        fresh = [at for at, n in enumerate(self.live_n) if self.slots[n].fresh]
        if fresh:
            for n in self.live_n[fresh]:
                self.slots[n].fresh = False
            if self.request.label_ids:
                every = len(fresh) == len(logits_nV)
                read_fV = logits_nV if every else logits_nV[to_device(fresh, self._device)]
                ids_L = to_device(np.array(self.request.label_ids, np.int64), self._device)
                labels_fL = read_fV.log_softmax(dim=-1)[:, ids_L]
                self._labels.append((self.live_n[fresh].tolist(), labels_fL))
        if not self.request.max_new_tokens:
            return self._last_n
        uniforms_n = None
        if self._draws_NT is not None:
            uniforms_n = self._draws_NT[self._at_n, self._step_n]
        return sampler.choose(logits_nV, history_NT=self._history_nT, uniforms_N=uniforms_n)

    def _begin(self) -> None:
        """Bring what the next steps need of the live rows to the device."""
        rows = [self.slots[n] for n in self.live_n]
        device = self._device
        self._at_n = to_device(self.live_n, device)
        self._last_n = to_device([row.path[-1] for row in rows], device)
        self._step_n = to_device([len(row.tokens) for row in rows], device)
        self._history_nT = None
        if rows and self.request.sampler.needs_history:
            self._history_nT = rectangle([row.path for row in rows], device)

    def _follow(self, drawn_n: Tensor, going_n: NDArray[np.bool_]) -> None:
        """Let what was drawn be the last tokens, of the rows that go on."""
        self._last_n, self._step_n = drawn_n, self._step_n + 1
        if self._history_nT is not None:
            self._history_nT = torch.cat([self._history_nT, drawn_n[:, None]], dim=1)
        if not going_n.all():
            # A device is not asked how many go on, as a mask would.
            going = to_device(np.flatnonzero(going_n), self._device)
            self._at_n, self._last_n = self._at_n[going], self._last_n[going]
            self._step_n = self._step_n[going]
            if self._history_nT is not None:
                self._history_nT = self._history_nT[going]

    def _look(self, unseen: Sequence[tuple[Numbers, Tensor]]) -> Numbers:
        """Write down what was drawn, up to tokens that end rows; return the rows that go on."""
        for slots, labels_fL in self._labels:
            for n, labels_L in zip(slots, labels_fL.tolist(), strict=True):
                self.slots[n].labels = labels_L
        self._labels = []
        at_t = np.concatenate([live_n for live_n, _ in unseen])
        token_t = torch.cat([drawn_n for _, drawn_n in unseen]).cpu().numpy()
        ends_t = np.isin(token_t, self.request.sampler.sampling.eos_ids)
        for n, token, ends in zip(at_t.tolist(), token_t.tolist(), ends_t.tolist(), strict=True):
            slot = self.slots[n]
            slot.ended = slot.ended or ends
            if not slot.ended:
                slot.tokens.append(token)
        seen = np.unique(at_t)
        ended = [n for n in seen.tolist() if self.slots[n].ended or not self.steps_N[n]]
        self.steps_N[ended] = 0
        goes_on = [self.request.then is not None and self.slots[n].first is None for n in ended]
        self._first_done.extend(compress(ended, goes_on))
        done = [n for n, on in zip(ended, goes_on, strict=True) if not on]
        for n in done:
            slot = self.slots[n]
            firsts = [] if slot.first is None else [slot.first]
            self.results[slot.number] = (*firsts, self._written(slot))
        if done:
            self.empty.extend(done)
            self.rows.leave(done)
        going: Numbers = seen[self.steps_N[seen] > 0]
        return going

    def _written(self, slot: _Slot) -> Generated:
        """Return what was generated after a row's prompt; labels may be all that was asked for."""
        then = self.request.then
        second = slot.first is not None and then is not None
        most = then.max_new_tokens if then and second else self.request.max_new_tokens
        return Generated(tuple(slot.tokens[:most]), tuple(slot.labels))

    def _refill(self, waiting: WaitingRows | None) -> bool:
        """Begin second prompts and fill empty slots, where enough rows can; tell whether any did.

        No slot is filled once all rows have ended: those that wait make a batch of their own.
        """
        can = len(self._first_done) + (len(self.empty) if waiting else 0)
        if _PART * can < len(self.slots) and len(self.live_n):
            return False
        new = self._begin_second()
        if waiting and (new or len(self.live_n)):
            new += waiting.fill(self)
        self.live_n = np.sort(np.append(self.live_n, np.array(new, np.int64)))
        return bool(new)

    def _begin_second(self) -> list[int]:
        """Have the rows whose first text is complete go on behind their second prompt."""
        slots, self._first_done = sorted(self._first_done), []
        then = self.request.then
        if not slots or then is None or not isinstance(self.rows, PackedRows):
            return []
        rows = [self.slots[n] for n in slots]
        firsts = [self._written(row) for row in rows]
        numbers = [row.number for row in rows]
        prompts = then.prompts(numbers, [first.tokens for first in firsts])
        shared = [common_length([row.path, new]) for row, new in zip(rows, prompts, strict=True)]
        for n, row, first, prompt in zip(slots, rows, firsts, prompts, strict=True):
            self.slots[n] = _Slot(row.number, prompt, first)
        self.steps_N[slots] = max(1, then.max_new_tokens)
        self._redraw(slots, [then.keys[number] for number in numbers])
        self.rows.fork(slots, prompts, shared, self.steps_N)
        return slots

    def _redraw(self, slots: Sequence[int], keys: Sequence[Key]) -> None:
        """Give slots the random numbers of the rows that are in them now."""
        drawn_NT = self._uniforms(keys)
        if self._draws_NT is not None and drawn_NT is not None:
            self._draws_NT[to_device(slots, self._device)] = drawn_NT

    def _uniforms(self, keys: Sequence[Key]) -> Tensor | None:
        """Draw the numbers [N, T] of rows with these keys, for whichever prompt takes more."""
        if self.request.sampler.is_greedy:
            return None
        rows = keyed_draws.keys([seeding.key(*each) for each in keys], self._device)
        then = self.request.then
        most = max(1, self.request.max_new_tokens, then.max_new_tokens if then else 0)
        return keyed_draws.uniforms(rows, most)

    @property
    def _device(self) -> torch.device:
        return self.rows.device


class WaitingRows:
    """Rows that wait behind a batch, and fill its empty slots as far as there is room.

    Parameters
    ----------
    rows: the batch.
    sequences: of the rows that wait, longest first; those that get slots are taken out.
    """

    def __init__(self, rows: PackedRows, sequences: list[Placed], prefix: PrefixCache) -> None:
        self.rows = rows
        self.sequences = sequences
        self.prefix = prefix

    def __len__(self) -> int:
        return len(self.sequences)

    def fill(self, loop: DecodeLoop) -> list[int]:
        """Read waiting prompts into empty slots; return these slots."""
        filled: list[int] = []
        while found := self._choose(loop):
            batch = stack(self.sequences[: len(found)])
            del self.sequences[: len(found)]
            slots = [n for each in found for n in each]
            start = self.rows.cache.prefix_length
            cache = self.prefix.cache(
                count=len(found), capacity=start + max(1, batch.tokens_RT.shape[1])
            )
            self.rows.replace(slots, batch, cache)
            loop.assign(slots, [n for _, n in batch.rows])
            filled.extend(slots)
        return filled

    def _choose(self, loop: DecodeLoop) -> list[list[int]]:
        """Choose slots for the first waiting sequences, as far as there are enough.

        A pass reads a part of the sequences at most, as its keys and values are held beside the
        others', and none much shorter than the first.
        """
        room_R = self.rows.room(loop.steps_N)
        empty = sorted(loop.empty, key=lambda n: (self.rows.sequence_N[n], n))
        prefix_length, new = self.rows.cache.prefix_length, max(1, loop.request.max_new_tokens)
        found: list[list[int]] = []
        for each in self.sequences[: max(1, self.rows.total // _PART)]:
            if len(each.sequence.tokens) < FULL * len(self.sequences[0].sequence.tokens):
                break
            numbers = each.sequence.members
            needs = [len(loop.request.rows[n]) - 1 - prefix_length + new for n in numbers]
            slots = _fitting_slots(needs, empty, self.rows.sequence_N, room_R)
            if not slots:
                break
            taken = {*slots}
            empty = [n for n in empty if n not in taken]
            found.append(slots)
        return found


def _fitting_slots(
    needs: Sequence[int], empty: Sequence[int], sequence_N: Numbers, room_R: Numbers
) -> list[int]:
    """Choose an empty slot for each row, in a sequence with the places that it needs.

    None of them, where one has no slot; else `room_R` is what is left.
    """
    left_R, found = room_R.copy(), list[int]()
    for need in needs:
        for n in empty:
            if n not in found and left_R[sequence_N[n]] >= need:
                left_R[sequence_N[n]] -= need
                found.append(n)
                break
        else:
            return []
    room_R[:] = left_R
    return found
