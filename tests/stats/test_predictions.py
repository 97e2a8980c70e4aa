"""Reading predictions: both formats, every way they can be wrong, templates found again."""

from __future__ import annotations

import gzip
from pathlib import Path

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from raybias import schema
from raybias.config import Probe
from raybias.errors import DataError
from raybias.probes import probe_items
from raybias.stats.counts import count_cells, read_counts
from raybias.stats.foreign import COLUMNS, recovered_templates
from support.stats_data import predictions, read_predictions

TYPES = pl.Schema(schema.PREDICTIONS)
LINE = '0\t2\tgrouped_race\tasian\tThe asian person said "no.\topt\tr0\tSST5\t0.125'


def tsv(folder: Path, *lines: str, header: str = "\t".join(COLUMNS), name: str = "p.tsv") -> Path:
    path = folder / name
    path.write_text("\n".join((header, *lines)) + "\n", "utf-8")
    return path


def test_tsv_with_quote_marks_short_lines_and_line_ends(tmp_path: Path) -> None:
    header = "\t".join((*COLUMNS, "threshold_accuracy", "validation_accuracy", "test_accuracy"))
    path = tsv(tmp_path, LINE, LINE + "\t.7\t.7\t.7", header=header, name="regard_x.tsv")
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    table = read_predictions([path])
    assert table.schema == TYPES
    assert table.drop("item_id").unique().height == 1
    row = table.row(0, named=True)
    assert (row["attribute"], row["group"], row["label"], row["pred"]) == ("race", "asian", 0, 2)
    assert (row["model"], row["dataset"], row["run_id"]) == ("opt", "SST5", "r0")
    assert (row["probe"], row["style"], row["template_id"]) == ("regard", "original", None)


def test_templates_are_found_only_where_they_explain_the_file(tmp_path: Path) -> None:
    lines = [line.replace("said", verb) for line in (LINE, LINE.replace("asian", "white"))
             for verb in ("said", "thought")]  # fmt: skip
    both = read_predictions([tsv(tmp_path, *lines)])
    assert both["template_id"].to_list() == [
        'The {term} person said "no.', 'The {term} person thought "no.',
    ] * 2  # fmt: skip
    assert both["term"].to_list() == ["asian"] * 2 + ["white"] * 2
    for last in ("1" + lines[3][1:], lines[3].replace("person", "one, of whom we heard,")):
        found = read_predictions([tsv(tmp_path, *lines[:3], last)])
        assert found["template_id"].null_count() == 4
    # One sentence of one group shows nothing of what its term is.
    alone = read_predictions([tsv(tmp_path, LINE)])
    assert alone["template_id"].null_count() == alone["term"].null_count() == 1


@pytest.mark.parametrize("name", ["ours.tsv", "ours.tsv.gz"])
def test_the_papers_tsv_is_read_as_it_was_written(tmp_path: Path, name: str) -> None:
    table = predictions().with_columns(
        text=pl.format('Say "{} to {}.', "item_id", "group"), method=pl.lit("published"),
        probe=pl.lit(""), template_id=pl.lit(None, pl.String),
        attribute=pl.col("attribute").replace("colour", "names_gender"),
    )  # fmt: skip
    as_published = table.with_columns(
        y_true="label", y_pred="pred", category="attribute", num_params=pl.lit(0.125)
    ).select(COLUMNS)
    text = as_published.write_csv(separator="\t", quote_style="never").encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
    back = read_predictions([path])
    assert_frame_equal(back.drop("item_id"), table.drop("item_id", "text"))


@pytest.mark.parametrize(
    ("lines", "header", "message"),
    [
        ([], None, "has a header and no predictions"),
        ([LINE.replace("\t2\t", "\t\t", 1)], None, r"row 1: y_pred is not 0, 1 or 2"),
        ([LINE.replace("\tasian\t", "\t\t")], None, r"row 1: group is empty"),
        ([LINE, LINE.rsplit("\t", 3)[0]], None, r"line 3: has 6 fields"),
        ([LINE], "\t".join(COLUMNS).replace("group\t", "grp\t"), "lacks the column group"),
        ([LINE], LINE, "lacks the columns label, group, pred"),
    ],
)
def test_wrong_tsv_names_file_and_line(
    tmp_path: Path, lines: list[str], header: str | None, message: str
) -> None:
    path = tsv(tmp_path, *lines, **({} if header is None else {"header": header}))
    with pytest.raises(DataError, match=message) as caught:
        read_counts([path])
    assert str(caught.value).startswith(str(path))


