"""Every table that is read back, with what its schema does not allow: one line that names it.

Cases are made from `raybias.schema`, so that a new table or column is tried too.
"""

from __future__ import annotations

import ast
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import annotated_types
import polars as pl
import pyarrow as pa
import pytest
import yaml
from typer.testing import CliRunner

from raybias import config, schema
from raybias.cli import app, as_one_line
from raybias.columns import Rule, rule_of
from raybias.errors import DataError, OutputError
from raybias.measures.kind import kinds
from raybias.measures.reading import typed
from raybias.report.page import write_report
from raybias.seal import seal
from raybias.storage import Store
from raybias.table_rules import is_log_probability, read_checked
from support.documents import ROOT
from support.report_outs import make_study, pair_study, write_out, write_pair_out

TABLES = {name: each for name, each in vars(schema).items() if isinstance(each, pa.Schema)}
TABLES["COMPOSITION"] = schema.composition_of(("no", "yes"))


class Case(NamedTuple):
    """A column and what is wrong with it; `values` replace its values, None drops it."""

    table: str
    column: str
    values: pl.Series | None
    said: str


def whole(table: pa.Schema, rows: int = 3) -> pl.DataFrame:
    """Rows that every rule of a table allows."""
    columns = []
    for field, dtype in zip(table, pl.Schema(table).values(), strict=True):
        rule = rule_of(field)
        inner = dtype.inner if isinstance(dtype, pl.List) else dtype
        values: list[Any] = [f"{field.name} {n}" for n in range(rows)]
        if rule.among:
            values = [rule.among[0]] * rows
        elif inner == pl.Boolean:
            values = [True] * rows
        elif inner == pl.Binary:
            values = [bytes(16)] * rows
        elif inner.is_numeric():
            values = [min(1, rule.most)] * rows if rule.most > 0.5 else [-0.5] * rows
        values = [[value] for value in values] if isinstance(dtype, pl.List) else values
        columns.append(pl.Series(field.name, values, dtype, strict=False))
    return pl.DataFrame(columns)


def cases() -> Iterator[Case]:
    """What can be wrong in each column of each table."""
    for name, table in TABLES.items():
        for field, dtype in zip(table, pl.Schema(table).values(), strict=True):
            column, rule, rows = field.name, rule_of(field), whole(table)[field.name]
            yield Case(name, column, None, f"lacks the column {column}")
            if not rule.optional:
                yield Case(name, column, pl.Series(column, [None] * 3, dtype), "is missing")
            if rule.unique:
                yield Case(name, column, rows.gather([0, 0, 0]), "is given twice")
            if rule.inside:
                yield Case(name, column, pl.Series(column, ["/etc/x", "../x", "a"]), "leads out")
            if rule.among:
                yield Case(name, column, pl.Series(column, ["no such"] * 3), "is none of")
            inner = dtype.inner if isinstance(dtype, pl.List) else dtype
            other = pl.Series(column, ["text"] * 3 if inner != pl.String else [1.5] * 3)
            yield Case(name, column, other, "not")
            for value, said in wrong_numbers(inner, rule):
                wrong = [[value]] * 3 if isinstance(dtype, pl.List) else [value] * 3
                yield Case(name, column, pl.Series(column, wrong, dtype), said)


def wrong_numbers(dtype: pl.DataType, rule: Rule) -> Iterator[tuple[float | None, str]]:
    """Values of a column of numbers that its rule does not allow."""
    if not dtype.is_numeric():
        return
    if dtype.is_float():
        yield from ((value, "is not a finite number") for value in (math.nan, math.inf, -math.inf))
    if rule.least > -math.inf:
        yield rule.least - 1, "is below"
    if rule.most < math.inf:
        yield rule.most + 1, "is above"


@pytest.mark.parametrize("name", TABLES)
def test_a_table_as_it_is_written_is_read(name: str, tmp_path: Path) -> None:
    frame = whole(TABLES[name])
    if any(rule_of(field).unique for field in TABLES[name]):
        assert frame.height > 1
    frame.write_parquet(tmp_path / "t.parquet")
    assert read_checked(Store(tmp_path), "t.parquet", TABLES[name]).equals(frame)
    frame.clear().write_parquet(tmp_path / "t.parquet")
    with pytest.raises(DataError, match="holds no rows"):
        read_checked(Store(tmp_path), "t.parquet", TABLES[name])
    assert read_checked(Store(tmp_path), "t.parquet", TABLES[name], may_be_empty=True).is_empty()


@pytest.mark.parametrize("name", TABLES)
def test_what_a_schema_does_not_allow_is_one_line_that_names_the_column(
    name: str, tmp_path: Path
) -> None:
    store, path = Store(tmp_path), tmp_path / "t.parquet"
    own = [case for case in cases() if case.table == name]
    assert {case.column for case in own} == {*TABLES[name].names}
    for case in own:
        changed(whole(TABLES[name]), case).write_parquet(path)
        with pytest.raises(DataError) as caught:
            read_checked(store, "t.parquet", TABLES[name])
        line = str(caught.value)
        assert case.column in line, case
        assert case.said in line, (case, line)


