"""Classes of tables and of files: their names, their numbers and what is measured of them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raybias import schema
from raybias.errors import DataError
from raybias.stats.classes import METADATA_KEY, labels_metadata, labels_of_metadata


@given(st.lists(st.text(min_size=1), min_size=1, max_size=40, unique=True))
def test_names_of_classes_survive_a_files_metadata(names: list[str]) -> None:
    table = pa.schema(schema.PREDICTIONS, metadata=labels_metadata(names)).empty_table()
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    read = pq.read_schema(pa.BufferReader(sink.getvalue()))
    assert labels_of_metadata(read.metadata) == tuple(names)
    assert labels_of_metadata(None) == labels_of_metadata({b"other": b"1"}) == ()


@pytest.mark.parametrize(
    "value", [b"nurse", b"[]", b'["a", "a"]', b'["a", 1]', b'{"a": 1}', b"\xff"]
)
def test_metadata_that_is_no_list_of_names_is_refused(value: bytes) -> None:
    with pytest.raises(DataError, match=r"^f\.parquet: its metadata 'raybias\.labels'"):
        labels_of_metadata({METADATA_KEY: value}, "f.parquet")


@pytest.mark.parametrize(
    "table", [schema.PREDICTIONS, schema.ITEMS, schema.SENTENCES, schema.CELLS]
)
def test_tables_take_a_thousand_classes(table: pa.Schema) -> None:
    kind = table.field("label").type
    assert pa.array([0, 999], kind).to_pylist() == [0, 999]
