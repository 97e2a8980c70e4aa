"""Write OUT/evidence: a page for each group with all of its sentences."""

from __future__ import annotations

import polars as pl

from raybias.report.evidence import evidence_pages
from raybias.report.rendering import rendered
from raybias.storage import Store


def write_evidence(store: Store, sentences: pl.DataFrame) -> None:
    """Write a page for each group: its sentences, and the labels that each classifier gave them.

    Parameters
    ----------
    sentences: of `read_sentences`.

    Raises
    ------
    OutputError: the store cannot be written.
    """
    for name, title, shown in evidence_pages(sentences):
        store.write_text(name, rendered("evidence.html.j2", {"title": title, "shown": shown}))
