"""CrowS-Pairs and a user's own pairs: counts, contract, and the one line that each fault gives."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from raybias.config import PairProbe
from raybias.errors import ConfigError, DataError
from raybias.probes import base_pairs, in_styles
from raybias.probes.own import own_pairs
from raybias.probes.published.crows_pairs import BIAS_TYPES, PairWarning, crows_pairs
from raybias.schema import PAIRS

#: As the data's own description counts them, in the order of BIAS_TYPES: all, antistereo.
PUBLISHED = {
    "gender": (262, 103),
    "race-color": (516, 43),
    "religion": (105, 6),
    "socioeconomic": (172, 15),
    "disability": (60, 3),
    "nationality": (159, 11),
    "sexual-orientation": (84, 12),
    "physical-appearance": (63, 11),
    "age": (87, 14),
}
GOOD = {
    "sent_more": ["He is old.", "She is old"],
    "sent_less": ["He is young.", "She is young"],
    "bias_type": ["age", "age"],
}


@pytest.fixture
def crows(shared: Path) -> pl.DataFrame:
    return crows_pairs(str(shared / "data" / "crows_pairs"))


def write(path: Path, **change: list[object] | None) -> str:
    columns = {key: value for key, value in {**GOOD, **change}.items() if value is not None}
    frame = pl.DataFrame(columns)
    frame.write_csv(path) if path.suffix == ".csv" else frame.write_parquet(path)
    return str(path)


def test_crows_pairs_counts_types_and_directions(crows: pl.DataFrame, shared: Path) -> None:
    assert crows.columns == PAIRS.names
    assert pl.DataFrame(PAIRS.empty_table()).schema == crows.schema
    assert tuple(PUBLISHED) == BIAS_TYPES
    for kind, (count, anti) in PUBLISHED.items():
        rows = crows.filter(bias_type=kind)
        assert (len(rows), (rows["direction"] == "antistereo").sum()) == (count, anti)
    assert len(crows) == crows["pair_id"].n_unique() == 1508
    assert crows["cluster"].n_unique() == 77
    assert not crows["kept"].any()
    data = str(shared / "data" / "crows_pairs")
    narrowed = base_pairs(PairProbe(source="crows_pairs", data=data, kinds=("age", "religion")))
    assert len(narrowed) == 87 + 105
    with pytest.raises(DataError, match=r"no attribute 'sex'; choose from race-color"):
        base_pairs(PairProbe(source="crows_pairs", data=data, kinds=("sex",)))


def test_what_is_written_is_a_file_of_ones_own(crows: pl.DataFrame, tmp_path: Path) -> None:
    both = in_styles("crows_pairs", crows, ["original", "prefix_2"])
    assert len(both) == 2 * 1508
    both.write_csv(tmp_path / "mine.csv")
    assert own_pairs(str(tmp_path / "mine.csv")).equals(crows)
    formal = crows.with_columns(pl.lit("formal").alias("style"), pl.col("sent_more") + " Sir.")
    formal.sample(fraction=1, shuffle=True, seed=0).write_csv(tmp_path / "formal.csv")
    read = in_styles("crows_pairs", crows, ["formal"], files=[str(tmp_path / "formal.csv")])
    assert read.equals(formal)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_three_columns_are_enough(tmp_path: Path, suffix: str) -> None:
    pairs = own_pairs(write(tmp_path / f"mine{suffix}", note=["", "x"]))
    assert pairs.columns == PAIRS.names
    assert pairs["pair_id"].to_list() == ["mine/00000", "mine/00001"]
    assert pairs["direction"].to_list() == ["stereo", "stereo"]
    given = write(tmp_path / "b.csv", direction=["antistereo", "stereo"], pair_id=["b", "a"])
    assert own_pairs(given).select("pair_id", "direction").rows() == [
        ("b", "antistereo"),
        ("a", "stereo"),
    ]
    assert pairs["cluster"].null_count() == 2
    alike = own_pairs(write(tmp_path / "c.csv", cluster=["ann", "ben"]))
    assert alike["cluster"].to_list() == ["ann", "ben"]
    # What is written without clusters is read again without.
    pairs.write_csv(tmp_path / "again.csv")
    assert own_pairs(str(tmp_path / "again.csv")).equals(pairs)


def test_an_unknown_type_is_kept_and_named(tmp_path: Path) -> None:
    uri = write(tmp_path / "mine.csv", bias_type=["caste", "age"])
    with pytest.warns(PairWarning, match=r"1 pairs are of types .* \(caste\); they are kept"):
        assert own_pairs(uri)["bias_type"].to_list() == ["caste", "age"]


def test_styled_files_must_have_every_pair_once(tmp_path: Path) -> None:
    pairs = own_pairs(write(tmp_path / "mine.csv"))
    whole = pairs.with_columns(pl.lit("formal").alias("style"))

    def read(*frames: pl.DataFrame, style: str = "formal") -> pl.DataFrame:
        uris = [str(tmp_path / f"{n}.csv") for n in range(len(frames))]
        for frame, uri in zip(frames, uris, strict=True):
            frame.write_csv(uri)
        return in_styles("pairs", pairs, [style], files=uris)

    assert read(whole[:1], whole[1:]).equals(whole)
    with pytest.raises(DataError, match=r"1 of 2 pairs are missing in style 'formal' \(mine/00"):
        read(whole[:1])
    with pytest.raises(DataError, match=r"1 of 2 pairs are given more than once"):
        read(whole, whole[:1])
    with pytest.raises(DataError, match=r"no rows of style 'informal'"):
        read(whole, style="informal")
    with pytest.raises(DataError, match=r"row 2: both sides of pair 'mine/00001'"):
        read(whole.with_columns(sent_less=pl.Series(["x", "She is old"])))
    strange = whole.with_columns(pl.Series("pair_id", ["p", "q"]))
    with pytest.warns(PairWarning, match=r"2 rows have ids that the probe has not \(p, q\)"):
        assert read(whole, strange).equals(whole)
    with pytest.raises(ConfigError, match=r"no rule makes the style 'formal'; give a file"):
        in_styles("pairs", pairs, ["formal"])
    # A model makes them later.
    waiting = in_styles("pairs", pairs, ["original", "formal"], rewritten=["formal"])
    assert waiting.filter(style="formal").drop("style", "kept").equals(pairs.drop("style", "kept"))
    assert waiting.filter(style="formal")["kept"].all()
