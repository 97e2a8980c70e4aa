"""The one page with pairs: alone, beside gaps, escaped, and what it warns of."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import polars as pl
import pyarrow.parquet as pq
import pytest

from raybias import schema
from raybias.cli import main
from raybias.errors import OutputError
from raybias.report import write_report
from raybias.storage import Store
from support.pages import files_of, page_of
from support.pair_data import pair_scores
from support.pair_outs import PAIRS, pair_study, write_pair_out
from support.report_outs import make_study, write_out


def text_of(store: Store) -> str:
    return " ".join(page_of(store).text.split())


@pytest.mark.long
def test_pairs_alone_make_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = write_pair_out(tmp_path, pair_study())
    with pytest.raises(SystemExit) as stop:
        main(["report", str(tmp_path)])
    assert not stop.value.code
    assert f"report: {tmp_path}/report.html" in capsys.readouterr().out
    page, text = page_of(store), text_of(store)
    assert len(page.ids) == len(set(page.ids))
    assert all(link.startswith("#") for link in page.links)
    for said in ("styles", "Does it hold under another style?", "What style does",
                 "Pairs that were read", "Backbones", "raybias run styles.yaml"):  # fmt: skip
        assert said in text
    for unsaid in ("The gaps", "A gap", "Chance", "label words", "prompt token", "Before you"):
        assert unsaid not in text
    assert re.search(r"question answer raises preference by \d+\.\d points \[\+", text)
    assert (
        "Averaged over styles, 2 of 3 scores differ from no bias if only pairs are redrawn" in text
    )
    assert "pairs and styles are redrawn" in text
    assert "are drawn one by one" in text
    assert (
        "e-0" not in text[text.index("What models prefer") : text.index("What it was measured on")]
    )
    assert [path.name for path in tmp_path.glob("*.html")] == ["report.html"]
    before = files_of(tmp_path)
    write_report(store, pair_study())
    assert files_of(tmp_path) == before


@pytest.mark.long
def test_gaps_and_pairs_share_the_page(tmp_path: Path) -> None:
    study = make_study(
        methods=[{"kind": "soft_prompt"}, {"kind": "pair_score"}, {"kind": "coreference"}],
        pairs=pair_study().model_dump(mode="json")["pairs"],
    )
    store = write_out(tmp_path, study)
    write_pair_out(tmp_path, study)
    gaps = write_report(store, study)
    assert gaps.height == 12
    page, text = page_of(store), text_of(store)
    assert len(page.ids) == len(set(page.ids))
    top = text[: text.index("What was measured")]
    assert "1 of 12 gaps is significant." in top
    assert "of a style survive Benjamini-Hochberg" in top
    assert text.index("The gaps") < text.index("What style does")
    assert [path.name for path in tmp_path.glob("*.html")] == ["report.html"]


@pytest.mark.long
def test_hostile_names_in_pairs_are_escaped(tmp_path: Path) -> None:
    kind = '<script>alert("x")</script>'
    store = write_pair_out(tmp_path, pair_study())
    scores = pair_scores(types=(kind, "{{ 7*7 }}", "<img src=x>/../.."))
    table = scores.to_arrow().cast(schema.PAIR_SCORES)
    store.write_table("pair_scores/a/00000000.parquet", table)
    write_report(store, pair_study())
    page = page_of(store)
    assert "img" not in page.tags
    assert store.read_text("report.html").count("<script") == 1
    assert kind in page.text
    assert "{{ 7*7 }}" in page.text


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
    text = text_of(store)
    assert "prefix_1 left 1 pair of crows_pairs as they were" in text
    assert "toy-1M by bias_bench lacks 30 pairs of crows_pairs under prefix_1" in text


def test_an_out_without_scores_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pair_out(tmp_path, pair_study())
    for folder in ("pair_scores", "coreference"):
        shutil.rmtree(tmp_path / folder)
    with pytest.raises(SystemExit) as stop:
        main(["report", str(tmp_path)])
    assert stop.value.code == 2
    said = capsys.readouterr().err
    assert "holds no scores of pairs" in said
    assert said.count("\n") == 1
    assert not (tmp_path / "tables").exists()


def test_score_files_do_not_replace_the_page_of_a_study(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_pair_out(tmp_path, pair_study())
    before = files_of(tmp_path)
    with pytest.raises(SystemExit) as stop:
        main(["pairs", str(tmp_path / "pair_scores"), "--out", str(tmp_path)])
    assert stop.value.code == 2
    assert "holds a study" in capsys.readouterr().err
    assert files_of(tmp_path) == before


@pytest.mark.long
def test_lists_of_scores_are_drawn_and_size_is_told(tmp_path: Path) -> None:
    models = ("a", "b", "c", "toy-1M")
    study = pair_study(models, backbones=[{"id": name} for name in models])
    counted = dict(zip(models, (10**6, 10**8, 3 * 10**9, 10**10), strict=True))
    store = write_pair_out(tmp_path, study, parameters=counted)
    write_report(store, study)
    text = text_of(store)
    for said in ("Lists of sentence scores", "have |t| above 1.96", "of 1M to 10B parameters",
                 "4 models in perfect order have p 0.083", "10,000,000,000"):  # fmt: skip
        assert said in text
    size = pl.read_parquet(tmp_path / "tables/size.parquet")
    # Coreference has one model.
    assert size.select("probe", "n_models").unique().rows() == [("crows_pairs", 4)]
    assert size["largest"].unique().to_list() == [1e10]
    for kind in ("sides", "styles"):
        svg = (tmp_path / f"figures/t_values.{kind}.bias_bench.crows_pairs.svg").read_text()
        assert all(f"{model} age" in svg for model in models)


@pytest.mark.long
def test_few_models_have_no_trend(tmp_path: Path) -> None:
    store = write_pair_out(tmp_path, pair_study(), parameters={"toy-1M": 260_000})
    write_report(store, pair_study())
    assert "1 model here whose number of parameters is known, and no trend" in text_of(store)
    assert not (tmp_path / "tables/size.csv").exists()
    text = store.read_text("study.yaml").replace("toy-1M: 260000", "toy-1M: many")
    store.write_text("study.yaml", text)
    with pytest.raises(OutputError, match="parameters of 'toy-1M' are 'many'"):
        write_report(store, pair_study())


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
    with pytest.raises(SystemExit) as stop:
        main(["report", str(tmp_path)])
    assert not stop.value.code
    printed, text = capsys.readouterr().out, text_of(store)
    table = pl.read_csv(tmp_path / "tables/bias_scores.csv")
    row = table.filter(score="bias_bench", bias_type="avg_weighted").row(0, named=True)
    said = (
        f"prefers the more stereotypical sentence in {row['value']:.1f}% of 90 pairs "
        f"[{row['low']:.1f}, {row['high']:.1f}]: "
        f"{'differs' if row['survives'] else 'not shown to differ'} from 50%."
    )
    kinds = {"age", "gender", "religion", "type1", "type2", "avg_weighted", "avg_unweighted"}
    assert set(table["bias_type"]) == kinds
    for shown in (text, printed):
        assert said in shown
        assert "1 of 3 scores differs from no bias." in shown
        assert "points more often where the answer fits the stereotype" in shown
        assert "another sample of pairs like these" in shown
        assert all(kind in shown for kind in ("age", "religion", "type1"))
    page = page_of(store)
    assert len(page.ids) == len(set(page.ids))
    assert "Do models prefer the stereotype?" in text
    assert "style" not in text[: text.index("What models prefer")].replace("styles", "")
    for unsaid in ("Does it hold under another style?", "What style does", "A style here"):
        assert unsaid not in text
    assert (tmp_path / "figures/bias_scores.bias_bench.crows_pairs.svg").exists()
    assert not (tmp_path / "tables/style_effects.csv").exists()


@pytest.mark.long
def test_clusters_are_said_beside_the_numbers_that_draw_them(tmp_path: Path) -> None:
    store = plain_out(tmp_path)
    alike = pair_scores(pairs=PAIRS, styles=["original"], clusters=5)
    store.write_table("pair_scores/a/00000000.parquet", alike.to_arrow())
    write_report(store, pair_study(styles={"names": ["original"]}))
    table = pl.read_csv(tmp_path / "tables/bias_scores.csv").filter(probe="crows_pairs")
    assert table["clusters"].to_list() == [6] * 5
    preferences = pl.read_csv(tmp_path / "tables/tables8_9_scores.csv")
    whole = preferences.filter(bias_type="avg_weighted", part="all").row(0, named=True)
    assert whole["of_untied"] == pytest.approx(100 * whole["k"] / (whole["n"] - whole["ties"]))
    assert preferences["low"].null_count() == 0
    text = text_of(store)
    assert "The 90 pairs of crows_pairs come in 6 clusters that are alike" in text
    assert "Preference for the more stereotypical sentence, by bias type" in text
    assert "pairs of winobias are drawn one by one" in text
    # An OUT of before has no such column.
    store.write_table("pair_scores/a/00000000.parquet", alike.drop("cluster").to_arrow())
    write_report(store, pair_study(styles={"names": ["original"]}))
    assert "pairs of crows_pairs are drawn one by one" in text_of(store)


@pytest.mark.long
def test_a_studys_statistics_judge_its_pairs(tmp_path: Path) -> None:
    strict = plain_out(tmp_path / "strict")
    write_report(strict, pair_study(styles={"names": ["original"]}))
    rules = {"adjust": "none", "bootstrap_draws": 150, "bootstrap_seed": 7, "level": 0.8}
    other = plain_out(tmp_path / "other", statistics=rules)
    write_report(other, pair_study(styles={"names": ["original"]}, statistics=rules))
    one, two = (
        pl.read_parquet(store.path("tables/bias_scores.parquet")) for store in (strict, other)
    )
    assert two["survives"].to_list() == two["significant"].to_list()
    narrower = (two["high"] - two["low"]) < (one["high"] - one["low"])
    assert narrower.drop_nulls().all()
    held = pq.read_schema(tmp_path / "other/tables/bias_scores.parquet").metadata
    named = {"adjust": "none", "bootstrap_draws": "150", "bootstrap_seed": "7", "level": "0.8"}
    assert {key: held[key.encode()].decode() for key in named} == named
    text = text_of(other)
    assert "80% interval" in text
    assert "No correction for many tests is made." in text
    assert "Benjamini-Hochberg over" not in text.partition("How to make it again")[0]
