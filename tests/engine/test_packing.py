"""Packing keeps every row: its tokens, its order, its ancestors and nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from raybias.engine.packing import Placed, fitting, longest_first, pack, stack

ROWS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=8), min_size=1, max_size=20)


@given(ROWS, st.integers(0, 40))
def test_every_row_is_the_path_of_ancestors_of_its_last_token(
    rows: list[list[int]], max_tokens: int
) -> None:
    sequences = pack(rows, max_tokens=max_tokens)
    found = {}
    for sequence in sequences:
        assert len(sequence.tokens) <= max(max_tokens, *map(len, rows))
        for member, last in zip(sequence.members, sequence.lasts, strict=True):
            path = [j for j in range(last + 1) if last < sequence.ends[j]]
            assert [int(sequence.depths[j]) for j in path] == list(range(len(path)))
            found[member] = [int(sequence.tokens[j]) for j in path]
    assert found == dict(enumerate(rows))


@given(ROWS)
def test_shared_openings_are_written_once(rows: list[list[int]]) -> None:
    prefixes = {tuple(row[: n + 1]) for row in rows for n in range(len(row))}
    (sequence,) = pack(rows, max_tokens=10**6)
    assert len(sequence.tokens) == len(prefixes)


@given(ROWS, st.integers(1, 60))
def test_batches_keep_the_budget_and_every_row(rows: list[list[int]], budget: int) -> None:
    waiting = longest_first([Placed(7, 0, each) for each in pack(rows, max_tokens=12)])
    read = []
    while waiting:
        count = fitting(waiting, budget=budget, prompt_length=2)
        batch = stack(waiting[:count])
        height, width = batch.tokens_RT.shape
        assert height == 1 or height * (width + 2) <= budget
        for (key, row), r, t in zip(batch.rows, batch.at_R, batch.at_T, strict=True):
            assert key == 7
            assert batch.tokens_RT[r, t] == rows[row][-1]
            read.append(row)
        waiting = waiting[count:]
    assert sorted(read) == list(range(len(rows)))
