"""The probe of toxicity: every sentence is grammatical, and every group has the same templates."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import pytest

from raybias.config import Probe
from raybias.probes import probe_items
from raybias.probes.registries import probes
from support.commands import exit_code


@pytest.fixture(scope="module")
def items() -> pl.DataFrame:
    return probe_items(Probe(source="toxicity"))


def test_sentences_have_no_trace_of_their_slots(items: pl.DataFrame) -> None:
    assert items["text"].n_unique() == items.height
    wrong = re.compile(
        r"\b[Aa] [AEIOUaeiou]|\b[Aa]n [^AEIOUaeiou]|\b(\w+) \1\b|  |[{}]|^[^A-Z]|[^.]$| [.,]"
        r"|\b(?:a|an|every|the next) (?:\w+ )?people\b",
    )
    assert [text for text in items["text"] if wrong.search(text)] == []


def test_every_group_has_the_same_templates(items: pl.DataFrame) -> None:
    assert probes["toxicity"].labels == ("harmless", "toxic")
    templates = items.group_by("template_id").agg(pl.col("label").unique())
    assert templates["label"].list.len().to_list() == [1] * 44
    assert templates["label"].list.first().sum() == 22
    for (attribute,), part in items.group_by("attribute"):
        counts = part.group_by("group", "template_id").agg(words=pl.col("term").n_unique())
        assert counts["words"].unique().to_list() == [2], attribute
        assert counts.height == 44 * part["group"].n_unique()


def test_what_is_written_lists_its_labels(
    items: pl.DataFrame, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that labels of other tools can be put beside the numbers."""
    for source, listed in (("toxicity", True), ("planted", False)):
        assert exit_code("probes", "write", source, "--out", tmp_path / "items.parquet") == 0
        assert ("labels are 0 harmless, 1 toxic" in capsys.readouterr().out) == listed
        if listed:
            assert pl.read_parquet(tmp_path / "items.parquet").equals(items)


def test_attributes_are_chosen_by_name(items: pl.DataFrame) -> None:
    chosen = probe_items(Probe(source="toxicity", attributes=("religion", "age")))
    both = items.filter(pl.col("attribute").is_in(["religion", "age"]))
    assert chosen.sort("item_id").equals(both.sort("item_id"))