@pytest.mark.long
@pytest.mark.parametrize("piece_rows", [5, 1_000])
def test_parquet_files_folders_and_a_studys_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece_rows: int
) -> None:
    monkeypatch.setattr("raybias.stats.predictions._PIECE_ROWS", piece_rows)
    table = predictions(runs=2)
    out = tmp_path / "OUT"
    for (run,), part in table.group_by("run_id"):
        for start in range(0, len(part), 7):
            path = out / "predictions" / "made" / str(run) / f"{start:08d}.parquet"
            path.parent.mkdir(parents=True, exist_ok=True)
            part.slice(start, 7).write_parquet(path)
    pl.DataFrame({"x": [1]}).write_parquet(out / "runs.parquet")
    expected = count_cells(table).sort(pl.all())
    for paths in ([out], [out / "predictions"], sorted(out.glob("predictions/**/*.parquet"))):
        assert_frame_equal(read_predictions(paths), table, check_row_order=False, check_exact=True)
        cells = read_counts(paths).cells.cast({pl.Categorical: pl.String})
        assert cells.sort(pl.all()).equals(expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (pl.col("label").replace(1, 7), r"row \d+: label 7 is not 0, 1 or 2"),
        (pl.col("label").replace(1, None), r"row \d+: label is missing"),
        (pl.col("group").replace("c", ""), r"row \d+: group '' is empty"),
        (pl.col("attribute").replace("colour", None), r"row 1: attribute is missing"),
        (pl.col("label").cast(pl.Float64), "label is double, not integer"),
        (pl.col("item_id").replace("0001", "0000"), "item '0000' of run 'm0.s0' .* more than once"),
    ],
)
def test_wrong_parquet_names_file_and_row(tmp_path: Path, change: pl.Expr, message: str) -> None:
    good, bad = tmp_path / "good.parquet", tmp_path / "bad.parquet"
    predictions(models=1, runs=1).with_columns(run_id=pl.lit("other")).write_parquet(good)
    predictions(models=1, runs=1).with_columns(change).write_parquet(bad)
    for read in (read_predictions, read_counts):
        with pytest.raises(DataError, match=message) as caught:
            read([good, bad])
        assert str(bad) in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("label", 2, r"item '0003' of probe 'made' has the label 0 in run 'm0.s0' and 2 in run "),
        ("group", "c", r"has the group 'b' in run 'm0.s0' and 'c' in run 'm0.s2'"),
        ("attribute", "size", r"has the attribute 'colour' in run 'm0.s0' and 'size'"),
        ("template_id", "t5", r"has the template_id 't0' in run 'm0.s0' and 't5'"),
    ],
)
def test_an_item_is_the_same_in_all_runs(
    tmp_path: Path, name: str, value: str | int, message: str
) -> None:
    table = predictions(models=1)
    here = pl.all_horizontal(pl.col("run_id") == "m0.s2", pl.col("item_id") == "0003")
    changed = pl.when(here).then(pl.lit(value)).otherwise(name)
    # Also where the runs are of other models, which may hold other items.
    odd = table.with_columns(changed.cast(TYPES[name]).alias(name), model=pl.col("run_id")).filter(
        (pl.col("run_id") != "m0.s2") | (pl.col("item_id") <= "0007")
    )
    odd.write_parquet(tmp_path / "p.parquet")
    with pytest.raises(DataError, match=message) as caught:
        read_counts([tmp_path / "p.parquet"])
    assert "\n" not in str(caught.value)


def test_what_a_file_does_not_say_of_an_item_differs_from_nothing(tmp_path: Path) -> None:
    table = predictions(models=2, terms=True)
    older = table.filter(model="m1").drop("template_id", "term")
    table.filter(model="m0").write_parquet(tmp_path / "a.parquet")
    older.write_parquet(tmp_path / "b.parquet")
    counts = read_counts([tmp_path / "a.parquet", tmp_path / "b.parquet"])
    assert counts.cells["n"].sum() == table.height


def test_runs_of_other_items_are_refused(tmp_path: Path) -> None:
    table = predictions(models=1)
    items = table["item_id"].n_unique()
    half = table.filter((pl.col("run_id") != "m0.s2") | (pl.col("item_id") < "0005"))
    half.write_parquet(tmp_path / "p.parquet")
    message = f"run m0.s2 holds 5; runs m0.s0, m0.s1 hold {items}; give whole runs"
    with pytest.raises(DataError, match=message):
        read_counts([tmp_path / "p.parquet"])


def test_files_that_are_not_predictions(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.txt").write_text("x")
    (tmp_path / "blank.tsv").write_text("")
    (tmp_path / "half.tsv.gz").write_bytes(gzip.compress(b"y_true\n" * 99)[:20])
    (tmp_path / "broken.parquet").write_bytes(b"PAR1")
    predictions().clear().write_parquet(tmp_path / "none.parquet")
    predictions().drop("pred", "group").write_parquet(tmp_path / "columns.parquet")
    path = tmp_path / "good.parquet"
    predictions().write_parquet(path)
    for names, message in (
        (["missing.tsv"], "is not there"),
        (["empty"], "holds no Parquet, TSV, CSV or JSON Lines"),
        (["a.txt"], "neither .csv, .csv.gz, .jsonl"),
        (["blank.tsv"], "is empty"),
        (["half.tsv.gz"], "not a whole gzip"),
        (["broken.parquet"], "cannot be read as a table"),
        (["none.parquet"], "holds no predictions"),
        (["columns.parquet"], "lacks the columns group, pred"),
        (["good.parquet", "good.parquet"], "is given twice"),
        ([], "no files"),
    ):
        with pytest.raises(DataError, match=message):
            read_counts([tmp_path / name for name in names])
    (tmp_path / "copy.parquet").write_bytes(path.read_bytes())
    with pytest.raises(DataError, match="more than once"):
        read_counts([path, tmp_path / "copy.parquet"])


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
