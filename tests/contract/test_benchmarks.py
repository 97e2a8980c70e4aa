"""What `python -m benchmarks` makes of rounds: ratios with intervals, and reasons."""

from __future__ import annotations

import importlib
import re
import sys
from types import ModuleType

import pytest
from scipy.stats import t

from support.documents import ROOT


@pytest.fixture
def gathered(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return importlib.import_module("benchmarks.__main__")


def test_a_table_has_ratios_with_intervals_and_what_could_not_run(gathered: ModuleType) -> None:
    pair = gathered.Comparison("tuning", "ours", "PEFT", gathered.PROCESSOR, (2.0, 8.0))
    middle, low, high = pair.interval()
    assert middle == pytest.approx(4)
    # Two logarithms that differ by 2 log 2: their mean's standard error is log 2.
    assert high / middle == pytest.approx(2 ** t.ppf(0.975, 1))
    assert low * high == pytest.approx(middle**2)
    one = gathered.Comparison("reading", "ours", "HFLM", gathered.PROCESSOR, (3.0,))
    found = [
        gathered.Outcome("tuning", (pair, one), "", 1.0),
        gathered.Outcome("pairs", (), "needs minicons", 0.1),
    ]
    page = gathered.table(found)
    assert re.search(r"\| tuning +\| ours +\| PEFT +\| 4.00x +\| 0.00 to", page)
    assert re.search(r"\| 3.00x +\| one round", page)
    assert re.search(r"not run +\|.*needs minicons +\| `pairs.py`", page)


def test_what_is_not_there_is_a_reason(gathered: ModuleType) -> None:
    found, reason = gathered.compare("no_such_peer", gathered.SIZES["small"])
    assert found == ()
    assert reason.startswith("needs no_such_peer (`pip install")
