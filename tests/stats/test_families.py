"""Families of templates: resampled as units, recovered for Regard, and asked for where missing."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import raybias
from raybias.config import Probe
from raybias.errors import DataError
from raybias.formats.openings import look_alike
from raybias.probes import probe_items
from raybias.report.doubts import doubts
from raybias.report.judged import Judged
from raybias.stats.gaps import GapAnalysis, by_family
from support.stats_data import crossed, judged_files

NOBODY = pl.DataFrame(schema=dict.fromkeys(
    ("probe", "attribute", "group", "text", "template_id", "term"), pl.String))  # fmt: skip


def study(copies: int, *, families: bool = True) -> pl.DataFrame:
    """Neutral sentences of 2 groups, 6 runs and 12 openings, each template `copies` times alike."""
    random = np.random.default_rng(3)
    shift = np.array([0.0, 0.3])[:, None, None]
    wrong = random.random((2, 6, 12)) < 0.3 + shift + random.normal(0, 0.3, (2, 1, 12))
    happy = random.random((2, 6, 12)) < 0.2
    pred = np.where(wrong, 0, 1 + happy).transpose(1, 2, 0)[..., None]
    opening = pl.col("template_id").cast(pl.Int64) // copies
    family = pl.format("o{}", opening) if families else pl.lit(None, pl.String)
    return crossed(pred.repeat(copies, axis=1)).with_columns(family=family)


def judged(folder: Path, frame: pl.DataFrame) -> GapAnalysis:
    folder.mkdir(parents=True, exist_ok=True)
    frame.write_parquet(folder / "own.parquet")
    return judged_files([folder / "own.parquet"], profile="strict")


def told(files: list[Path]) -> list[str]:
    """What the page says of templates."""
    estimates = raybias.measure(files)
    return [*doubts(estimates, Judged.of(estimates), NOBODY)]


def test_a_family_weighs_as_one_template(tmp_path: Path) -> None:
    alike, single = (judged(tmp_path / str(n), study(n)) for n in (4, 1))
    numbers = ["value", "low", "high", "p", "mde"]
    families, templates = by_family(alike.counts, alike.rules), single.scopes
    wide = templates.filter(pl.col("scope") != "runs")
    assert families.select("group", "score").equals(wide.select("group", "score"))
    assert families.height == 4
    assert np.allclose(families.select(numbers), wide.select(numbers), rtol=1e-9)
    # As single templates, copies seem to be four times as many observations.
    width = (pl.col("high") - pl.col("low")).mean()
    narrow = alike.scopes.filter(scope="sentences").select(width).item()
    assert narrow < 0.7 * families.filter(scope="families").select(width).item()
    said = told([tmp_path / "4" / "own.parquet"])
    found = alike.scopes.filter(pl.col("significant"), scope="sentences").height
    stand = families.filter(pl.col("significant"), scope="families").height
    assert found > stand
    counted = f"{stand // 2} of the {found // 2} that are significant if seeds and sentences"
    assert any(counted in text for text in said)


def test_without_families_nothing_is_said_of_them(tmp_path: Path) -> None:
    found = judged(tmp_path, study(2, families=False))
    assert by_family(found.counts, found.rules).is_empty()
    assert not [text for text in told([tmp_path / "own.parquet"]) if "opening" in text]


def test_a_template_has_one_family(tmp_path: Path) -> None:
    other = pl.when(run_id="1").then(pl.lit("other")).otherwise("family")
    with pytest.raises(DataError, match=r"template '0' has the families 'o0' and 'other'"):
        judged(tmp_path, study(1).with_columns(family=other))


def test_rare_errors_on_few_templates_are_a_caution(tmp_path: Path) -> None:
    few = pl.Series(np.random.default_rng(8).choice([0, 1, 2], 144, p=[0.03, 0.7, 0.27]))
    once = study(1).with_columns(pred=few.cast(pl.Int16))
    judged(tmp_path / "rare", once)
    rare = told([tmp_path / "rare/own.parquet"])
    # Of two groups the gaps are one, of each rate.
    assert any(text.startswith("2 of 2 gaps rest on fewer than 10 sentences") for text in rare)
    # Tenfold as many templates, of which a third is wrong: neither outcome is rare.
    copies = [
        study(1).with_columns(pl.col("template_id", "family", "item_id") + f".{n}")
        for n in range(10)
    ]
    judged(tmp_path / "usual", pl.concat(copies))
    usual = told([tmp_path / "usual/own.parquet"])
    assert not any("fewer than 10" in text for text in usual)


def test_templates_that_begin_alike_are_a_caution() -> None:
    openings = ("worked as", "was known for", "earned money by")
    rows = [
        ("p", "x", group, f"The {group} person {opening} {number}.", f"{opening}{number}", group)
        for group in ("tall", "short") for opening in openings for number in range(5)
    ]  # fmt: skip
    items = pl.DataFrame(rows, NOBODY.schema, orient="row")
    (said,) = look_alike(items)
    assert said.startswith("15 templates of x begin in 3 ways")
    unlike = items.with_columns(text=pl.col("template_id") + " " + pl.col("text"))
    assert not look_alike(unlike.filter(~pl.col("template_id").str.contains("[1-4]")))


def test_an_own_probe_keeps_its_families(tmp_path: Path) -> None:
    (tmp_path / "own.csv").write_text(
        "text,label,attribute,group,template_id,family\n"
        "A tall one sings.,neutral,size,tall,t1,sings\n"
        "A short one sings.,neutral,size,short,t1,sings\n"
    )
    probe = {"source": "file", "data": str(tmp_path / "own.csv")}
    assert probe_items(Probe.model_validate(probe))["family"].to_list() == ["sings", "sings"]


@pytest.mark.long
def test_regards_ten_openings(shared: Path) -> None:
    file = shared / "data" / "regard_published" / "regard_opt-125m.tsv.gz"
    families = judged_files([file], profile="strict").counts.families
    assert families["family"].n_unique() == 10
    assert families.height == 100  # One of the 101 continues no opening.
    probe = {"source": "regard", "data": str(shared / "data" / "regard")}
    items = probe_items(Probe.model_validate(probe))
    assert items["family"].n_unique() - items["family"].has_nulls() == 10
