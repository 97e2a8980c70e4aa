"""Random numbers by counter: to the bit those of a NumPy reference, and sound ones."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import dropout, scaled_dot_product_attention

from raybias.engine import keyed_draws
from raybias.seeding import key

CPU = torch.device("cpu")


def mixed(words: np.ndarray) -> np.ndarray:
    """lowbias32 as its author writes it, on unsigned words."""
    words = words.astype(np.uint32)
    words = (words ^ (words >> np.uint32(16))) * np.uint32(0x7FEB352D)
    words = (words ^ (words >> np.uint32(15))) * np.uint32(0x846CA68B)
    return words ^ (words >> np.uint32(16))


def words(one: np.ndarray, count: int) -> np.ndarray:
    """The words of one key, two uint32."""
    drawn = (mixed(np.arange(count)) ^ one[0]) * (one[1] | np.uint32(1))
    drawn = (drawn ^ (drawn >> np.uint32(16))) * np.uint32(0x846CA68B)
    return drawn ^ (drawn >> np.uint32(15))


@given(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=4), st.integers(0, 2**31 - 1),
       st.integers(1, 9), st.integers(1, 7), st.floats(0, 0.999))  # fmt: skip
def test_every_draw_is_that_of_numpy(
    numbers: list[int], place: int, rows: int, width: int, lost: float
) -> None:
    keys_N2 = keyed_draws.joined(keyed_draws.keys(numbers, CPU), place)
    halves = [np.array([n >> 32, n & 0xFFFFFFFF], np.uint32) for n in numbers]
    plain = [mixed(mixed(each) ^ np.uint32(place)) for each in halves]
    np.testing.assert_array_equal(keys_N2.numpy().view(np.uint32), plain)
    drawn = np.array([words(each, 2 * rows) for each in plain])
    np.testing.assert_array_equal(
        keyed_draws.words(keys_N2, 2 * rows).numpy().view(np.uint32), drawn
    )
    high, low = drawn[:, ::2] % 2**27, drawn[:, 1::2] % 2**26
    expected = (high.astype(np.uint64) * 2**26 + low) / 2**53
    np.testing.assert_array_equal(keyed_draws.uniforms(keys_N2, rows).numpy(), expected)
    each = -(-width // 2)
    masks = np.array([words(one, rows * each).view(np.int16) for one in plain])
    masks = masks.reshape(len(numbers), rows, 2 * each)[..., :width]
    whole = keyed_draws.kept(keys_N2, (rows, width), lost)
    np.testing.assert_array_equal(whole.numpy(), masks >= min(round(lost * 65536), 65535) - 32768)
    # Padding changes no row's mask.
    assert torch.equal(keyed_draws.kept(keys_N2, (rows + 3, width), lost)[:, :rows], whole)


def test_masks_are_fair_and_independent_of_their_neighbours() -> None:
    """Over keys, rows and columns, and between masks whose keys differ by one."""
    runs_S2 = keyed_draws.keys([key("a run", s) for s in range(8)], CPU)
    rows_R1 = torch.arange(8, dtype=torch.int32)[:, None]
    keys_N2 = keyed_draws.joined(runs_S2[:, None], rows_R1).view(64, 2)
    lost = 0.3
    values = keyed_draws.kept(keys_N2, (64, 256), lost).double() - (1 - lost)
    error = (lost * (1 - lost)) ** 0.5
    count = values.numel()
    assert abs(values.mean()) < 4 * error / count**0.5
    for axes in ((0, 1), (0, 2), (1, 2)):
        means = values.mean(axes)
        spread = error / (count / len(means)) ** 0.5
        assert means.abs().max() < 5 * spread
        assert 0.5 < means.std() / spread < 1.5
    for axis in range(3):
        for lag in (1, 2, 8, 32):
            product = values.narrow(axis, lag, values.shape[axis] - lag)
            product = product * values.narrow(axis, 0, values.shape[axis] - lag)
            assert abs(product.mean()) < 5 * error**2 / product.numel() ** 0.5
    draws = keyed_draws.uniforms(keys_N2, 1000).flatten()
    counts = torch.histc(draws, 50, 0, 1)
    assert ((counts - 1280) ** 2 / 1280).sum() < 49 + 5 * (2 * 49) ** 0.5


def test_a_models_dropout_falls_by_counter() -> None:
    values = torch.randn(3, 5, 7, dtype=torch.float64)

    def mask(call: int, shape: torch.Size) -> torch.Tensor:
        keys = keyed_draws.joined(keyed_draws.keys([key(1, "dropout")], CPU), call)
        return keyed_draws.kept(keys, [shape.numel()], 0.25).view(shape)

    with keyed_draws.KeyedDropout(1, "dropout"):
        assert dropout(values, 0.25, training=False) is values
        first, second = dropout(values, 0.25), torch.nn.Dropout(0.25)(values)
    torch.testing.assert_close(first, values * mask(0, values.shape) / 0.75)
    torch.testing.assert_close(second, values * mask(1, values.shape) / 0.75)


@pytest.mark.parametrize("masked", [True, False])
def test_fused_attention_drops_out_its_weights_by_counter(masked: bool) -> None:
    query, many = torch.randn(2, 4, 6, 8), torch.randn(2, 2, 2, 6, 8)
    seen = torch.ones(6, 6, dtype=torch.bool).tril()
    given = {"attn_mask": seen} if masked else {"is_causal": True}
    with keyed_draws.KeyedDropout(1, "dropout"):
        found = scaled_dot_product_attention(query, *many, **given, dropout_p=0.25, enable_gqa=True)
        sure = scaled_dot_product_attention(query, *many, **given, enable_gqa=True)
    keys, values = (each.repeat_interleave(2, dim=1) for each in many)
    weights = (query @ keys.mT / 8**0.5).masked_fill(~seen, -torch.inf).softmax(-1)
    torch.testing.assert_close(sure, weights @ values)
    keyed = keyed_draws.joined(keyed_draws.keys([key(1, "dropout")], CPU), 0)
    mask = keyed_draws.kept(keyed, [weights.numel()], 0.25).view(weights.shape)
    torch.testing.assert_close(found, weights * mask / 0.75 @ values)
