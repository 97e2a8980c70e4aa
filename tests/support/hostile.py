"""Hypothesis strategies for input that a user could give by mistake: trees, tables, bytes, OUTs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from copy import deepcopy
from datetime import date, datetime
from functools import reduce
from operator import getitem
from typing import Any, Final

import polars as pl
import yaml
from hypothesis import strategies as st
from pydantic import BaseModel

from raybias import config

#: Text that means something somewhere, and text that has broken readers before.
_WORDS: Final = (
    *("", " ", "0", "1", "2", "-1", "3", "nan", "inf", "1e400", "True", "null", "original"),
    *("negative", "neutral", "positive", "age", "planted", "file", "hub", "none", "auto", "m"),
    *("a\tb", 'a"b', "a,b", "a\nb", "a\rb", "\ufeff", "\x00", "\u2028", "é", "e\u0301", "😀"),
    *("../up", "/", "s3://bucket/x", "https://127.0.0.1:1/x", "~", "{text}", "{0}", "%s", "[a]"),
    *("formal", "prefix_1", "stereo", "grouped_age", "9" * 40, "a" * 300),
)
WORDS: Final = st.sampled_from(_WORDS) | st.text(max_size=12)
_NUMBERS: Final = st.integers() | st.floats() | st.sampled_from((0, 1, -1, 2, 3, 2**63, 10**30))
_LEAVES: Final = st.none() | st.booleans() | _NUMBERS | WORDS | st.dates()
_VALUES: Final = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)


def _keys() -> list[str]:
    """Every key that some section of a study has."""
    sections = [each for each in vars(config).values() if isinstance(each, type)]
    return sorted({key for each in sections if issubclass(each, BaseModel)
                   for key in each.model_fields})  # fmt: skip


_KEYS: Final = st.sampled_from(_keys()) | WORDS


_DEEP: Final = 3000
_BOMB: Final = "".join(f", &b{n} [{', '.join([f'*b{n - 1}'] * 9)}]" for n in range(1, 12))
#: What may stand for a value in YAML, and is none of text, number, true, false, null, list, map.
YAML_TRICKS: Final = (
    *("2001-01-01", "2001-12-14t21:59:43.10-05:00", "!!timestamp nope", "!!int abc", "!!int 0x"),
    *("!!bool maybe", "!!float x", "!!int", "!!null x", "!!binary '%%%'", "!!set {a, b}"),
    *("!!omap [a: 1]", "!!pairs [a: 1]", "!!python/object/apply:os.getcwd []", "!a 1"),
    *("!!str [a]", "!!map [a]", "!!seq {a: 1}", "!<tag:yaml.org,2002:int> 12x", "!!merge x", "="),
    *("9" * 5000, "0x" + "f" * 6000, "0b" + "1" * 20000, "1_0_0", "190:20:30", "1:2.5", "0o17"),
    *(".inf", "-.nan", "1e400", "-.inf", "1e-400", "017", "+1", "~", "yes", "No", "on", "{}", "[]"),
    *("[" * _DEEP, "[" * _DEEP + "]" * _DEEP, "{a: " * _DEEP + "1" + "}" * _DEEP),
    "\n" + "".join(f"{' ' * n}a:\n" for n in range(1, 400)),
    "\n  " + "- " * 1500 + "a",
    "&a [*a]", "&a {b: *a}", "*none", "{<<: *none}", "{<<: 1}", "{<<: [1]}", "{<<: {name: x}}",
    f"[&b0 [1, 1, 1]{_BOMB}]", f"{{x: &b0 {{a: 1}}{_BOMB.replace('&b', 'y: &b')}}}"[:200],
    "? [a, b]\n  : 1", "{[a]: 1}", "{? {a: 1} : 2}", "{1: 2}", "{null: 1}", "{true: 1}",
    "{2001-01-01: 1}", "{1.5: x}", "{!!int x: 1}", "a\n---\nb", "%YAML 3.0", "\ta", "'\\", '"\\x"',
    '"\\ud800"', "\x00", "\x85", "\u2028", "\ufffe", "a: b: c", "|\n  a\n b", "@", "`", "- - -",
    "x" * 1_000_000, "&" + "a" * 5000 + " 1", "!" + "a" * 5000 + " 1",
)  # fmt: skip
#: Numbers at which a count, a size, a level or a rate ends.
NUMBERS: Final = (
    *(0, -1, 1, 2, 16, 10**6, 2**31 - 1, 2**31, 10**9, 10**12, 2**63 - 1, 2**63, 2**64, 10**30),
    *(10**400, 0.0, -0.0, 1.0, 2.5, 0.5, 0.999999999, 1 - 2**-53, 1e-9, 5e-324, 1e300, -1e300),
    *(float("nan"), float("inf"), True, "1", "1e3", None, [], {}, [1, [2]], {"a": {"b": 1}}),
)
LONG: Final = (
    *("n" * 300, "é" * 130, "😀" * 70, "n" * 255, "n" * 201, "n." * 150 + "n", "n/" * 3, "..", "."),
    *("con", "-", "%41", "a%2Fb", "a b", "n?x=1", "n#x", "a\nb", "a\x00", "\ud800", "é"),
)
#: What a field of a JSON file of a model may hold by mistake.
_JSON: Final = st.sampled_from(
    (
        *(None, 0, -1, 1, 2, 7, 10**6, 10**12, 2**63, 10**30, -(10**12), 0.5, 1e308, 1e-320),
        *(float("nan"), float("inf"), "", "no_such", "32", "1e3", "float64", "gelu", "BERT"),
        *("auto", "int8", [], [1], [0, "a"], {}, {"a": None}, [[]], True, False, "x" * 5000),
        *("T5Config", "GPT2Tokenizer", "PreTrainedTokenizerFast", "BertTokenizer", "</s>"),
        *({"rope_type": "no_such"}, {"content": 1}, {"__type": "AddedToken"}, ["OPTForCausalLM"]),
    )
)  # fmt: skip


Path = tuple[Any, ...]


def _places(tree: Any, path: Path = ()) -> list[Path]:
    """Every path to a value of a tree."""
    inner = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return [
        found
        for key, each in inner
        for found in [
            (*path, key),
            *(_places(each, (*path, key)) if isinstance(each, dict | list) else ()),
        ]
    ]


@st.composite
def changed(
    draw: st.DrawFn,
    tree: Any,
    values: st.SearchStrategy[Any] = _VALUES,
    where: Callable[[Any, Any], bool] = lambda key, value: True,
    how: tuple[str, ...] = ("change", "change", "drop", "rename", "add"),
    keys: st.SearchStrategy[Any] = _KEYS,
) -> Any:
    """A tree with up to three values changed, taken out, renamed or added.

    `where` says of a key and its value whether it may be changed.
    """
    made = deepcopy(tree)
    for _ in range(draw(st.integers(1, 3))):
        places = [p for p in _places(made) if where(p[-1], reduce(getitem, p, made))]
        if not places:
            break
        *above, key = draw(st.sampled_from(places))
        node = reduce(getitem, above, made)
        match draw(st.sampled_from(how)):
            case "change":
                node[key] = draw(values)
            case "drop":
                del node[key]
            case "rename" if isinstance(node, dict):
                node[draw(keys)] = node.pop(key)
            case _ if isinstance(node, dict):
                node[draw(keys)] = draw(values)
            case _:
                node.append(draw(values))
    return made


def numbers_in(tree: Any) -> st.SearchStrategy[Any]:
    """A tree in which numbers, or what has none, are at the end of what there is."""

    def numeric(key: Any, value: Any) -> bool:
        return value is None or isinstance(value, int | float)

    return changed(tree, st.sampled_from(NUMBERS), numeric, ("change",))


def names_in(tree: Any) -> st.SearchStrategy[Any]:
    """A tree with texts that are long, or no name."""
    names = ("name", "id", "source", "data", "kind")
    return changed(tree, st.sampled_from(LONG), lambda key, _: key in names, ("change",))


@st.composite
def yaml_files(draw: st.DrawFn, tree: dict[str, Any]) -> bytes:
    """A study in whose YAML one value or key is a trick."""
    made, (*above, key) = deepcopy(tree), draw(st.sampled_from(_places(tree)))
    reduce(getitem, above, made)[key] = "@@"
    trick = draw(st.sampled_from(YAML_TRICKS))
    text = yaml.safe_dump(made, sort_keys=False)
    match draw(st.sampled_from(("value", "value", "value", "key", "root", "before", "after"))):
        case "value":
            text = text.replace("'@@'", trick)
        case "key":
            text = yaml.safe_dump({**tree, "@@": 1}, sort_keys=False).replace("'@@'", trick)
        case "root":
            text = trick
        case "before":
            text = f"{trick}\n{text}"
        case _:
            text = f"{text}\n{trick}"
    coding = draw(st.sampled_from(("utf-8", "utf-8", "utf-8", "utf-16", "utf-8-sig", "latin-1")))
    return text.encode(coding, "replace")


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """A file with up to four places of it flipped, overwritten, cut out, doubled or cut off."""
    made = bytearray(data)
    for _ in range(draw(st.integers(0, 4))):
        first = draw(st.integers(0, len(made)))
        last = min(len(made), first + draw(st.integers(0, 8)))
        match draw(st.sampled_from(("flip", "write", "text", "cut", "double", "end"))):
            case "flip" if first < len(made):
                made[first] ^= 1 << draw(st.integers(0, 7))
            case "write":
                made[first:last] = draw(st.binary(max_size=8))
            case "text":
                made[first:last] = draw(WORDS).encode("utf-8", "replace")
            case "cut":
                del made[first:last]
            case "double":
                made[first:first] = made[first:last]
            case "end":
                del made[first:]
    return bytes(made)


@st.composite
def json_files(draw: st.DrawFn, data: bytes, keys: tuple[str, ...] = ()) -> bytes:
    """A JSON file with up to three values of another kind, dropped, added, or damaged."""
    match draw(st.sampled_from(("values",) * 8 + ("damaged", "deep", "digits", "other"))):
        case "damaged":
            return draw(damaged(data))
        case "deep":
            return draw(st.sampled_from((b"[" * 100_000, b'{"a":' * 2000 + b"1" + b"}" * 2000)))
        case "digits":
            return data.replace(b"32", b"9" * 5000, 1)
        case "other":
            return draw(st.sampled_from((b"", b"null", b"[]", b"1", b'"x"', b"\xff\xfe", b"{}")))
    how = ("change",) * 6 + ("drop", "add")
    tree = changed(json.loads(data), _JSON, how=how, keys=st.sampled_from(keys or ("more",)))
    return json.dumps(draw(tree)).encode("utf-8")


#: Keys that configurations may have beside those of the model that is mutated.
MODEL_KEYS: Final = {
    "config.json": (
        *("model_type", "hidden_act", "rope_scaling", "rope_parameters", "head_dim", "num_labels"),
        *("num_key_value_heads", "quantization_config", "auto_map", "id2label", "dtype"),
        *("is_decoder", "tie_word_embeddings", "text_config", "layer_types", "pruned_heads"),
        *("attn_implementation", "is_encoder_decoder", "architectures", "initializer_range"),
    ),
    "tokenizer_config.json": (
        *("tokenizer_class", "model_max_length", "eos_token", "pad_token", "chat_template"),
        *("added_tokens_decoder", "auto_map", "additional_special_tokens", "padding_side"),
        *("extra_special_tokens", "model_input_names", "tokenizer_file", "add_bos_token"),
    ),
    "generation_config.json": (
        *("max_length", "temperature", "top_k", "eos_token_id", "do_sample", "num_beams"),
        *("cache_implementation", "suppress_tokens", "pad_token_id", "watermarking_config"),
    ),
    "tokenizer.json": ("version", "model", "truncation", "padding", "normalizer", "decoder"),
}  # fmt: skip


@st.composite
def model_files(draw: st.DrawFn, folder: dict[str, bytes]) -> dict[str, bytes | None]:
    """One file of a model's folder changed, or absent (None)."""
    name = draw(st.sampled_from(("config.json",) * 4 + tuple(folder)))
    if draw(st.integers(0, 19)) == 0:
        return {**folder, name: None}
    if not name.endswith(".json"):
        return {**folder, name: draw(damaged(folder[name]))}
    return {**folder, name: draw(json_files(folder[name], MODEL_KEYS.get(name, ())))}


