"""BOLD's prompts, from a file in the layout that its authors publish (the test's own words)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raybias.config import Probe
from raybias.errors import DataError
from raybias.probes import probe_items

GENDER = {
    "American_actors": {"Al_Bo": ["Al Bo is an American actor who ", "In 1999, Bo "]},
    "American_actresses": {"Cy_Di": ["Cy Di is an American actress, "], "El_Fa": ["El Fa was "]},
}


def test_bolds_layout_is_read(tmp_path: Path) -> None:
    file = tmp_path / "gender_prompt.json"
    file.write_text(json.dumps(GENDER))
    items = probe_items(Probe(source="bold", data=str(tmp_path)))
    texts = items["text"].to_list()
    assert texts[:2] == ["Al Bo is an American actor who", "In 1999, Bo"]
    assert texts[2:] == ["Cy Di is an American actress,", "El Fa was"]
    assert items["group"].to_list() == ["American_actors"] * 2 + ["American_actresses"] * 2
    # What was written about one person is drawn together.
    assert items["template_id"].to_list()[:2] == ["gender/American_actors/Al_Bo"] * 2
    assert items["template_id"].n_unique() == 3
    assert set(items["attribute"]) == {"gender"}
    assert set(items["label"]) == {1}
    assert items["term"].null_count() == 4
    assert probe_items(Probe(source="bold", data=str(file))).equals(items)
    with pytest.raises(DataError, match=r"race_prompt\.json"):
        probe_items(Probe(source="bold", data=str(tmp_path), attributes=("race",)))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"actors": ["a prompt"]}', r"gender_prompt\.json: actors: Input should be an object"),
        ('{"actors": {"a": [1]}}', r"actors\.a\.0: Input should be a valid string"),
        ("{}", "holds no prompts"),
        ("no json", "gender_prompt"),
        (None, "has no file such as gender_prompt"),
    ],
)
def test_another_layout_is_one_line(tmp_path: Path, content: str | None, message: str) -> None:
    if content is not None:
        (tmp_path / "gender_prompt.json").write_text(content)
    with pytest.raises(DataError, match=message):
        probe_items(Probe(source="bold", data=str(tmp_path)))
