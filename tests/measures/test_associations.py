"""WEAT and SEAT from files of embeddings, against loops over words and partitions."""

from __future__ import annotations

import shlex
from itertools import combinations
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from scipy import stats

import raybias
from raybias import schema
from raybias.columns import ASSOCIATION_SETS
from raybias.errors import DataError
from raybias.measures.entries.associations import ASSOCIATIONS
from raybias.measures.kind import measure
from support import prompting
from support.commands import exit_code, refused
from support.documents import ROOT, blocks
from support.studies import save_judge

WIDTH = 12


def embedded(targets: int = 5, attributes: int = 6, *, shift: float = 0.8, seed: int = 1,
             test: str = "flowers") -> pl.DataFrame:  # fmt: skip
    """Embeddings of one test, in which X lies in the direction of A by `shift`."""
    random = np.random.default_rng(seed)
    a, b = random.normal(size=(2, WIDTH))
    means = {"X": shift * a, "Y": shift * b, "A": a, "B": b}
    rows = [
        ("m", "", "", test, name, f"{name}{n}", list(mean + random.normal(size=WIDTH)))
        for name, mean in means.items()
        for n in range(targets if name in "XY" else attributes)
    ]
    return pl.DataFrame(rows, pl.Schema(schema.EMBEDDINGS), orient="row")


def sets(table: pl.DataFrame) -> dict[str, list[np.ndarray]]:
    return {
        name: [np.array(each, float) for each in table.filter(set=name)["embedding"].to_list()]
        for name in ASSOCIATION_SETS
    }


def cosine(one: np.ndarray, other: np.ndarray) -> float:
    return float(one @ other / np.sqrt((one @ one) * (other @ other)))


def plain(table: pl.DataFrame) -> tuple[list[float], list[float]]:
    """The associations of X and of Y, word by word."""
    by = sets(table)
    x, y = (
        [
            float(np.mean([cosine(w, a) for a in by["A"]]))
            - float(np.mean([cosine(w, b) for b in by["B"]]))
            for w in by[name]
        ]
        for name in "XY"
    )
    return x, y


@pytest.mark.parametrize("shift", [0.0, 0.4, 0.8])
def test_effect_size_and_exact_p_are_those_of_loops(shift: float) -> None:
    table = embedded(shift=shift)
    x, y = plain(table)
    both = x + y
    d = (np.mean(x) - np.mean(y)) / np.std(both, ddof=1)
    sums = [
        sum(both[n] for n in chosen) - sum(both[n] for n in range(len(both)) if n not in chosen)
        for chosen in combinations(range(len(both)), len(x))
    ]
    p = np.mean(np.abs(sums) >= abs(sum(x) - sum(y)) - 1e-12)
    (row,) = measure(ASSOCIATIONS, table.sample(fraction=1, shuffle=True, seed=0)).to_dicts()
    assert (row["kind"], row["attribute"], row["score"]) == (
        "associations",
        "flowers",
        "effect_size",
    )
    assert row["value"] == pytest.approx(d)
    assert row["p"] == pytest.approx(p)
    assert row["significant"] == (p <= 0.05)
    assert row["low"] < row["value"] < row["high"]
    assert (row["n"], row["units"], row["scope"]) == (10, 10, "targets")
    # Lengths of embeddings and a change of sides: nothing, and the sign.
    longer = table.with_columns(pl.col("embedding").list.eval(pl.element() * 4))
    assert measure(ASSOCIATIONS, longer)["value"][0] == pytest.approx(d)
    turned = table.with_columns(pl.col("set").replace({"X": "Y", "Y": "X"}))
    other = measure(ASSOCIATIONS, turned)
    assert other["value"][0] == pytest.approx(-d)
    assert other["p"][0] == pytest.approx(p)


