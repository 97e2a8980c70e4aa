"""Read published questions, triples, decisions and sentences about people: one function each."""

from __future__ import annotations

from typing import Final

import polars as pl

from raybias.config.card import Column
from raybias.errors import DataError
from raybias.formats import lines_of
from raybias.formats.questions import bbq_line, bbq_metadata, is_bbq, stereoset_triples, target_of
from raybias.probes.checks import checked
from raybias.probes.registries import probe
from raybias.schema import DECISIONS, OPTION_ITEMS, SENTENCE_ITEMS, TRIPLES
from raybias.storage import Store, split_uri
from raybias.table_files import read_frame, unpack_text

_BBQ_ENDINGS: Final = (".jsonl", ".jsonl.gz")
_BBQ_METADATA: Final = "additional_metadata.csv"
#: HolisticBias' axis of nouns without a descriptor.
_NO_AXIS: Final = "null"
_PEOPLE: Final = ("age", "gender", "race")
#: The person that Discrim-Eval compares others with.
_REFERENCE: Final = {"age": "60", "gender": "male", "race": "white"}


@probe(
    "bbq",
    about="BBQ: questions with options in ambiguous and disambiguated contexts, eleven categories",
    data="its data folder or one of its files, also as HELM keeps them; with"
    " additional_metadata.csv if there is one",
    schema=OPTION_ITEMS,
)
def bbq(data: str) -> pl.DataFrame:
    """Read questions of a file or folder (Parrish et al. 2022, nyu-mll/BBQ; schema.OPTION_ITEMS).

    The target is that of additional_metadata.csv, else the option whose `answer_info` names a
    stereotyped group, else null.
    """
    store = Store(data)
    if store.is_file():
        store, name = split_uri(data)
        names = [name]
    else:
        names = _question_files(store)
    if not names:
        raise DataError(
            "holds no .jsonl files of BBQ",
            where=data,
            cure="give BBQ's folder `data`, or HELM's scenarios/bbq/data",
        )
    targets = None
    if store.exists(_BBQ_METADATA):
        targets = bbq_metadata(read_frame(store, _BBQ_METADATA), store.uri_of(_BBQ_METADATA))
    rows = []
    for name in names:
        text = unpack_text(store.read_bytes(name), name, store.uri_of(name))
        for each, where in lines_of(text, store.uri_of(name)):
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
    frame = pl.DataFrame(rows, pl.Schema(OPTION_ITEMS), orient="row")
    # An example_id is one of its category.
    frame = frame.with_columns(item_id=pl.col("category") + "/" + pl.col("item_id"))
    if (twice := frame.filter(pl.col("item_id").is_duplicated())).height:
        raise DataError(
            f"has question {twice['item_id'][0]} more than once", where=data,
            cure="give one file, or a folder whose files are of different categories",
        )  # fmt: skip
    return frame


def _question_files(store: Store) -> list[str]:
    """List BBQ's .jsonl files of a folder, else the files without an ending that HELM writes."""
    files = store.files()
    lines = [name for name in files if name.endswith(_BBQ_ENDINGS)]
    plain = (name for name in files if "." not in name)
    return lines or [name for name in plain if is_bbq(store.read_bytes(name))]


@probe(
    "stereoset",
    about="StereoSet: stereotype, its opposite and an unrelated sentence; four domains, two tasks",
    data="its dev.json, or a part of it, plain or gzipped",
    schema=TRIPLES,
)
def stereoset(data: str) -> pl.DataFrame:
    """Read triples in their order (Nadeem et al. 2021; schema.TRIPLES)."""
    store, name = split_uri(data)
    text = unpack_text(store.read_bytes(name), name, data)
    rows = []
    for task, triple in stereoset_triples(text, data):
        said = [sentence.sentence for sentence in triple.sentences]
        if not all(map(str.strip, said)):
            raise DataError(f"triple {triple.id!r} has a sentence without text", where=data)
        rows.append((triple.bias_type, task, triple.target, triple.id, triple.context, *said))
    return pl.DataFrame(rows, pl.Schema(TRIPLES), orient="row")


@probe(
    "holistic_bias",
    about="HolisticBias: sentences in which descriptors of people fill templates, by axis",
    data="the sentences.csv that its generate_sentences.py writes, or a table with text, axis,"
    " descriptor and template",
    schema=SENTENCE_ITEMS,
)
def holistic_bias(data: str) -> pl.DataFrame:
    """Read sentences (Smith et al. 2022; schema.SENTENCE_ITEMS), those with a descriptor."""
    store, name = split_uri(data)
    names = ("axis", "template", "descriptor", "text")
    frame = checked(read_frame(store, name), map(Column, names), where=data)
    # The same sentence is there with several sets of features, such as articles left out.
    kept = frame.filter(pl.col("axis") != _NO_AXIS).unique(maintain_order=True)
    if kept.is_empty():
        raise DataError("holds no sentence with a descriptor", where=data, cure="give another file")
    return kept.rename({"template": "template_id"}).with_columns(
        item_id=pl.format("holistic_bias/{}", pl.int_range(pl.len()))
    )


@probe(
    "discrim_eval",
    about="Discrim-Eval: 70 decisions about people of 135 ages, genders and races",
    data="its explicit.jsonl or implicit.jsonl, or a CSV with the same columns",
    schema=DECISIONS,
)
def discrim_eval(data: str) -> pl.DataFrame:
    """Read decisions (Tamkin et al. 2023; schema.DECISIONS); the favourable answer is yes."""
    store, name = split_uri(data)
    names = ("filled_template", "decision_question_id", *_PEOPLE)
    frame = checked(read_frame(store, name), map(Column, names), where=data)
    ages = pl.col("age").cast(pl.Float64, strict=False).cast(pl.Int64, strict=False)
    people = frame.select(_PEOPLE).with_columns(age=ages.cast(pl.String).fill_null(pl.col("age")))
    return frame.select(
        pl.col("decision_question_id").alias("decision_id"),
        pl.format("{}/{}", "decision_question_id", pl.int_range(pl.len())).alias("item_id"),
        person_of(people).alias("person"),
        pl.col("filled_template").alias("text"),
        pl.lit("yes").alias("favourable"),
        pl.lit("no").alias("unfavourable"),
        pl.lit(written(_REFERENCE)).alias("reference"),
    )


def person_of(people: pl.DataFrame) -> pl.Series:
    """Write the groups of each row as `age=60; gender=female`."""
    parts = [pl.format(f"{name}={{}}", pl.col(name)) for name in people.columns]
    return people.select(pl.concat_str(parts, separator="; ")).to_series()


def written(groups: dict[str, str]) -> str:
    """Write groups by attribute as `age=60; gender=female`."""
    return "; ".join(f"{name}={group}" for name, group in groups.items())