def changed(frame: pl.DataFrame, case: Case) -> pl.DataFrame:
    """A table with one column as a case has it."""
    if case.values is None:
        return frame.drop(case.column)
    return frame.with_columns(case.values)


@pytest.mark.parametrize("name", [name for name in kinds if name != "predictions"])
def test_a_table_of_others_is_held_to_the_same_schema(name: str) -> None:
    table = kinds[name].answers
    frame = whole(table)
    if "style" in frame.columns:
        frame = frame.with_columns(style=pl.lit("original"))
    assert typed(frame, table, "t.csv").height == 3
    (schema_name,) = (each for each, one in TABLES.items() if one is table)
    optional = {field.name for field in table if rule_of(field).optional}
    for case in cases():
        if case.table != schema_name or case.values is None or case.values.dtype == pl.String:
            continue
        # Numbers as text are what a CSV has; an empty cell is a missing value.
        if case.said == "is missing" and case.column in optional:
            continue
        if case.said == "not" and table.field(case.column).type == pa.string():
            continue
        with pytest.raises(DataError, match=case.column):
            typed(changed(frame, case), table, "t.csv")


def test_every_schema_of_the_package_declares_its_columns() -> None:
    for name, table in TABLES.items():
        for field in table:
            assert field.metadata, (name, field.name)
    tree = {path: ast.parse(path.read_text("utf-8")) for path in (ROOT / "raybias").rglob("*.py")}
    for path, module in tree.items():
        calls = [node for node in ast.walk(module) if isinstance(node, ast.Call)]
        called = {ast.unparse(call.func) for call in calls}
        where = path.relative_to(ROOT / "raybias").as_posix()
        assert "pa.schema" not in called or where in MAKE_SCHEMAS, where
        read = {name for name in called if name.rpartition(".")[2] in READERS}
        assert not read or where in READ_PARQUET, (where, read)


#: Modules that make schemas: of declared columns, or of those that a file has.
MAKE_SCHEMAS = {"columns.py", "schema.py", "memory_limits.py"}
#: What reads a Parquet file, and the modules that may: the readers themselves; rows of the
#: package's own data; predictions, in pieces that are checked; and shards that were just computed.
READERS = {"read_table", "read_parquet", "scan_parquet", "ParquetFile", "scan_pyarrow_dataset"}
READ_PARQUET = {
    "storage.py",
    "table_files.py",
    "probes/published/planted.py",
    "probes/design.py",
    "probes/own.py",
    "results.py",
    "runtime/predict/shards.py",
    "stats/predictions.py",
}


