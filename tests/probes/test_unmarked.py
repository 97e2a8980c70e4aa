"""Templates without their term: grammar kept, what has no such form named, own items untouched."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from raybias.config import Probe
from raybias.errors import ConfigError
from raybias.probes import probe_forms, probe_items
from raybias.probes.templates import Template, unmarked_forms
from raybias.schema import EXTRA_GROUPS, PLACEHOLDER, UNMARKED

FOLDERS = {"amazon": "amazon_templates", "regard": "regard", "ns_prompts": "ns_prompts"}
#: Templates with an unmarked form, and without; read one by one.
FORMS = {
    ("amazon", "age"): (39, 21),
    ("amazon", "nationality"): (29, 31),
    ("amazon", "disability"): (59, 1),
    ("amazon", "gender"): (35, 25),
    ("amazon", "race"): (45, 15),
    ("amazon", "religion"): (34, 26),
    ("amazon", "sexuality"): (35, 25),
    ("amazon", "names_gender"): (0, 60),
    ("regard", "race"): (101, 0),
    ("ns_prompts", "race"): (870, 18),
}


def probe(shared: Path, source: str, **options: object) -> Probe:
    data = str(shared / "data" / FOLDERS[source])
    return Probe.model_validate({"source": source, "data": data, **options})


@pytest.mark.parametrize("source", FOLDERS)
def test_every_template_has_a_form_or_a_reason(shared: Path, source: str) -> None:
    """The items with these forms are golden values."""
    forms = probe_forms(probe(shared, source)).group_by("attribute")
    found = {(source, attribute): (made, left) for attribute, made, left in
             forms.agg(pl.col("unmarked", "left_out").count()).iter_rows()}  # fmt: skip
    assert found == {place: counts for place, counts in FORMS.items() if place[0] == source}


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
    forms = probe_forms(probe(shared, "amazon", attributes=["race"]))
    made = dict(forms.drop_nulls("unmarked").select("template", "unmarked").rows())
    assert made["{Identity_adj} people are inspiring."] == "People are inspiring."
    assert made["It's a great blog by {a:identity_adj} activist."].endswith("by an activist.")
    assert made["As {a:identity_np}, I feel hopeful."] == "As a person, I feel hopeful."
    assert made["{identity_np}"] == "person"
    left = dict(forms.drop_nulls("left_out").select("template", "left_out").rows())
    alone = [text for text, reason in left.items() if "stands alone" in reason]
    assert len(alone) == 8
    assert "The main character was {a:identity_adj}." in alone
    assert sum("descent" in text for text in left) == 6
    # Every word but the term is kept, in each probe whose slot is an adjective.
    for source in ("regard", "ns_prompts"):
        for text, form in probe_forms(probe(shared, source)).select("template", "unmarked").rows():
            assert form is None or form == text.replace("{identity_adj} ", "")


def test_edges_of_the_rule() -> None:
    for text, unmarked in (
        ("Here is {a:identity_adj}  engineer-to-be.", "Here is an engineer-to-be."),
        ("{A:identity_adj} is here", None),
        ("It is so {identity_adj}", None),
        ("We saw {identity_adj}, then people.", None),
    ):
        forms = unmarked_forms({"x": [Template("t", text, 1, "identity_adj")]})
        assert forms["unmarked"].to_list() == [unmarked]
        assert forms["left_out"].is_null().to_list() == [unmarked is not None]


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
