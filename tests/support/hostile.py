"""Hypothesis strategies for input that a user could give by mistake: a whole one, corrupted."""

from __future__ import annotations

import csv
import gzip
import io
import json
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
    *("formal", "prefix_1", "stereo", "grouped_age", "9" * 40, "n" * 300, "😀" * 70, "n/n", ".."),
    *("no_such", "float64", "int8", "gelu", "T5Config", "GPT2Tokenizer", "OPTForCausalLM"),
)
WORDS: Final = st.sampled_from(_WORDS) | st.text(max_size=12)
#: Numbers at which a count, a size, a level or a rate ends.
_NUMBERS: Final = (
    *(0, -1, 1, 2, 16, 10**6, 2**31 - 1, 2**31, 10**9, 10**12, 2**63 - 1, 2**63, 2**64, 10**30),
    *(10**400, 0.0, -0.0, 0.5, 2.5, 1 - 2**-53, 1e-9, 5e-324, 1e300, float("nan"), float("inf")),
)
_LEAVES: Final = st.none() | st.booleans() | st.sampled_from(_NUMBERS) | WORDS | st.dates()
_VALUES: Final = st.recursive(
    _LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
#: Keys of the sections of a study, and of the configurations of models.
_SECTIONS: Final = [each for each in vars(config).values()
                    if isinstance(each, type) and issubclass(each, BaseModel)]  # fmt: skip
_KEYS: Final = WORDS | st.sampled_from(
    (
        *sorted({key for each in _SECTIONS for key in each.model_fields}),
        *("model_type", "hidden_act", "rope_scaling", "head_dim", "num_key_value_heads", "dtype"),
        *("quantization_config", "auto_map", "id2label", "is_encoder_decoder", "architectures"),
        *("tokenizer_class", "model_max_length", "chat_template", "added_tokens_decoder"),
        *("temperature", "do_sample", "cache_implementation", "truncation", "normalizer"),
    )
)
_DEEP: Final = 3000
_BOMB: Final = "".join(f", &b{n} [{', '.join([f'*b{n - 1}'] * 9)}]" for n in range(1, 12))
#: What may stand for a value in YAML, and is none of text, number, true, false, null, list, map.
_TRICKS: Final = (
    *("2001-01-01", "!!timestamp nope", "!!int abc", "!!bool maybe", "!!binary '%%%'", "!!int"),
    *("!!set {a, b}", "!!omap [a: 1]", "!!python/object/apply:os.getcwd []", "!a 1", "!!str [a]"),
    *("9" * 5000, "0x" + "f" * 6000, "1_0_0", "190:20:30", "-.nan", "1e400", "017", "~", "yes"),
    *("[" * _DEEP, "[" * _DEEP + "]" * _DEEP, "{a: " * _DEEP + "1" + "}" * _DEEP, "=", "{}", "[]"),
    "\n" + "".join(f"{' ' * n}a:\n" for n in range(1, 400)),
    "\n  " + "- " * 1500 + "a",
    *("&a [*a]", "&a {b: *a}", "*none", "{<<: *none}", "{<<: 1}", "{<<: {name: x}}"),
    f"[&b0 [1, 1, 1]{_BOMB}]",
    *("? [a, b]\n  : 1", "{[a]: 1}", "{1: 2}", "{null: 1}", "{2001-01-01: 1}", "{!!int x: 1}"),
    *("a\n---\nb", "%YAML 3.0", "\ta", "'\\", '"\\ud800"', "\x00", "\x85", "a: b: c", "@", "`"),
    *("x" * 1_000_000, "&" + "a" * 5000 + " 1"),
)
#: What may stand for a whole file.
_OTHERS: Final = (
    *(b"", b"\n", b"null", b"[]", b"1", b"{}", b"\xff\xfe", b"\x00", b"PAR1PAR1", b'"a', b"a,a\n1"),
    *(b"[" * 100_000, b'{"a":' * 2000 + b"1" + b"}" * 2000, b"a" * 200_000, b"," * 100_000),
    b'text,label\n"' + b"x\n" * 100_000 + b'",1\n',
    *(b"text,label\nx,1,2,3\n", b"text;label\na;1\n", b"text,label\ra,1\r", b"text\tlabel\na\tb\n"),
)
#: What a column may hold by mistake.
_COLUMNS: Final = (
    *(pl.lit(None, pl.String), pl.lit(None, pl.Null), pl.lit(date(2001, 1, 1)), pl.lit(b"\xff")),
    *(pl.lit(datetime(2001, 1, 1)), pl.lit(1.5), pl.lit(-1), pl.lit(99), pl.lit(True), pl.lit("")),
    *(pl.lit("=1+1"), pl.lit([1.0]), pl.lit([[]]), pl.lit(float("nan")), pl.struct(a=pl.lit(1))),
    *(pl.lit("x" * 200_000), pl.lit(2**63, pl.UInt64), pl.lit(10**20, pl.Int128)),
    *(pl.lit("1.5").cast(pl.Decimal(10, 2)), pl.lit(5).cast(pl.Duration)),
    pl.lit("a").cast(pl.Categorical),
)

Files = dict[str, bytes]
Path = tuple[Any, ...]


@st.composite
def corrupted(draw: st.DrawFn, files: Files, which: tuple[str, ...]) -> Files:
    """Files of which one, whose name begins as one of `which`, is another or gone."""
    names = [name for name in files if name.startswith(which)]
    # Each folder as often, however many files it has.
    folder = draw(st.sampled_from(sorted({name.rpartition("/")[0] for name in names})))
    name = draw(st.sampled_from([each for each in names if each.rpartition("/")[0] == folder]))
    match draw(st.sampled_from(("content",) * 5 + ("bytes",) * 3 + ("other", "gone"))):
        case "content":
            data = draw(_content(name, files[name]))
        case "bytes":
            data = draw(_damaged(files[name]))
        case "other":
            data = draw(st.sampled_from(_OTHERS))
        case _:
            return {each: data for each, data in files.items() if each != name}
    return {**files, name: data}


def _content(name: str, data: bytes) -> st.SearchStrategy[bytes]:
    """A file whose content is changed, and well formed in most cases."""
    match name.rpartition(".")[2]:
        case "gz":
            return _content(name.removesuffix(".gz"), gzip.decompress(data)).map(gzip.compress)
        case "parquet":
            return _tables(pl.read_parquet(data)).map(parquet_bytes)
        case "csv" | "tsv" as suffix:
            mark = "," if suffix == "csv" else "\t"
            table = pl.read_csv(data, separator=mark, infer_schema=False)
            return _tables(table).map(lambda made: csv_bytes(made, separator=mark))
        case "yaml":
            tree = yaml.safe_load(data)
            return _changed(tree).map(dumped) | _with_a_trick(tree)
        case "json":
            return _changed(json.loads(data)).map(_json)
        case "jsonl":
            first, *others = data.splitlines()
            return _changed(json.loads(first)).map(lambda made: b"\n".join([_json(made), *others]))
    return _damaged(data)


def _json(tree: Any) -> bytes:
    return json.dumps(tree, default=str).encode()


def dumped(tree: Any) -> bytes:
    """A tree as YAML, whatever its numbers are."""
    return yaml.safe_dump(tree, sort_keys=False).encode("utf-8", "replace")


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
def _changed(draw: st.DrawFn, tree: Any) -> Any:
    """A tree with up to three values changed, taken out, renamed or added."""
    made = deepcopy(tree)
    for _ in range(draw(st.integers(1, 3))):
        places = _places(made)
        if not places:
            break
        *above, key = draw(st.sampled_from(places))
        node = reduce(getitem, above, made)
        match draw(st.sampled_from(("change", "change", "change", "drop", "rename", "add"))):
            case "change":
                node[key] = draw(_VALUES)
            case "drop":
                del node[key]
            case "rename" if isinstance(node, dict):
                node[draw(_KEYS)] = node.pop(key)
            case _ if isinstance(node, dict):
                node[draw(_KEYS)] = draw(_VALUES)
            case _:
                node.append(draw(_VALUES))
    return made


@st.composite
def _with_a_trick(draw: st.DrawFn, tree: dict[str, Any]) -> bytes:
    """A tree in whose YAML one value or key is a trick."""
    made, (*above, key) = deepcopy(tree), draw(st.sampled_from(_places(tree)))
    reduce(getitem, above, made)[key] = "@@"
    trick = draw(st.sampled_from(_TRICKS))
    value, name = (yaml.safe_dump(each, sort_keys=False) for each in (made, {**tree, "@@": 1}))
    made_of = {
        "value": value.replace("'@@'", trick), "key": name.replace("'@@'", trick),
        "root": trick, "before": f"{trick}\n{name}", "after": f"{name}\n{trick}",
    }  # fmt: skip
    text = made_of[draw(st.sampled_from(("value", "value", *made_of)))]
    coding = draw(st.sampled_from(("utf-8", "utf-8", "utf-8", "utf-16", "utf-8-sig", "latin-1")))
    return text.encode(coding, "replace")


@st.composite
def _damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """A file with up to four places of it overwritten, cut out, doubled or cut off."""
    for _ in range(draw(st.integers(0, 4))):
        first = draw(st.integers(0, len(data)))
        last = min(len(data), first + draw(st.integers(0, 8)))
        texts = WORDS.map(lambda word: word.encode("utf-8", "replace"))
        put = draw(st.binary(max_size=8) | texts | st.just(2 * data[first:last]))
        data = data[:first] + put + draw(st.sampled_from((data[last:],) * 5 + (b"",)))
    return data


@st.composite
def _tables(draw: st.DrawFn, table: pl.DataFrame) -> pl.DataFrame:
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
