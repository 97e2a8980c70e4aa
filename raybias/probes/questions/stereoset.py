"""Read StereoSet's published triples (Nadeem et al. 2021, `dev.json`)."""

from __future__ import annotations

import polars as pl

from raybias.errors import DataError
from raybias.formats.stereoset import stereoset_triples
from raybias.probes.readers import polars_schema
from raybias.probes.registries import question_probe
from raybias.schema import TRIPLES
from raybias.storage import split_uri
from raybias.table_files import unzipped


@question_probe(
    "stereoset",
    about="StereoSet: stereotype, its opposite and an unrelated sentence; four domains, two tasks",
    data="its dev.json, or a part of it, plain or gzipped",
    schema=TRIPLES,
)
def stereoset(data: str) -> pl.DataFrame:
    """Read the triples (schema.TRIPLES), in their order.

    Raises
    ------
    DataError: not such a file, or a sentence without text.
    """
    store, name = split_uri(data)
    text = unzipped(store.read_bytes(name), name, data)
    rows = []
    for triple in stereoset_triples(text, data):
        said = [sentence.sentence for sentence in triple.sentences]
        if not all(map(str.strip, said)):
            raise DataError(f"triple {triple.item_id!r} has a sentence without text", where=data)
        rows.append(
            (triple.domain, triple.task, triple.term, triple.item_id, triple.context, *said)
        )
    return pl.DataFrame(rows, polars_schema(TRIPLES), orient="row")
