"""Classes of tables and of files: their names, their numbers and what is measured of them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raybias import schema
from raybias.errors import ConfigError, DataError
from raybias.stats.classes import (
    METADATA_KEY,
    codes_of,
    labels_metadata,
    labels_of_metadata,
    positive_of,
)


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


def test_a_class_is_named_as_it_is_or_in_other_case_or_by_its_number() -> None:
    names = ("Joy", "joy", "1", "fear")
    words = ("Joy", "joy", "FEAR", "1", "0", 3, 0.0)
    chosen = [codes_of(positive_of(word), names) for word in words]
    assert chosen == [{0}, {1}, {3}, {2}, {0}, {3}, {0}]
    assert codes_of(positive_of(["fear", "Joy"]), names) == {0, 3}
    for wrong in ("rage", "7", list(names)):
        with pytest.raises(ConfigError, match="is no label of these files; choose from Joy, joy"):
            codes_of(positive_of(wrong), names)


@pytest.mark.parametrize(
    "table", [schema.PREDICTIONS, schema.ITEMS, schema.SENTENCES, schema.CELLS]
)
def test_tables_take_a_thousand_classes(table: pa.Schema) -> None:
    kind = table.field("label").type
    assert pa.array([0, 999], kind).to_pylist() == [0, 999]
