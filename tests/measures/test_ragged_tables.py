"""OUTs of probes in which groups lack labels, and so rates: pages, exports and comparisons.

Tables are in `test_ragged_kinds.py`.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import raybias
from raybias import schema
from raybias.config import parse_study
from raybias.errors import BadInput
from raybias.probes.templates import items_frame
from raybias.report.page import write_report
from raybias.storage import Store
from support.pages import Page
from support.report_outs import finished, predicted

#: Many small folders: what takes time is the work, which no test may wait for.
RAGGED = settings(
    deadline=None,
    max_examples=10,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
pytestmark = pytest.mark.long


def texts(folder: Path) -> str:
    """What the pages of a folder say, without the marks of HTML."""
    return " ".join(Page(path.read_text("utf-8")).text for path in folder.rglob("*.html"))


@st.composite
def items(draw: st.DrawFn) -> pl.DataFrame:
    """The items of a probe with missing cells: groups lack templates, labels, words."""
    rows = []
    templates, placed = draw(st.integers(1, 5)), draw(st.booleans())
    for attribute in draw(st.sampled_from([["origin"], ["origin", "age"]])):
        groups = [f"{attribute} {n}" for n in range(draw(st.integers(1, 4)))]
        groups += draw(st.sampled_from([[], [], ["unmarked"], ["unmarked", "placeholder"]]))
        for group in groups:
            extra = group in schema.EXTRA_GROUPS
            words = [None] if extra else draw(st.sampled_from([[None], ["a"], ["a", "b"]]))
            cells = [(t, word) for t in range(templates) for word in words]
            kept = draw(st.lists(st.sampled_from(cells), min_size=1, unique=True))
            rows += [
                (
                    f"{attribute}-{group}-{t}-{word}",
                    t % 3,
                    attribute,
                    group,
                    f"{group} {t} {word}",
                    f"t{t}" if placed else None,
                    word,
                )
                for t, word in kept
            ]
    return items_frame(rows)


def write_out(folder: Path, table: pl.DataFrame, study: Any, seed: int) -> Store:
    """A finished OUT whose runs label the items at random."""
    store, runs = finished(folder, study, table)
    for place, run in enumerate(runs.iter_rows(named=True)):
        label = table["label"].to_numpy()
        pred = (label + (label * 7 + place + seed) % 5 // 3) % 3
        found = predicted(table, run, study.probes[0].name, pred)
        name = f"predictions/{study.probes[0].name}/{run['run_id']}.parquet"
        store.write_table(name, found.to_arrow().cast(schema.PREDICTIONS))
    return store


@RAGGED
@given(items(), st.integers(1, 3), st.sampled_from(["strict", "paper"]), st.booleans())
def test_an_out_of_a_ragged_probe_is_reported_exported_and_compared(
    tmp_path_factory: pytest.TempPathFactory,
    table: pl.DataFrame,
    seeds: int,
    profile: str,
    rates: bool,
) -> None:
    folder = tmp_path_factory.mktemp("out")
    study = parse_study(
        {
            "name": "ragged",
            "profile": profile,
            "backbones": [{"id": "m1"}, {"id": "m2"}],
            "training": [{"source": "planted"}],
            "probes": [{"source": "planted", "name": "mine", "reference_groups": {}}],
            "methods": [{"kind": "soft_prompt", "seeds": [*range(1, seeds + 1)], "keep": seeds}],
            "statistics": {"metrics": ["selection_rate", "tpr", "fpr"]} if rates else {},
        }
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        for name, seed in (("one", 1), ("two", 2)):
            write_report(write_out(folder / name, table, study, seed), study)
        results = raybias.Results(folder / "one")
        assert str(results)
        for lazy in (results.by_group, results.overall, results.difference, results.accuracy):
            lazy.collect()
        results.gaps.plot()
        assert raybias.export(folder / "one", "latex", folder / "latex")
        assert len(raybias.export(folder / "one", "eee", folder / "eee")) == 2
        raybias.measure(folder / "one", out=folder / "measured")
        try:
            raybias.compare(folder / "one", folder / "two", out=folder / "compared")
        except BadInput:
            assert not (folder / "compared").exists()
    lacking = results.estimates.filter(statistic="rate", reason="no rows").collect()
    for page in (folder / "one", folder / "measured"):
        assert not lacking.height or "no rows" in texts(page)