def test_many_targets_have_keyed_draws_near_the_exact_p() -> None:
    table = embedded(targets=10, shift=0.25)
    first, again = measure(ASSOCIATIONS, table), measure(ASSOCIATIONS, table.reverse())
    assert first.equals(again)
    x, y = plain(table)
    exact = stats.permutation_test(
        (x, y), lambda x, y, axis: x.mean(axis) - y.mean(axis), n_resamples=np.inf, vectorized=True
    )  # fmt: skip
    assert first["p"][0] == pytest.approx(exact.pvalue, abs=0.02)
    assert first["p"][0] >= 2 / 10_000
    wide = measure(ASSOCIATIONS, table, raybias.measures.kind.Rules(level=0.99))
    assert wide["low"][0] < first["low"][0]


def test_tests_of_a_model_are_corrected_together(tmp_path: Path) -> None:
    parts = [embedded(seed=n, shift=n / 10, test=f"test {n}") for n in range(6)]
    table = pl.concat(parts)
    path = tmp_path / "embeddings.parquet"
    table.drop("probe", "method").write_parquet(path)
    found = raybias.measure([path], out=tmp_path / "out")
    assert found.height == 6
    p = found["p"].to_numpy()
    assert found["q"].to_numpy() == pytest.approx(stats.false_discovery_control(p))
    assert (found["survives"] == ((found["q"] <= 0.05) & (found["p"] <= 0.05))).all()
    page = (tmp_path / "out/report.html").read_text()
    assert "effect size" in page
    assert "Caliskan et al. 2017" in page
    assert exit_code("measure", path, "--out", tmp_path / "again") == 0


def test_the_guides_code_makes_a_file_that_its_command_measures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_judge(tmp_path / "bert", prompting.save("opt", tmp_path / "tiny"))
    monkeypatch.chdir(tmp_path)
    code, command = blocks(ROOT / "docs/guides/associations.md")
    exec(code.text.replace("bert-base-uncased", "bert"), {})
    table = pl.read_parquet("embeddings.parquet")
    assert table.group_by("set").len()["len"].to_list() == [2] * 4
    assert exit_code(*shlex.split(command.commands[0])[1:]) == 0
    assert pl.read_csv("scored/estimates.csv")["method"].to_list() == ["mean"]


def test_what_does_not_vary_has_a_reason() -> None:
    table = embedded(targets=1)
    (row,) = measure(ASSOCIATIONS, table).to_dicts()
    assert (row["p"], row["low"], row["reason"]) == (None, None, "one unit")
    same = embedded().with_columns(
        embedding=pl.when(pl.col("set").is_in(["X", "Y"]))
        .then(pl.lit([1.0] * WIDTH).cast(pl.List(pl.Float32))).otherwise("embedding")
    )  # fmt: skip
    (row,) = measure(ASSOCIATIONS, same).to_dicts()
    assert (row["value"], row["reason"]) == (None, "units do not vary")


def changed(value: list[float | None]) -> pl.DataFrame:
    """One word of which has another embedding."""
    new = pl.lit(value, pl.List(pl.Float32))
    return embedded().with_columns(
        embedding=pl.when(pl.col("item_id") == "Y2").then(new).otherwise("embedding")
    )


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (embedded().filter(pl.col("set") != "B"), "m flowers has no set B; give each test"),
        (
            embedded().with_columns(set=pl.lit("Z")),
            "set 'Z' is none of X, Y, A, B",
        ),
        (changed([1.0]), r"m flowers has embeddings of different lengths \(1, 12\)"),
        (changed([0.0] * WIDTH), "m flowers 'Y2': the embedding is 0"),
        (changed([1.0, None] * 6), "row 8: embedding has a value that is missing"),
        (changed([float("nan")] * WIDTH), "row 8: embedding has a value that is not a finite"),
        (pl.concat([embedded()] * 2), "answers flowers A A0 more than once"),
        (embedded().with_columns(embedding=pl.lit("1 2")), "String, not a list of numbers"),
    ],
)
def test_a_wrong_file_is_one_line(
    table: pl.DataFrame, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "embeddings.parquet"
    table.write_parquet(path)
    with pytest.raises(DataError, match=message):
        raybias.measure([path])
    assert refused(capsys, "measure", path, "--out", tmp_path / "out").count("\n") <= 1
    assert not (tmp_path / "out").exists()
