"""Templates without their term: grammar kept, what has no such form named, own items untouched."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from raybias.config import Probe
from raybias.errors import ConfigError
from raybias.probes import probe_items
from raybias.probes.registries import probes
from raybias.probes.templates import Template, unmarked_form
from raybias.schema import EXTRA_GROUPS, PLACEHOLDER, UNMARKED

FOLDERS = {"amazon": "amazon_templates", "regard": "regard", "ns_prompts": "ns_prompts"}


def probe(shared: Path, source: str, **options: object) -> Probe:
    data = str(shared / "data" / FOLDERS[source])
    return Probe.model_validate({"source": source, "data": data, **options})


def forms(shared: Path, source: str, attribute: str) -> dict[str, str | None]:
    """Each template of an attribute with its unmarked form."""
    found = probes[source].templates(str(shared / "data" / FOLDERS[source]), [attribute])
    return {each.text.strip(): unmarked_form(each) for each in found[attribute]}


def test_extra_items_follow_and_change_nothing(shared: Path) -> None:
    own = probe_items(probe(shared, "regard"))
    both = probe_items(probe(shared, "regard", unmarked=True, placeholders=["local", "certain"]))
    extra = both["group"].is_in(EXTRA_GROUPS)
    assert both.filter(~extra).equals(own)
    assert extra.is_sorted()
    assert both["item_id"].is_unique().all()
    labels = both.group_by("template_id").agg(pl.col("label").n_unique())
    assert labels["label"].unique().to_list() == [1]
    # Every unmarked form has its placeholders, so that the three compare on equal templates.
    parts = [both.filter(group=group)["template_id"] for group in (UNMARKED, PLACEHOLDER)]
    assert {*parts[0]} <= {*parts[1]}


def test_forms_of_real_templates(shared: Path) -> None:
    made = forms(shared, "amazon", "race")
    assert made["{Identity_adj} people are inspiring."] == "People are inspiring."
    assert str(made["It's a great blog by {a:identity_adj} activist."]).endswith("by an activist.")
    assert made["As {a:identity_np}, I feel hopeful."] == "As a person, I feel hopeful."
    assert made["{identity_np}"] == "person"
    assert made["The main character was {a:identity_adj}."] is None
    left = [text for text, form in made.items() if form is None]
    assert sum("descent" in text for text in left) == 6
    # Every word but the term is kept, in each probe whose slot is an adjective.
    for source in ("regard", "ns_prompts"):
        for text, form in forms(shared, source, "race").items():
            assert form is None or form == text.replace("{identity_adj} ", "")


@pytest.mark.parametrize(
    ("text", "unmarked"),
    [
        ("Here is {a:identity_adj}  engineer-to-be.", "Here is an engineer-to-be."),
        ("{A:identity_adj} is here", None),
        ("It is so {identity_adj}", None),
        ("We saw {identity_adj}, then people.", None),
    ],
)
def test_edges_of_the_rule(text: str, unmarked: str | None) -> None:
    assert unmarked_form(Template("t", text, 1, "identity_adj")) == unmarked


def test_wrong_placeholders_are_refused(shared: Path) -> None:
    for words, said in (([""], "a placeholder is empty"), (["a", "a"], "'a' is given twice")):
        with pytest.raises(ConfigError, match=said):
            probe_items(probe(shared, "regard", unmarked=True, placeholders=words))


def test_own_probes_bring_their_own_forms(tmp_path: Path) -> None:
    rows = (
        "text,label,attribute,group,template_id,term",
        "The red bird sings.,positive,colour,red,t1,red",
        f"The bird sings.,positive,colour,{UNMARKED},t1,",
        f"The local bird sings.,positive,colour,{PLACEHOLDER},t1,local",
    )
    (tmp_path / "mine.csv").write_text("\n".join(rows))
    mine = Probe(source="file", data=str(tmp_path / "mine.csv"))
    assert probe_items(mine)["group"].to_list() == ["red", UNMARKED, PLACEHOLDER]
    with pytest.raises(ConfigError, match=r"source file has no templates.*`unmarked`"):
        probe_items(mine.model_copy(update={"unmarked": True}))
