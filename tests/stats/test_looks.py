"""The level of each of several looks, against the normal distribution in as many dimensions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import multivariate_normal, norm

from raybias.stats.looks import error_over, level_of_each


@pytest.mark.parametrize("looks", [1, 2, 3, 5])
def test_all_looks_together_err_as_one_would(looks: int) -> None:
    each = level_of_each(looks)
    sizes = 2.0 ** np.arange(looks)
    alike = np.sqrt(np.minimum.outer(sizes, sizes) / np.maximum.outer(sizes, sizes))
    ends = np.full(looks, norm.ppf((1 + each) / 2))
    inside = multivariate_normal(np.zeros(looks), alike).cdf(ends, lower_limit=-ends)
    assert error_over(looks, each) == pytest.approx(1 - inside, abs=1e-5)
    assert 0.0497 < error_over(looks, each) <= 0.05 + 1e-9
    assert error_over(looks, 0.95) >= 0.05 - 1e-9
