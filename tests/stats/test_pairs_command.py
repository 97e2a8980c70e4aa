"""`raybias pairs`: Zhao2025's printed tables, score files, and what is refused."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from raybias.cli import main
from support.pair_data import answers, pair_scores


def run(*arguments: object) -> int:
    """The command line's exit code."""
    with pytest.raises(SystemExit) as caught:
        main(["pairs", *map(str, arguments)])
    return int(caught.value.code or 0)


@pytest.mark.long
def test_the_printed_tables_judged_by_themselves(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(shared / "paper_tables", "--size", "GPT-2=124M", "--out", tmp_path) == 0
    output = capsys.readouterr().out
    checks = pl.read_csv(tmp_path / "published_checks.csv")
    assert list(zip(checks["table"], checks["holds"], checks["of"], strict=True)) == [
        ("Tables 10-17", 576, 576),
        ("Table 3", 95, 96),
        ("Tables 8 and 9", 24, 25),
        ("Tables 8 and 9", 44, 47),
        ("Table 2", 63, 64),
        ("Table 2", 27, 64),
        ("Table 2", 32, 64),
        ("Tables 6 and 7", 13, 15),
    ]
    for exception in (
        "GPT-2 original type1: printed 4.03, is 4.00",
        "OPT-6.7B prefix1: printed 67.31, is 67.64",
        "OPT-2.7B formal: printed -6.33 not bold, z -3.59",
        "informal_stereo and formal_anti",
    ):
        assert f"  not {exception}\n" in output
    detail = pl.read_csv(tmp_path / "published_tables10_17.csv")
    assert (detail.height, detail.filter(pl.col("signed") < -1e-9).height) == (576, 39)
    assert pl.read_csv(tmp_path / "published_table3.csv").height == 96
    assert pl.read_csv(tmp_path / "published_tables8_9.csv").height == 72
    sizes = pl.read_csv(tmp_path / "published_size.csv")
    assert sizes["n_models"].unique().to_list() == [8]
    printed = pl.read_csv(tmp_path / "published_tables6_7.csv")
    assert printed.height == 13 * 9 * 8
    for kind in ("sides", "styles"):
        svg = (tmp_path / f"figures/t_values.{kind}.published.crows_pairs.svg").read_text()
        assert "Mistral-7B race-color" in svg
    assert not (tmp_path / "report.html").exists()


@pytest.mark.long
def test_score_files_become_tables_and_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = tmp_path / "in"
    files.mkdir()
    scores = pair_scores()
    scores.filter(bias_type="age").write_parquet(files / "a.parquet")
    # A CSV of the columns that are needed, numbers as text, a tie as an empty cell.
    scores.filter(pl.col("bias_type") != "age").write_csv(files / "b.csv")
    answers().write_csv(files / "c.csv")
    (files / "notes.csv").write_text("a,b\n1,2\n")
    for profile in ("paper", "strict"):
        out = tmp_path / profile
        assert run(files, "--profile", profile, "--scale", "log", "--out", out) == 0
        output = capsys.readouterr().out
        assert "effects of styles, over all pairs, in points" in output
        assert f"{'paired' if profile == 'strict' else 'independent'} t tests" in output
        assert {path.name for path in out.iterdir()} == {
            "figures", "report.html",
            *(
                f"{name}.{suffix}"
                for suffix in ("csv", "md", "parquet")
                for name in (
                    "bias_scores", "table2_summary", "tables8_9_scores", "tables6_7_t_values",
                    "table3_winobias", "tables10_17_winobias", "style_effects", "stability",
                    "variance", "style_scopes",
                )
            ),
        }  # fmt: skip
        assert {path.name for path in (out / "figures").iterdir()} == {
            "style_scopes.bias_bench.crows_pairs.svg",
            "style_scopes.exact.winobias.svg",
            "style_scopes.contains.winobias.svg",
            "bias_scores.bias_bench.crows_pairs.svg",
            "bias_scores.exact.winobias.svg",
            "bias_scores.contains.winobias.svg",
            "style_effects.toy-1M.bias_bench.crows_pairs.svg",
            "style_effects.toy-1M.exact.winobias.svg",
            "style_effects.toy-1M.contains.winobias.svg",
            "t_values.sides.bias_bench.crows_pairs.svg",
            "t_values.styles.bias_bench.crows_pairs.svg",
        }
        page = (out / "report.html").read_text()
        assert "Does it hold under another style?" in page
        assert page.count("<figure") == 13
        assert ("for independent samples" in page) == (profile == "paper")
    table2 = pl.read_csv(tmp_path / "paper" / "table2_summary.csv")
    assert set(table2["statistic"]) == {"score", "MIN", "MAX", "lowest", "highest", "AVG_delta"}
    table8 = pl.read_csv(tmp_path / "paper" / "tables8_9_scores.csv")
    for row in table2.filter(statistic="MAX").iter_rows(named=True):
        deltas = table8.filter(
            ~pl.col("bias_type").str.starts_with("avg"), part="all", style=row["style"]
        )["delta"]
        assert abs(row["value"]) == pytest.approx(deltas.abs().max())
    marks = table2.filter(statistic="AVG_delta").select("bias_type", "marked")
    assert marks["marked"].null_count() == 0
    strict = pl.read_csv(tmp_path / "strict" / "table2_summary.csv")
    assert strict.filter(statistic="AVG_delta", bias_type="avg_unweighted")["marked"].null_count()


SCORES = pair_scores(pairs=2)
ONE = pl.col("pair_id") == "1-001"


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (SCORES.drop("direction"), "lacks the column direction; pair scores need"),
        (answers().drop("condition", "exact"), "lacks the columns condition, exact; coreference"),
        (
            SCORES.with_columns(style=pl.when(ONE).then(pl.lit("shouted")).otherwise("style")),
            "row 10: style 'shouted' is not known; styles are original, formal",
        ),
        (
            SCORES.with_columns(direction=pl.when(ONE).then(pl.lit("up")).otherwise("direction")),
            "row 10: direction 'up' is not known; directions are stereo, antistereo",
        ),
        (SCORES.with_columns(preference=pl.lit(2)), "preference 2 is not 0, 1 or none"),
        (SCORES.with_columns(preference=pl.lit("yes")), "preference 'yes' is no number"),
        (SCORES.with_columns(model=pl.lit(None, pl.String)), "row 1: model is missing"),
        (pl.concat([SCORES, SCORES.tail(1)]), "under 'question_answer' is given more than once"),
        (SCORES.filter(pl.col("style") != "original"), "has the style 'prefix_1' but not 'orig"),
        (
            SCORES.filter(~(ONE & (pl.col("style") == "original"))),
            "pair '1-001' of 'toy-1M' is there under 'prefix_1' but not under 'original'",
        ),
        (
            SCORES.with_columns(
                bias_type=pl.when(ONE & (pl.col("style") == "prefix_1"))
                .then(pl.lit("age"))
                .otherwise("bias_type")
            ),
            "pair '1-001' has different bias types",
        ),
        (
            SCORES.with_columns(cluster=pl.when(ONE).then(pl.col("style")).otherwise(None)),
            "pair '1-001' has different clusters",
        ),
        (SCORES.head(0), "holds no rows"),
    ],
)
def test_bad_scores_are_one_line_and_leave_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], frame: pl.DataFrame, message: str
) -> None:
    for suffix, write in (("csv", frame.write_csv), ("parquet", frame.write_parquet)):
        file = tmp_path / f"scores.{suffix}"
        write(file)
        out = tmp_path / "out"
        assert run(file, "--out", out) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert len(captured.err.splitlines()) == 1
        assert message in captured.err
        assert not out.exists()


def test_bad_files_and_options_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, broken, text = (tmp_path / name for name in ("p.parquet", "b.parquet", "t.txt"))
    SCORES.write_parquet(good)
    broken.write_bytes(b"no parquet")
    text.write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty.csv").write_text("")
    for arguments, message in (
        ([tmp_path / "none.csv"], "is not there"),
        ([text], "is neither .csv, .csv.gz, .parquet, .jsonl nor .jsonl.gz"),
        ([broken], "cannot be read"),
        ([tmp_path / "empty.csv"], "cannot be read"),
        ([tmp_path / "empty"], "no file holds scores of pairs or answers"),
        ([good, good], "is given more than once"),
        ([good, "--size", "GPT-2"], "is not model=parameters"),
        ([good, "--size", "GPT-2=-1M"], "is not model=parameters"),
        ([good, "--size", "GPT-2=124M"], "names 'GPT-2', which is in no file; models are toy-1M"),
    ):
        assert run(*arguments) == 2
        error = capsys.readouterr().err
        assert len(error.splitlines()) == 1
        assert message in error
