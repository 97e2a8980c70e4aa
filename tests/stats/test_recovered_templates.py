"""Templates and terms of published sentences: the probes' own are found again."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from raybias.config import Probe
from raybias.probes import probe_items
from raybias.stats.paper_tsv import recovered_templates


@pytest.mark.long
@pytest.mark.parametrize(
    ("source", "folder", "attributes", "templates"),
    [
        ("amazon", "amazon_templates", ["age", "disability", "race", "sexuality"], 60),
        ("regard", "regard", ["race"], 101),
    ],
)
def test_the_probes_templates_are_found_again_from_their_sentences(
    shared: Path, source: str, folder: str, attributes: list[str], templates: int
) -> None:
    probe = Probe(source=source, data=str(shared / "data" / folder), attributes=tuple(attributes))
    items = probe_items(probe)
    found = recovered_templates(items.select("attribute", "group", "label", "text"))
    both = items.with_columns(again=found["template_id"], word=found["term"])
    for attribute in attributes:
        part = both.filter(attribute=attribute)
        assert part["again"].null_count() == 0
        assert part["template_id"].n_unique() == templates
        # Some templates stand there with an adjective and with a noun, which are two here.
        pairs = part.select("template_id", "again").n_unique()
        assert templates <= pairs <= 1.2 * templates
        assert part["again"].n_unique() >= pairs - 1
        if attribute == "disability":  # "with ADHD", "person with ADHD": no words of their own.
            assert part["word"].null_count() == part.height
        else:
            assert part["word"].equals(part["term"].str.to_lowercase())


def test_other_sentences_have_no_templates() -> None:
    texts = ["He was kind.", "She laughed a lot.", "They slept.", "An old friend came."]
    sentences = pl.DataFrame(
        {"attribute": "x", "group": ["a", "b", "a", "b"], "label": 1, "text": texts}
    )
    found = recovered_templates(sentences)
    assert found["template_id"].null_count() == found["term"].null_count() == 4