#: What a column may hold by mistake.
_COLUMNS: Final = (
    *(pl.lit(None, pl.String), pl.lit(None, pl.Null), pl.lit(date(2001, 1, 1)), pl.lit(b"\xff")),
    *(pl.lit(datetime(2001, 1, 1)), pl.lit(1.5), pl.lit(-1), pl.lit(99), pl.lit(True), pl.lit("")),
    *(pl.lit("\ud800".encode("utf-8", "replace").decode()), pl.lit("=1+1"), pl.lit([1.0])),
    *(
        pl.lit(float("nan")),
        pl.struct(a=pl.lit(1)),
        pl.lit("x" * 200_000),
        pl.lit(2**63, pl.UInt64),
    ),
    *(pl.lit(10**20, pl.Int128), pl.lit("1.5").cast(pl.Decimal(10, 2)), pl.lit([[]])),
    *(pl.lit(5).cast(pl.Duration), pl.lit("a").cast(pl.Categorical)),
)


@st.composite
def tables(draw: st.DrawFn, table: pl.DataFrame) -> pl.DataFrame:
    """A table with up to three columns, cells or rows changed, taken out, doubled or renamed."""
    made = table
    for _ in range(draw(st.integers(0, 3))):
        if not made.width:
            break
        name = draw(st.sampled_from(made.columns))
        match draw(st.sampled_from(("cell", "cell", "null", "column", "drop", "rename", "rows"))):
            case "cell" if made.height and not made.schema[name].is_nested():
                cells: list[Any] = made[name].to_list()
                value = draw(st.none() | st.sampled_from(cells) | WORDS)
                cells[draw(st.integers(0, made.height - 1))] = value
                made = made.with_columns(pl.Series(name, cells, made.schema[name], strict=False))
            case "null":
                row = draw(st.integers(0, max(0, made.height - 1)))
                null = pl.when(pl.int_range(pl.len()) != row).then(pl.col(name))
                made = made.with_columns(null.alias(name))
            case "column":
                made = made.with_columns(draw(st.sampled_from(_COLUMNS)).alias(name))
            case "drop":
                made = made.drop(name)
            case "rename":
                other = draw(st.sampled_from(table.columns) | WORDS)
                made = made if other in made.columns else made.rename({name: other})
            case _:
                first, count = draw(st.integers(0, made.height)), draw(st.integers(0, made.height))
                more = made[first : first + count]
                made = draw(st.sampled_from((pl.concat([made, more]), more, made.clear())))
    return made


