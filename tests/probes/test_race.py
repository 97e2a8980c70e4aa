"""Regard and NS-Prompts against the published samples."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import polars as pl
import pytest

from raybias.config import Probe
from raybias.errors import DataError
from raybias.probes import probe_items
from raybias.probes.registries import probes
from raybias.schema import ITEMS

Row = tuple[int, str, str]

#: Of the ten templates of NS-Prompts that its authors mended after they made their samples, nine
#: began "The The {term}", and one held a stray comma behind these words.
COMMA = "farrier is in equine hoof care"


def items(source: str, data: Path, **options: object) -> pl.DataFrame:
    return probe_items(Probe.model_validate({"source": source, "data": str(data), **options}))


def published(path: Path) -> list[Row]:
    lines = path.read_text("utf-8").removesuffix("\n").split("\n")
    rows = [line.split("\t") for line in lines]
    assert {category for _, category, _, _ in rows} == {"grouped_race"}
    return [(int(label), group, text) for label, _, group, text in rows]


def plain(frame: pl.DataFrame) -> list[Row]:
    return frame.select("label", "group", "text").rows()


def test_regard_is_the_published_one_row_for_row(shared: Path) -> None:
    folder = shared / "data" / "regard"
    found = items("regard", folder)
    assert plain(found) == published(folder / "regard_samples.tsv")
    assert (len(found), found["template_id"].n_unique()) == (1111, 101)
    counts = found["label"].value_counts().sort("label")["count"].to_list()
    assert counts == [484, 242, 385]
    # The samples are the same items, led back to the templates beside them.
    assert items("regard", folder / "regard_samples.tsv").equals(found)


def test_ns_prompts_differs_from_the_samples_by_the_mended_templates_alone(shared: Path) -> None:
    folder = shared / "data" / "ns_prompts"
    ours, theirs = plain(items("ns_prompts", folder)), published(folder / "NS-prompts_samples.tsv")
    assert len(ours) == len(theirs) == 9768
    assert {label for label, _, _ in ours} == {1}

    def mended(row: Row) -> Row:
        label, group, text = row
        return label, group, text.replace("The The ", "The ").replace(f"{COMMA},.", f"{COMMA}.")

    changed = [row for row in theirs if mended(row) != row]
    assert len(changed) == 10 * 11
    assert sum(COMMA in text for _, _, text in changed) == 11
    # "The The" sorts elsewhere; all other rows keep their places too.
    mends = set(map(mended, changed))
    assert [row for row in ours if row not in mends] == [
        row for row in theirs if row not in set(changed)
    ]
    assert sorted(map(mended, theirs)) == sorted(ours)


def test_samples_are_led_back_to_templates_and_terms(shared: Path, tmp_path: Path) -> None:
    folder = shared / "data" / "ns_prompts"
    found = items("ns_prompts", folder / "NS-prompts_samples.tsv")
    assert plain(found) == published(folder / "NS-prompts_samples.tsv")
    assert found.columns == ITEMS.names
    assert found.drop("family").null_count().sum_horizontal().item() == 0
    ours = items("ns_prompts", folder)
    assert found["template_id"].value_counts()["count"].unique().to_list() == [11]
    assert (
        found["term"].value_counts().sort("term").equals(ours["term"].value_counts().sort("term"))
    )
    same = found.join(ours, on=["text", "term", "group", "template_id"], how="semi")
    assert len(same) == 878 * 11
    # Without the templates beside them, clusters are the same under names of their own.
    shutil.copyfile(folder / "NS-prompts_samples.tsv", tmp_path / "NS-prompts_samples.tsv")
    alone = items("ns_prompts", tmp_path / "NS-prompts_samples.tsv")
    assert alone.drop("template_id").equals(found.drop("template_id"))
    pairs = pl.DataFrame({"a": alone["template_id"], "b": found["template_id"]}).unique()
    assert len(pairs) == pairs["a"].n_unique() == pairs["b"].n_unique() == 888
    samples = str(tmp_path / "NS-prompts_samples.tsv")
    slots = [each.text for each in probes["ns_prompts"].templates(samples, ["race"])["race"]]
    assert all(re.search(r"\bThe \{identity_adj\} ", text) for text in slots)


def test_own_terms_and_bad_files(shared: Path, tmp_path: Path) -> None:
    shutil.copyfile(shared / "data" / "regard" / "Regard.csv", tmp_path / "Regard.csv")
    (tmp_path / "race.csv").write_text("TERM,GROUP\nmartian,Mars People\n")
    found = items("regard", tmp_path, attributes=["grouped_race"])
    assert len(found) == 101
    assert found["group"].unique().to_list() == ["mars-people"]
    with pytest.raises(DataError, match=r"no attribute 'age'.*choose from race"):
        items("regard", tmp_path, attributes=["age"])
    with pytest.raises(DataError, match=r"NS-Prompts\.csv: no such file"):
        items("ns_prompts", tmp_path)
    rows = {
        "2\tgrouped_age\told\tThe old man.\n": "row 1: category is 'grouped_age'",
        "2\trace\tmars-people\tThe martian.\n3\trace\tx\ty\n": "row 2: label is '3'",
        "2\trace\tx\n": "row 1: has 3 fields, not 4",
        "": "holds no rows",
    }
    for text, message in rows.items():
        (tmp_path / "samples.tsv").write_text(text)
        with pytest.raises(DataError, match=re.escape(message)):
            items("regard", tmp_path / "samples.tsv")
    # A text without its group's term is kept, as a cluster of its own.
    (tmp_path / "samples.tsv").write_text("2\trace\tmars-people\tNobody.\n")
    assert items("regard", tmp_path / "samples.tsv").row(0)[-3:] == (
        "regard/race/00000",
        None,
        None,
    )
