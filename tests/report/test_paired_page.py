"""The one page with pairs: alone, beside gaps, escaped, and what it warns of."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import polars as pl
import pytest

import raybias
from raybias.measures.prediction_rows import gap_rows
from raybias.measures.reading import read
from raybias.report.page import write_report
from raybias.storage import Store
from support.commands import exit_code
from support.pages import files_in, page_of
from support.pair_data import pair_scores
from support.report_outs import PAIRS, make_study, pair_study, write_out, write_pair_out


@pytest.mark.long
def test_pairs_alone_make_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = write_pair_out(tmp_path, pair_study())
    assert exit_code("report", tmp_path) == 0
    assert f"report: {tmp_path}/report.html" in capsys.readouterr().out
    page = page_of(store)
    text = page.text
    assert all(link.startswith("#") for link in page.links)
    for said in ("Preference for the more stereotypical sentence", "effects of styles over all",
                 "names both", "Backbones", "raybias run study.yaml"):  # fmt: skip
        assert said in text
    for unsaid in ("The gaps", "A gap", "Chance", "label words", "prompt token", "Before you"):
        assert unsaid not in text
    assert "Over all pairs: 1 of 3 are significant if pairs are redrawn" in text
    assert "are significant if pairs, styles are redrawn" in text
    assert re.search(
        r"Styles are shown to move \S+ of \d+ scores, and in \S+ the conclusion is shown", text
    )
    assert not re.search(r"\de-0", text[: text.index("What it was measured on")])
    assert {path.name for path in tmp_path.glob("*.html")} == {"report.html", "statement.html"}
    before = files_in(tmp_path)
    write_report(store, pair_study())
    assert files_in(tmp_path) == before


@pytest.mark.long
def test_gaps_and_pairs_share_the_page(tmp_path: Path) -> None:
    study = make_study(
        methods=[{"kind": "soft_prompt"}, {"kind": "pair_score"}, {"kind": "coreference"}],
        pairs=pair_study().model_dump(mode="json")["pairs"],
    )
    store = write_out(tmp_path, study)
    write_pair_out(tmp_path, study)
    gaps = gap_rows(write_report(store, study), "widest")
    assert gaps.height == 12
    text = page_of(store).text
    top = text[: text.index("What was measured")]
    assert "Significant if only seeds are redrawn: 1 of 12 gaps;" in top
    assert "Effects of styles over all pairs, in points:" in top
    assert {path.name for path in tmp_path.glob("*.html")} == {"report.html", "statement.html"}


@pytest.mark.long
def test_unread_and_unstyled_pairs_are_told(tmp_path: Path) -> None:
    study = pair_study()
    store = write_pair_out(tmp_path, study)
    items = pl.from_arrow(store.read_table("items/crows_pairs.parquet"))
    assert isinstance(items, pl.DataFrame)
    first = (pl.col("style") == "prefix_1") & (pl.col("pair_id") == "0-000")
    store.write_table("items/crows_pairs.parquet", items.with_columns(kept=first).to_arrow())
    scores = pair_scores(pairs=PAIRS).filter(
        ~((pl.col("style") == "prefix_1") & (pl.col("bias_type") == "age"))
    )
    store.write_table("pair_scores/a/00000000.parquet", scores.to_arrow())
    write_report(store, study)
    text = page_of(store).text
    assert "prefix_1 left 1 pair of crows_pairs as they were" in text
    assert "toy-1M by bias_bench lacks 30 answers to crows_pairs" in text


def test_wrong_input_is_one_line_and_changes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = write_pair_out(tmp_path, pair_study())
    before = files_in(tmp_path)
    assert exit_code("measure", tmp_path / "pair_scores", "--out", tmp_path) == 2
    assert "holds a study" in capsys.readouterr().err
    assert files_in(tmp_path) == before
    for folder in ("pair_scores", "coreference"):
        shutil.rmtree(tmp_path / folder)
    record = store.read_text("study.yaml")
    for more, problem in (
        ("", "holds no scores of pairs"),
        ("parameters: {toy-1M: many}", "parameters.toy-1M is 'many'"),
    ):
        store.write_text("study.yaml", record + more)
        assert exit_code("report", tmp_path) == 2
        said = capsys.readouterr().err
        assert problem in said
        assert said.count("\n") == 1
    assert not (tmp_path / "tables").exists()


@pytest.mark.long
def test_lists_of_scores_are_drawn_and_size_is_told(tmp_path: Path) -> None:
    models = ("a", "b", "c", "toy-1M")
    study = pair_study(models, backbones=[{"id": name} for name in models])
    counted = dict(zip(models, (10**6, 10**8, 3 * 10**9, 10**10), strict=True))
    store = write_pair_out(tmp_path, study, parameters=counted)
    write_report(store, study)
    text = page_of(store).text
    for said in ("t tests of lists of sentence scores", "trends with model size",
                 "10,000,000,000"):  # fmt: skip
        assert said in text
    found = pl.read_parquet(tmp_path / "tables/estimates.parquet")
    size = found.filter(model="all")
    # Coreference has one model.
    assert size.select("probe", "n").unique().rows() == [("crows_pairs", 4)]
    assert set(size["score"]) == {"slope", "rank_correlation"}
    (svg,) = (tmp_path / "figures").glob("pairs.t.tests*.svg")
    assert "the clearest 48 of" in svg.read_text()


def plain_out(folder: Path, **changes: object) -> Store:
    """A finished OUT of the original style alone."""
    study = pair_study(styles={"names": ["original"]}, **changes)
    store = write_pair_out(folder, study)
    for name in ("pair_scores", "coreference"):
        file = f"{name}/a/00000000.parquet"
        rows = pl.DataFrame(store.read_table(file)).filter(style="original")
        store.write_table(file, rows.to_arrow())
    items = pl.DataFrame(store.read_table("items/crows_pairs.parquet")).filter(style="original")
    store.write_table("items/crows_pairs.parquet", items.to_arrow())
    return store


def test_the_original_style_alone_has_a_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = plain_out(tmp_path)
    assert exit_code("report", tmp_path) == 0
    printed, text = capsys.readouterr().out, page_of(store).text
    table = pl.read_csv(tmp_path / "tables/estimates.csv")
    whole = table.filter(statistic="score", condition="", scope="pairs")
    row = whole.filter(method="bias_bench", attribute="avg_weighted").row(0, named=True)
    kinds = {"age", "gender", "religion", "type1", "type2", "avg_weighted", "avg_unweighted"}
    assert kinds <= set(table["attribute"])
    said = f"{row['value']:.1f} [{row['low']:.1f}, {row['high']:.1f}]"
    for shown in (text, printed):
        assert said in shown
        assert "Over all pairs: none of 1 are significant if pairs are redrawn." in shown
        assert "as if pairs were redrawn; the model is this one" in " ".join(shown.split())
    for unsaid in ("effects of styles", "Styles move"):
        assert unsaid not in text
    assert (tmp_path / "figures/pairs.over.all.pairs.svg").exists()
    assert table.filter(statistic="difference").is_empty()


def test_scores_of_pairs_come_back_from_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pair_out(tmp_path / "out", pair_study())
    files = raybias.export(tmp_path / "out", "lm-eval", tmp_path / "samples")
    assert files
    # Mean probabilities are written as log-likelihoods.
    scored = read([tmp_path / "out"], "pairs")["pairs"]
    before = scored.with_columns(pl.col("score_more", "score_less").log())
    for file in files:
        again = read([tmp_path / "samples" / file])["pairs"]
        same = before.filter(model=again["model"][0]).join(
            again, on=["pair_id", "bias_type", "direction"]
        )
        close = (pl.col(side) - pl.col(f"{side}_right") for side in ("score_more", "score_less"))
        assert same.filter(*(each.abs() < 1e-9 for each in close)).height >= again.height
    assert (
        exit_code("report", tmp_path / "none", "--to", "lm-eval", "--out", tmp_path / "nowhere")
        == 2
    )
    assert "has no answers to questions with three options" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()