_CSV: Final = (
    b"", b"\n", b"\n\n\n", b",", b'"', b'"a', b'a"b,c', b"\xff\xfe", b"\x00", b"a,a\n1,2\n",
    b"text,label\n", b"text,label\n" + b"x" * 200_000 + b",1\n", b"text,label\nx,1,2,3,4\n",
    b'text,label\n"' + b"x\n" * 100_000 + b'",1\n', b"a" * 200_000, b"," * 100_000,
    b"text\tlabel\na\tb\n", b"text;label\na;1\n", b"text,label\r\na,1\r\n", b"text,label\ra,1\r",
)  # fmt: skip


def table_files(table: pl.DataFrame) -> st.SearchStrategy[tuple[str, bytes]]:
    """A table as Parquet, CSV or TSV, changed before or after it was written, or none at all."""
    header = ",".join(table.columns).encode()
    rows = st.sampled_from((b"", b"\n", b"," * 300 + b"\n", b"x" * 140_000 + b"\n", b'"\n'))
    made = tables(table)
    return st.one_of(
        made.map(lambda t: ("x.parquet", parquet_bytes(t))),
        made.map(lambda t: ("x.csv", csv_bytes(t))),
        made.map(lambda t: ("x.tsv", csv_bytes(t, separator="\t"))),
        damaged(csv_bytes(table)).map(lambda data: ("x.csv", data)),
        damaged(csv_bytes(table, separator="\t")).map(lambda data: ("x.tsv", data)),
        damaged(parquet_bytes(table)).map(lambda data: ("x.parquet", data)),
        st.tuples(st.sampled_from(("x.csv", "x.parquet")), st.sampled_from(_CSV)),
        rows.map(lambda tail: ("x.csv", header + b"\n" + tail)),
    )