@pytest.fixture(scope="module")
def outs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Finished OUTs: `gaps` of predictions, `pairs` of pairs of sentences."""
    folder = tmp_path_factory.mktemp("outs")
    study = make_study()
    write_report(write_out(folder / "gaps", study, templates=4), study)
    asked = pair_study(
        methods=[{"kind": "pair_score", "scores": ["bias_bench"]}],
        pairs=[{"source": "crows_pairs", "data": "crows_pairs"}],
    )
    store = write_pair_out(folder / "pairs", asked)
    store.delete_folder("coreference")
    write_report(store, asked)
    return folder


#: By OUT, file and schema: the commands that read it; `{}` stands for OUT.
READ = {
    ("gaps", "tables/estimates.parquet", "ESTIMATES"): (
        "report {} --to eee", "report {} --to latex",
    ),
    ("pairs", "tables/estimates.parquet", "ESTIMATES"): ("report {} --to eee",),
    ("gaps", "tables/composition.parquet", "COMPOSITION"): ("report {} --to latex",),
    ("gaps", "runs.parquet", "RUNS"): ("report {} --to latex", "compare {} {}"),
    ("gaps", "predictions/*/*.parquet", "PREDICTIONS"): (
        "measure {}", "report {}", "compare {} {}",
    ),
    ("pairs", "pair_scores/*/*.parquet", "PAIR_SCORES"): (
        "measure {}", "report {}", "compare {} {}", "report {} --to lm-eval",
    ),
    ("pairs", "items/*.parquet", "PAIRS"): ("report {} --to lm-eval",),
}  # fmt: skip


@pytest.mark.parametrize("which", READ, ids=lambda which: f"{which[0]} {which[2]}")
def test_commands_refuse_in_one_line_what_was_changed(
    which: tuple[str, str, str], outs: Path, tmp_path: Path
) -> None:
    out, pattern, name = which
    copy = tmp_path / "out"
    shutil.copytree(outs / out, copy)
    path = sorted(copy.glob(pattern))[0]
    frame, table = pl.read_parquet(path), TABLES[name]
    if name == "COMPOSITION":
        table = schema.composition_of(make_study().labels)
    for case in cases_of(table, frame, tmp_path):
        case.write_parquet(path)
        for command in READ[which]:
            words = command.format(*[copy] * command.count("{}")).split()
            if words[0] != "report" or "--to" in words:
                words += ["--out", str(tmp_path / "new")]
            done = CliRunner().invoke(app, words)
            assert done.exit_code, (command, case)
            line = str(as_one_line(done.exception)) if done.exception else ""
            assert "bug of raybias" not in line, (command, line)
            assert path.name in line, (command, line)
            assert not (tmp_path / "new").exists(), command


def cases_of(table: pa.Schema, frame: pl.DataFrame, tmp_path: Path) -> Iterator[pl.DataFrame]:
    """Changes of a file, a kind of fault each, at columns that every command reads."""
    rules = {field.name: rule_of(field) for field in table}
    numbers = [name for name in table.names if frame.schema[name].is_numeric()]
    floats = [name for name in numbers if frame.schema[name].is_float()]
    yield frame.clear()
    yield frame.drop(table.names[0])
    for name in floats[:2]:
        for value in (math.nan, math.inf):
            yield frame.with_columns(pl.lit(value).alias(name))
    for name in [name for name in numbers if rules[name].least > -math.inf][:2]:
        yield frame.with_columns(pl.lit(-1).cast(frame.schema[name]).alias(name))
    for name in numbers[:2]:
        yield frame.with_columns(pl.lit("many").alias(name))
    yield frame.with_columns(pl.lit(None, pl.String).alias(table.names[0]))


def test_an_export_never_writes_into_a_study_and_tells_what_changed(
    outs: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    shutil.copytree(outs / "gaps", out)
    before = sorted(out.rglob("*"))
    for place in (out, out / "tables", out / "new"):
        done = CliRunner().invoke(app, ["report", str(out), "--to", "eee", "--out", str(place)])
        assert "give another --out" in str(done.exception)
    assert sorted(out.rglob("*")) == before
    record = yaml.safe_load((out / "study.yaml").read_text())
    record["command"] = "raybias run s.yaml --api-key sk-hidden --out https://u:pass@host/x"
    (out / "study.yaml").write_text(yaml.safe_dump(record))
    words = ["report", str(out), "--to", "eee", "--out", str(tmp_path / "new")]
    refused = CliRunner().invoke(app, [*words, "--verify"])
    assert "has no seal.json" in str(refused.exception)
    seal(Store(out), {}, ["tables", "predictions"])
    path = sorted(out.glob("predictions/*/*.parquet"))[0]
    pl.read_parquet(path).head(5).write_parquet(path)
    refused = CliRunner().invoke(app, [*words, "--verify"])
    assert "was changed" in str(refused.exception)
    assert not (tmp_path / "new").exists()
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0
    assert f"{path.stem} was changed" in done.output
    (written,) = (tmp_path / "new").glob("*.json")
    text = written.read_text()
    assert "sk-hidden" not in text
    assert "pass@" not in text


def test_nothing_is_written_through_a_link_out_of_a_folder(outs: Path, tmp_path: Path) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    shutil.copytree(outs / "gaps", out)
    shutil.move(out / "tables", other)
    (out / "tables").symlink_to(other)
    before = {path: path.read_bytes() for path in other.iterdir()}
    page = (out / "report.html").read_bytes()
    done = CliRunner().invoke(app, ["report", str(out)])
    assert "is in a folder that is a link to" in str(done.exception)
    assert {path: path.read_bytes() for path in other.iterdir()} == before
    assert (out / "report.html").read_bytes() == page
    store = Store(out)
    with pytest.raises(OutputError, match="a link to"):
        store.delete("tables/estimates.parquet")
    with pytest.raises(OutputError, match="a link to"):
        store.write_text("tables/x", "")
    # A folder that is a link within OUT, and an OUT that is one, are written.
    (out / "inner").symlink_to(out / "cards" if (out / "cards").exists() else out / "items")
    store.write_text("inner/x", "")
    (tmp_path / "link").symlink_to(out)
    Store(tmp_path / "link").write_text("x", "")


@pytest.mark.parametrize(
    ("value", "is_one"),
    [(0.0, True), (-3, True), (1e-4, True), (0.5, False), (math.nan, False), (-math.inf, False),
     (10**400, False), (True, False), ("-1", False), (None, False)],
)  # fmt: skip
def test_what_a_log_probability_is(value: object, *, is_one: bool) -> None:
    assert is_log_probability(value) == is_one


BOUNDS = (annotated_types.Ge, annotated_types.Gt, annotated_types.Le, annotated_types.Lt)


def test_no_field_of_a_study_has_two_upper_bounds() -> None:
    """Pydantic keeps the last of two, whichever was meant."""
    sections = [config.section.Section]
    for one in sections:
        sections += one.__subclasses__()
    for section in sections:
        for name, field in section.model_fields.items():
            bounds = [type(each) for each in field.metadata if isinstance(each, BOUNDS)]
            assert len(bounds) == len({*bounds}), (section.__name__, name)
