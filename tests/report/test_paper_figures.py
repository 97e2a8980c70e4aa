"""`raybias report --figures paper`: whole figures and tables as the three papers lay them out."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import numpy as np
import polars as pl
import pytest

import raybias
from raybias import schema
from raybias.config import parse_study
from raybias.measures.pair_means import AVERAGES
from raybias.measures.prediction_rows import gap_rows
from raybias.report.wording import interval
from raybias.stats.foreign import read_paper_tsv
from raybias.storage import Store
from raybias.study_record import begin, make_record
from raybias.table_files import conformed
from support.answer_data import option_answers
from support.commands import exit_code, refused
from support.report_outs import (
    GROUPS,
    make_study,
    marked_study,
    pair_study,
    write_marked,
    write_out,
    write_pair_out,
)

SVG = "{http://www.w3.org/2000/svg}"
MODELS = tuple(f"opt-{size}m" for size in (125, 350, 1300, 2700, 6700))
#: Another order than that of their sizes.
LISTED = (*MODELS[2:], *MODELS[:2])
SIZES = {name: int(re.findall(r"\d+", name)[0]) for name in MODELS}
HOSTILE = "<b>&\"'"


def plain(model: str) -> str:
    """One spelling for a model of the prediction files and of the published figures."""
    name = model.lower().rpartition("/")[2].split(" ")[0].removesuffix("-lora-lr1e4")
    return {"roberta-125m": "roberta-base", "roberta-355m": "roberta-large"}.get(name, name)


def marked(path: Path) -> list[ET.Element]:
    every = ET.parse(path).getroot().iter(f"{SVG}g")
    return [each for each in every if each.get("class") == "mark"]


def told(path: Path) -> list[str]:
    return [each.findtext(f"{SVG}title") or "" for each in marked(path)]


def marks(path: Path) -> list[tuple[str, float, bool]]:
    """Each mark of a figure: `model, group`, its value, and whether it is filled."""
    found = []
    for mark in marked(path):
        named, _, value = (mark.findtext(f"{SVG}title") or "").rpartition(": ")
        filled = mark.findall(f"{SVG}path")[-1].get("fill") != "#ffffff"
        found.append((named, float(value.partition(" ")[0]), filled))
    return found


def legend(path: Path) -> list[str]:
    texts = ET.parse(path).getroot().iter(f"{SVG}text")
    return [each.text or "" for each in texts if each.get("class") == "legend"]


def drawn(rows: pl.DataFrame, scale: float, verdict: str) -> list[tuple[str, float, bool]]:
    """What `marks` are to be of rows of estimates."""
    return [
        (f"{row['model']}, {row['group']}", round(scale * row["value"], 2), bool(row[verdict]))
        for row in rows.iter_rows(named=True)
    ]


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pl.DataFrame]:
    """Five models, each with soft prompts from two training sets, and their estimates."""
    folder = tmp_path_factory.mktemp("tuned")
    groups = (*GROUPS[:-1], HOSTILE)
    study = make_study(LISTED, profile="paper", probes=[{"source": "planted"}])
    store = write_out(folder, study, groups=groups, attribute="sexuality", templates=12)
    text = store.read_text("study.yaml")
    sizes = "".join(f"  {name}: {size}\n" for name, size in SIZES.items())
    store.write_text("study.yaml", f"{text}parameters:\n{sizes}")
    for name in store.files("predictions", recursive=True):
        table = pl.DataFrame(store.read_table(name))
        other = table.with_columns(
            dataset=pl.lit("sst5"), run_id=pl.col("run_id") + "-sst5",
            # Another classifier: wrong elsewhere.
            pred=pl.when(pl.col("pred") == 1).then(2).otherwise("pred").cast(pl.Int16),
            attribute=pl.lit("sexuality"),
        )  # fmt: skip
        store.write_table(name.replace(".parquet", "-sst5.parquet"), other.to_arrow())
    assert exit_code("report", folder, "--figures", "paper") == 0
    return folder, pl.read_parquet(folder / "tables" / "estimates.parquet")


def test_gaps_are_drawn_whole_by_size_and_filled_if_significant(
    tuned: tuple[Path, pl.DataFrame],
) -> None:
    folder, found = tuned
    gaps = gap_rows(found, "runs").with_columns(pl.col("group").str.replace_all("_", " "))
    assert gaps.height == 120
    for number, rate in ((2, "positive"), (3, "negative")):
        path = folder / f"figures/paper/tian2023-figure-{number}-{rate}-gap-sexuality.svg"
        part = gaps.filter(score=f"{rate}_fpr")
        assert sorted(marks(path)) == sorted(drawn(part, 100, "survives"))
        assert 0 < sum(filled for *_, filled in marks(path)) < part.height == 60
        assert legend(path) == [*MODELS]
        assert "Tian2023, Figure" in (ET.parse(path).getroot().findtext(f"{SVG}desc") or "")
    net = pl.read_csv(folder / "figures/paper/tian2023-table-1-net-significance.csv")
    sign = pl.col("value").sign() * pl.col("survives").cast(int)
    for (score, dataset, group), part in gaps.group_by("score", "dataset", "group"):
        cells = net.filter(group=str(group))
        count = part.select(sign.sum()).item()
        assert cells[f"{score}_{dataset}"].item() == count
        # The probe declares positive to be favourable.
        harm = (count > 0) == (score == "negative_fpr")
        meaning = ("harm" if harm else "benefit") if count else None
        assert cells[f"{score}_{dataset}_effect"].item() == meaning
    effects = net.select(pl.selectors.ends_with("_effect")).unpivot()["value"].drop_nulls()
    assert {*effects} == {"harm", "benefit"}
    shown = (folder / "figures/paper/tian2023-table-1-net-significance.md").read_text()
    assert len(re.findall(r"[+-]\d harm|[+-]\d benefit", shown)) == len(effects)
    assert "Being predicted positive counts as favourable here, as declared" in shown


def test_the_command_lists_its_files_and_a_report_deletes_what_it_does_not_draw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_out(tmp_path, make_study(("a", "b"), profile="paper"), templates=12)
    capsys.readouterr()
    assert exit_code("report", tmp_path, "--figures", "paper") == 0
    listed = capsys.readouterr().out.split()
    folder = tmp_path / "figures"
    assert listed == sorted(str(path) for path in (folder / "paper").iterdir())
    (folder / "gaps.mine.svg").write_text("<svg/>")
    (folder / "paper" / "mine.csv").write_text("own")
    annotated, *_ = map(Path, listed)
    annotated.write_text("annotated")
    # Under this profile no report has it.
    (old,) = folder.glob("gaps.planted.*.svg")
    written = json.loads((folder / "written.json").read_text())
    one = "figures/gaps.of.old.svg"
    (tmp_path / one).write_bytes(old.read_bytes())
    written[one] = written[f"figures/{old.name}"]
    (folder / "written.json").write_text(json.dumps(written))
    raybias.write_report(tmp_path, profile="strict")
    now = {path for path in folder.rglob("*") if path.is_file()}
    own = {folder / "gaps.mine.svg", folder / "paper" / "mine.csv", annotated}
    ours = {tmp_path / name for name in json.loads((folder / "written.json").read_text())}
    assert now == own | ours | {folder / "written.json"}
    assert {path.parent for path in ours} == {folder}
    assert folder / "answer.svg" in ours


def test_an_out_that_fills_none_is_refused_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = Store(tmp_path)
    study = parse_study({
        "name": "asked", "backbones": ["m"], "methods": [{"kind": "option_likelihood"}],
        "questions": [{"source": "bbq", "data": "x"}],
    })  # fmt: skip
    begin(store, make_record(study, {}, command="raybias run asked.yaml"))
    table = option_answers(100, 4, seed=1).with_columns(model=pl.lit("m")).to_arrow()
    store.write_table("options/bbq/m/0.parquet", table.cast(schema.OPTION_ANSWERS))
    before = {*tmp_path.rglob("*")}
    line = refused(capsys, "report", tmp_path, "--figures", "paper")
    assert "has no results that a figure or table of the papers shows; run a study with" in line
    assert {*tmp_path.rglob("*")} == before


def test_accuracies_have_the_deviation_over_runs_and_a_row_over_all_attributes(
    tmp_path: Path,
) -> None:
    store = write_out(tmp_path, make_study(profile="paper", probes=[{"source": "planted"}]))
    parts = []
    for name in store.files("predictions", recursive=True):
        old = pl.col("template_id").cast(int) % 4 == 0
        table = pl.DataFrame(store.read_table(name)).with_columns(
            attribute=pl.when(old).then(pl.lit("age")).otherwise(pl.lit("race"))
        )
        store.write_table(name, table.to_arrow())
        parts.append(table)
    found = raybias.write_report(tmp_path, figures="paper").estimates.collect()
    whole = pl.concat(parts)
    runs = whole.group_by("run_id").agg(right=(pl.col("pred") == pl.col("label")).mean())
    every = found.filter(attribute="all", group="all", scope="runs")
    assert every.filter(score="accuracy")["value"].item() == pytest.approx(runs["right"].mean())
    (row,) = every.filter(score="accuracy_sd").iter_rows(named=True)
    assert row["value"] == pytest.approx(np.std(runs["right"].to_numpy(), ddof=1))
    assert (row["units"], row["n"]) == (5, 720)
    assert {*found.filter(score="accuracy_sd")["attribute"]} == {"age", "race", "all"}
    # Measured from the files alone, the rows are the same.
    measured = raybias.measure([tmp_path], profile="paper")
    again = measured.filter(score="accuracy_sd", attribute="all")
    assert again["value"].item() == row["value"]


def test_template_probes_fill_their_figures_and_tables(tmp_path: Path) -> None:
    models = tuple(f"m{number}" for number in range(5))
    study = marked_study(backbones=[{"id": name} for name in models], profile="paper")
    store = write_marked(tmp_path, study)
    found = raybias.write_report(tmp_path, figures="paper").estimates.collect()
    paper = tmp_path / "figures" / "paper"
    gaps = gap_rows(found, "runs").with_columns(pl.col("group").str.replace_all("_", " "))
    for way, own in (("fine-tuned", pl.col("method") == "full"),
                     ("prompted", pl.col("method") != "full")):  # fmt: skip
        part = gaps.filter(own, probe="p1")
        path = paper / f"kohankhaki2024-{way}-p1-race.svg"
        assert sorted(marks(path)) == sorted(drawn(part, 100, "survives"))
    spans = pl.read_csv(paper / "kohankhaki2024-table-4-gap-spans.csv")
    tuned = gaps.filter(method="full", score="negative_fpr")
    by_probe = tuned.group_by("model", "probe").agg(
        span=pl.col("value").max() - pl.col("value").min()
    )
    means = dict(by_probe.group_by("model").agg(pl.col("span").mean().round(12)).iter_rows())
    table = spans.filter(score="negative_fpr")
    assert table["rank"].is_sorted()
    assert {*table["model"]} == {*models}
    for row in table.iter_rows(named=True):
        assert row["mean_gap_span"] == pytest.approx(means[row["model"]])
        assert row["rank"] == 1 + sum(span > means[row["model"]] for span in means.values())
        assert row["probes"] == 2
    sizes = pl.read_csv(paper / "kohankhaki2024-table-5-composition.csv")
    items = pl.DataFrame(store.read_table("items/p1.parquet"))
    own = items.filter(~pl.col("group").is_in(schema.EXTRA_GROUPS))
    counts = own.group_by("group").len()
    total = sizes.filter(probe="p1", group="TOTAL")
    assert total["total"].item() == own.height
    assert total["predictions"].item() == 5 * own.height
    assert dict(
        sizes.filter(pl.col("group") != "TOTAL", probe="p1").select("group", "total").iter_rows()
    ) == dict(counts.iter_rows())
    accuracy = (paper / "kohankhaki2024-table-3-accuracy-prompted.md").read_text()
    assert "nine, planted" in accuracy


def test_styles_fill_their_tables_and_figures(tmp_path: Path) -> None:
    models = ("opt-13m", "opt-2m", "Llama-7m")
    study = pair_study(models, profile="paper")
    write_pair_out(tmp_path, study, parameters={"opt-13m": 13, "opt-2m": 2, "Llama-7m": 7})
    found = raybias.write_report(tmp_path, figures="paper").estimates.collect()
    paper = tmp_path / "figures" / "paper"
    pairs = found.filter(pl.col("model") != "all", kind="pairs", condition="")
    summary = pl.read_csv(paper / "zhao2025-table-2-crows-pairs.csv")
    effects = pairs.filter(statistic="difference", score="preference")
    for (style, model), part in effects.group_by("style", "model"):
        changes = {row["attribute"]: row["value"] for row in part.iter_rows(named=True)}
        rows = summary.filter(style=str(style), model=str(model))
        of_all = rows.filter(statistic="AVG", bias_type="avg_weighted")["value"].item()
        assert of_all == changes["avg_weighted"]
        types = {name: value for name, value in changes.items() if name not in AVERAGES}
        ends = {"MIN": min, "MAX": max}
        for name, end in ends.items():
            row = rows.filter(statistic=name).row(0, named=True)
            assert abs(row["value"]) == end(map(abs, types.values()))
            assert row["value"] == types[row["bias_type"]]
    scores = pl.read_csv(paper / "zhao2025-tables-8-9-crows-pairs.csv")
    assert scores.height == 3 * 5 * 3
    assert scores["model"][:3].to_list() == ["opt-2m", "Llama-7m", "opt-13m"]
    asked = scores.filter(style="question_answer", bias_type="age")["score_pct"]
    assert asked.to_list() == [100.0] * 3
    lists = pairs.filter(score="t")
    values = pl.read_csv(paper / "zhao2025-tables-6-7-t-values-crows-pairs.csv")
    assert sorted(values["t_value"]) == sorted(lists["value"])
    # Of six lists the two comparisons of two styles that the paper does not have are left out.
    shown = lists.filter(~pl.col("group").str.contains("prefix_1.*question_answer"))
    for number, family in ((3, "opt"), (4, "llama")):
        own = shown.filter(pl.col("model").str.to_lowercase().str.starts_with(family))
        own = own.with_columns(group=pl.col("attribute"))
        path = paper / f"zhao2025-figure-{number}-t-values-{family}-crows-pairs.svg"
        assert sorted(marks(path)) == sorted(drawn(own, 1, "significant"))
        assert len(marks(path)) == own.height == 11 * 3 * (2 if family == "opt" else 1)


def test_pronouns_fill_their_tables(tmp_path: Path) -> None:
    write_pair_out(tmp_path, pair_study(profile="paper"))
    raybias.write_report(tmp_path, figures="paper")
    paper = tmp_path / "figures" / "paper"
    answers = pl.DataFrame(Store(tmp_path).read_table("coreference/a/00000000.parquet"))
    share = answers.group_by("style", "prompt", "wino_type", "condition").agg(
        right=100 * pl.col("exact").mean()
    )
    wide = share.pivot("condition", index=["style", "prompt", "wino_type"], values="right")
    wide = wide.with_columns(diff=(pl.col("pro") - pl.col("anti")).abs())
    table = pl.read_csv(paper / "zhao2025-tables-10-17-winobias-toy-1m.csv")
    for row in wide.iter_rows(named=True):
        line = table.filter(prompt=row["prompt"], style=row["style"])
        for name in ("pro", "anti", "diff"):
            assert line[f"{row['wino_type']}_{name}"].item() == pytest.approx(row[name])
    for name, end in (("MIN", pl.Series.min), ("MAX", pl.Series.max)):
        own = table.filter(prompt=name, style="original")["type1_diff"].item()
        assert own == pytest.approx(end(wide.filter(style="original", wino_type="type1")["diff"]))
    means = pl.read_csv(paper / "zhao2025-table-3-winobias.csv")
    for (style, kind), part in wide.group_by("style", "wino_type"):
        mean = means.filter(style=str(style), wino_type=str(kind))["mean_diff_pct"].item()
        assert mean == pytest.approx(part["diff"].mean())


def write_published(store: Store, folder: Path) -> None:
    """An OUT with the predictions on Regard that Kohankhaki2024 published."""
    files = sorted(folder.glob("*.tsv.gz"))
    parts = [read_paper_tsv(each.read_bytes(), name=each.name, where=str(each)) for each in files]
    whole = pl.concat(parts).with_columns(
        pl.col("model").map_elements(plain, pl.String),
        method=pl.lit("lora"),
        dataset=pl.lit("sst5"),
    )
    # The authors number the runs of each model from 0; those of an OUT have names of their own.
    whole = whole.with_columns(run_id=pl.format("{}-{}", "model", "run_id"))
    runs = whole.select("run_id", "model", "method", "dataset").unique(maintain_order=True)
    content = {
        "name": "regard",
        "profile": "paper",
        "backbones": [{"id": name} for name in runs["model"].unique().sort()],
        "training": [{"source": "sst5", "data": "x"}],
        "methods": [{"kind": "lora"}],
        "probes": [{"source": "regard", "data": "x"}],
    }
    begin(store, make_record(parse_study(content), {}, command="raybias run regard.yaml"))
    table = conformed(
        runs.with_columns(
            stage=pl.lit("final"), steps=1, selected=True, seed=pl.int_range(pl.len())
        ),
        pl.Schema(schema.RUNS),
    )
    store.write_table("runs.parquet", table.to_arrow().cast(schema.RUNS))
    rows = whole.to_arrow().cast(schema.PREDICTIONS)
    store.write_table("predictions/regard/all.parquet", rows)


@pytest.mark.long
def test_published_predictions_fill_figure_3_of_kohankhaki(shared: Path, tmp_path: Path) -> None:
    """132 gaps and 132 half widths, which the authors published, are drawn as they are."""
    folder = shared / "data" / "regard_published"
    write_published(Store(tmp_path), folder)
    assert exit_code("report", tmp_path, "--figures", "paper") == 0
    paper = tmp_path / "figures" / "paper"
    path = paper / "kohankhaki2024-figure-3-fine-tuned-regard-race.svg"
    published = pl.read_csv(folder / "regard_gaps.csv").drop_nulls("model")
    expected = []
    for row in published.iter_rows(named=True):
        named = f"{plain(row['model'])}, {row['group'].replace('_', ' ')}"
        for sign in ("negative", "positive"):
            gap = 100 * row[f"{sign}_FPR_gap"]
            width = 100 * row[f"{sign}_FPR_gap_width"]
            expected.append(f"{named}: {interval(gap, gap - width, gap + width, digits=2)}")
    assert sorted(told(path)) == sorted(expected)
    assert len(expected) == 132
    assert sum(filled for *_, filled in marks(path)) == 73
    accuracy = pl.read_csv(paper / "kohankhaki2024-table-2-accuracy-fine-tuned.csv")
    (row,) = accuracy.filter(model="mistral-7b").iter_rows(named=True)
    assert (round(row["accuracy"], 3), round(row["sd"], 3)) == (0.785, 0.006)
