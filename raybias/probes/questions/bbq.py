"""Read BBQ's published questions (Parrish et al. 2022, github nyu-mll/BBQ `data/*.jsonl`)."""

from __future__ import annotations

import polars as pl

from raybias.errors import DataError
from raybias.formats.bbq import bbq_line, bbq_metadata, target_of
from raybias.probes.readers import polars_schema
from raybias.probes.registries import question_probe
from raybias.schema import OPTION_ITEMS
from raybias.storage import Store, split_uri
from raybias.table_files import read_frame, unzipped

_ENDINGS = (".jsonl", ".jsonl.gz")
_METADATA = "additional_metadata.csv"


@question_probe(
    "bbq",
    about="BBQ: questions with options in ambiguous and disambiguated contexts, eleven categories",
    data="its data folder (or one of its files), with additional_metadata.csv where it is at hand",
    schema=OPTION_ITEMS,
)
def bbq(data: str) -> pl.DataFrame:
    """Read the questions (schema.OPTION_ITEMS) of a file, or of all in a folder by name.

    The target is where additional_metadata.csv has it, beside the files, else the option whose
    `answer_info` names a stereotyped group; null where neither says so.

    Raises
    ------
    DataError: no such file, a malformed line, or a question that is there twice.
    """
    store = Store(data)
    if store.is_file():
        store, name = split_uri(data)
        names = [name]
    else:
        names = [each for each in store.files() if each.endswith(_ENDINGS)]
    if not names:
        raise DataError("holds no .jsonl files", where=data, cure="give BBQ's folder `data`")
    targets = None
    if store.exists(_METADATA):
        targets = bbq_metadata(read_frame(store, _METADATA), store.uri_of(_METADATA))
    rows = []
    for name in names:
        text = unzipped(store.read_bytes(name), name, store.uri_of(name))
        for number, each in enumerate(text.split(b"\n"), start=1):
            if not each.strip():
                continue
            where = f"{store.uri_of(name)}, line {number}"
            line = bbq_line(each, where)
            unknown = line.unknown(where)
            target = (
                target_of(line, unknown, where, strict=False)
                if targets is None
                else targets.get((line.category, line.question_index, line.example_id))
            )
            options = [line.ans0, line.ans1, line.ans2]
            rows.append(
                (line.category, line.question_index, line.example_id, line.context_condition,
                 line.question_polarity, line.context, line.question, options, line.label,
                 unknown, target)
            )  # fmt: skip
    frame = pl.DataFrame(rows, polars_schema(OPTION_ITEMS), orient="row")
    # An example_id is one of its category.
    frame = frame.with_columns(item_id=pl.col("category") + "/" + pl.col("item_id"))
    if (twice := frame.filter(pl.col("item_id").is_duplicated())).height:
        raise DataError(
            f"has question {twice['item_id'][0]} more than once", where=data,
            cure="give one file, or a folder whose files are of different categories",
        )  # fmt: skip
    return frame