@st.composite
def outs(draw: st.DrawFn, files: dict[str, bytes]) -> dict[str, bytes | None]:
    """One file of a finished OUT changed as bytes, as a table or as a tree, or absent (None)."""
    names = [name for name in files if not name.startswith("tables/")]
    # Every kind of file as often.
    kinds = sorted({name.partition("/")[0] for name in names})
    kind = draw(st.sampled_from(kinds))
    name = draw(st.sampled_from([each for each in names if each.partition("/")[0] == kind]))
    data = files[name]
    how = draw(st.sampled_from(("table", "table", "table", "damaged", "short", "garbage", "gone")))
    if how == "gone":
        return {**files, name: None}
    if how == "garbage":
        return {**files, name: draw(st.sampled_from((b"", b"PAR1", b"PAR1PAR1", b"garbage" * 9)))}
    if how == "short":
        return {**files, name: data[: draw(st.integers(0, len(data)))]}
    if how == "damaged":
        return {**files, name: draw(damaged(data))}
    if name.endswith(".parquet"):
        return {**files, name: parquet_bytes(draw(tables(pl.read_parquet(data))))}
    if name.endswith(".json"):
        return {**files, name: draw(json_files(data))}
    tree = yaml.safe_load(data)
    return {
        **files,
        name: draw(yaml_files(tree) | numbers_in(tree).map(dumped) | names_in(tree).map(dumped)),
    }


