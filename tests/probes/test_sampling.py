"""The sample of a probe under a limit: balanced, whole, growing, and the same for any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from hypothesis import given, settings
from hypothesis import strategies as st

from raybias.config import PairProbe
from raybias.probes import base_pairs
from raybias.probes.sampling import sample_items, sample_pairs
from raybias.probes.templates import items_frame
from raybias.schema import PLACEHOLDER, UNMARKED

#: A template: its label, and how many terms each group has on it.
Templates = Sequence[tuple[int, dict[str, int]]]
TEMPLATES = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.dictionaries(st.sampled_from("ABCD"), st.integers(1, 3), min_size=1),
    ),
    min_size=1,
    max_size=12,
)


def made(templates: Templates) -> pl.DataFrame:
    rows = [
        (label, f"colour{number % 2}", group, f"{group}{term} is {number}", f"t{number}", str(term))
        for number, (label, groups) in enumerate(templates)
        for group, terms in groups.items()
        for term in range(terms)
    ]
    named = [(f"i{row}", *content) for row, content in enumerate(rows)]
    return items_frame(named)


def ids(items: pl.DataFrame) -> list[str]:
    return items["item_id"].to_list()


@settings(max_examples=15)
@given(TEMPLATES, st.integers(1, 40), st.integers(0, 40), st.randoms())
def test_a_sample_is_whole_bounded_growing_and_the_same_for_any_order(
    templates: Templates, limit: int, more: int, random: Any
) -> None:
    items = made(templates)
    sample = sample_items(items, limit, source="file")
    assert sample.equals(items.filter(pl.col("item_id").is_in(ids(sample)))), "in their order"
    assert set(ids(sample)) <= set(ids(sample_items(items, limit + more, source="file")))
    assert sample_items(items, items.height, source="file").equals(items)
    order = random.sample(range(items.height), items.height)
    assert set(ids(sample_items(items[order], limit, source="file"))) == set(ids(sample))
    # Every label of every group is there, and whoever has a chosen template is on it.
    for cell in (["attribute", "group", "label"], ["attribute", "group", "template_id"]):
        chosen = items.join(sample, on=["attribute", "template_id"], how="semi")
        there = items if "label" in cell else chosen
        assert set(there.select(cell).iter_rows()) == set(sample.select(cell).iter_rows())
    for name, part in sample.group_by("attribute"):
        of_each = items.filter(attribute=name[0]).unique(["group", "label"]).height
        assert part.height <= limit or part["template_id"].n_unique() <= of_each


@given(st.lists(st.integers(1, 9), min_size=2, max_size=3), st.integers(1, 90), st.integers(1, 3))
def test_labels_and_groups_have_equal_parts_as_far_as_they_go(
    sizes: list[int], limit: int, terms: int
) -> None:
    templates = [
        (label, dict.fromkeys("ABC", terms))
        for label, size in enumerate(sizes)
        for _ in range(2 * size)  # two attributes take turns
    ]
    for _, part in sample_items(made(templates), limit, source="file").group_by("attribute"):
        assert part["group"].value_counts()["count"].n_unique() == 1
        found = part.unique("template_id")["label"].value_counts().rows()
        counts: dict[int, int] = dict(found)
        for label, count in counts.items():
            assert count == sizes[label] or count >= max(counts.values()) - 1
        if len(part) > part.unique(["template_id", "group"]).height:
            assert counts == dict(enumerate(sizes)), "further terms when templates are used up"


def test_items_without_templates_are_balanced_over_groups_and_labels() -> None:
    items = made([(label, {group: 1}) for label in range(3) for group in "ABCD" for _ in range(20)])
    items = items.with_columns(attribute=pl.lit("colour"), template_id=pl.col("item_id"))
    for limit, each in ((1, {1}), (12, {1}), (24, {2}), (30, {2, 3})):
        sample = sample_items(items, limit, source="file")
        cells = Counter(sample.select("group", "label").iter_rows())
        assert (len(cells), set(cells.values())) == (12, each)
    # Their ids are numbers of rows, which another order of the file changes.
    again = items.reverse().with_columns(item_id=items["item_id"], template_id=items["item_id"])
    texts = [set(sample_items(each, 30, source="file")["text"]) for each in (items, again)]
    assert texts[0] == texts[1]


def test_extra_groups_come_beside_their_template_and_are_not_counted() -> None:
    items = made([(n % 3, {"A": 1, "B": 1}) for n in range(24)])
    extra = items.unique("template_id", maintain_order=True).with_columns(
        item_id=pl.col("item_id") + "x",
        group=pl.when(pl.col("label") == 1).then(pl.lit(UNMARKED)).otherwise(pl.lit(PLACEHOLDER)),
    )
    with_extra = sample_items(pl.concat([extra, items]), 12, source="file")
    chosen = sample_items(items, 12, source="file")
    own = with_extra.filter(~pl.col("group").is_in([UNMARKED, PLACEHOLDER]))
    assert own.equals(chosen)
    beside = with_extra.filter(pl.col("group").is_in([UNMARKED, PLACEHOLDER]))
    assert sorted(beside["template_id"]) == sorted(chosen["template_id"].unique())


def test_pairs_are_sampled_whole_within_their_kind(shared: Path) -> None:
    for source, kind in (("crows_pairs", "bias_type"), ("winobias", "wino_type")):
        pairs = base_pairs(PairProbe(source=source, data=str(shared / "data" / source)))
        small, large = (sample_pairs(pairs, n, kind=kind, source=source) for n in (7, 30))
        assert set(small["pair_id"]) <= set(large["pair_id"])
        assert set(small[kind]) == set(pairs[kind])
        again = sample_pairs(pairs.reverse(), 7, kind=kind, source=source)
        assert again.reverse().equals(small)
        assert not small.equals(pairs.filter(pl.int_range(pl.len()).over(kind) < 7))
        sizes = set(small[kind].value_counts()["count"])
        assert sizes == ({6} if "condition" in pairs.columns else {7})
        if "condition" in pairs.columns:
            assert small["condition"].value_counts()["count"].n_unique() == 1
            assert sample_pairs(pairs, 1, kind=kind, source=source).height == 4