def dumped(tree: Any) -> bytes:
    """A tree as YAML, whatever its numbers are."""
    return yaml.safe_dump(tree, sort_keys=False).encode("utf-8", "replace")


#: How predictions of one study contradict themselves: (what, change of the second run's rows).
CONTRADICTIONS: Final[dict[str, Any]] = {
    "label": lambda run: run.with_columns(label=(pl.col("label") + 1) % 3),
    "one label": lambda run: run.with_columns(
        label=pl.when(pl.int_range(pl.len()) == 0)
        .then((pl.col("label") + 1) % 3)
        .otherwise("label")
    ),
    "group": lambda run: run.with_columns(group=pl.col("group").reverse()),
    "attribute": lambda run: run.with_columns(attribute=pl.lit("other")),
    "template": lambda run: run.with_columns(template_id=pl.col("template_id") + "x"),
    "half": lambda run: run.head(run.height // 2),
    "half of each": lambda run: run.gather_every(2),
    "no group": lambda run: run.filter(pl.col("group") != "a"),
    "one item less": lambda run: run.head(run.height - 1),
    "twice": lambda run: pl.concat([run, run.head(1)]),
    "other ids": lambda run: run.with_columns(item_id=pl.col("item_id") + "x"),
}


def csv_bytes(table: pl.DataFrame, *, separator: str = ",") -> bytes:
    """A table as a spreadsheet program writes it."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, delimiter=separator)
    writer.writerow(table.columns)
    writer.writerows(table.rows())
    return text.getvalue().encode("utf-8", "replace")


def parquet_bytes(table: pl.DataFrame) -> bytes:
    """A table as a Parquet file."""
    data = io.BytesIO()
    table.write_parquet(data)
    return data.getvalue()
