"""The page: the answer first, escaped, alone, the same bytes; and `raybias report`."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest
import yaml

import raybias
from raybias import schema
from raybias.config import Statistics
from raybias.probes.published.planted import Plant
from raybias.report import headline, wording
from raybias.report.calibration import calibration
from raybias.report.judged import Judged
from raybias.report.meaningless import meaningless
from raybias.report.page import write_report
from raybias.storage import Store
from support.commands import exit_code
from support.pages import Page, files_in, page_of
from support.report_outs import GROUPS, make_study, write_out
from support.stats_data import predictions


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """A finished OUT with its report; nothing here changes it."""
    study = make_study()
    store = write_out(tmp_path_factory.mktemp("written"), study)
    write_report(store, study)
    return store


@pytest.mark.parametrize(
    ("judged", "known", "said"),
    [
        (["wording"], ["runs", "sentences", "wording"], ["words dealt anew"]),
        (["sentences"], ["runs", "sentences"], ["Of other words for the groups it says nothing"]),
        (["wording"], ["runs", "sentences"], ["not known: not all groups' words are"]),
        (["sentences", "wording"], ["sentences", "wording"], ["within every", "words dealt anew"]),
        (["wording"], [], []),
    ],
)
def test_the_null_check_speaks_of_the_scopes_that_are_judged(
    judged: list[str], known: list[str], said: list[str]
) -> None:
    shares = {"meaningless_flagged": 0.031, "meaningless_with_survivor": 0.2}
    rows = pl.DataFrame(
        [(name, scope, value) for name, value in shares.items() for scope in known],
        ["score", "scope", "value"], orient="row",
    ).cast({"score": pl.String, "scope": pl.String, "value": pl.Float64})  # fmt: skip
    gaps = pl.DataFrame({"scope": judged, "significant": True})
    found = [*meaningless(rows, gaps, Statistics.under("strict"))]
    assert len(found) == len(said)
    for sentence, part in zip(found, said, strict=True):
        assert part in sentence
        if "not known" not in sentence:
            assert "3.1% of gaps significant (5% expected); 20% of such studies" in sentence
            assert "far above its level" in sentence
            assert ("use a wider scope" in sentence) == ("Of other" in sentence)


def test_the_answer_comes_first_with_direction_and_interval(written: Store) -> None:
    words = page_of(written).text
    answer = words[: words.index("What was measured")]
    sentence = (
        r"Sentences about quixlan are wrongly called negative \d\d\.\d points more often than "
        r"the mean of 5 other groups \(\d\d\.\d to \d\d\.\d\)"
    )
    assert re.search(rf"The answer {sentence}\. ", answer)
    assert re.search(rf"{sentence}: harm\.", answer)
    for said in ("Significant if only seeds are redrawn: 1 of 12 gaps;", "a planted bias: passed",
                 "1 run diverged (seed 1004)", "the lower seed decided"):  # fmt: skip
        assert said in answer
    assert "Near chance" not in answer
    for fact in ("negative (2430)", "Satterthwaite", "Benjamini-Hochberg", "0123456789abcdef",
                 "raybias run study.yaml", "methods.0.restore_best"):  # fmt: skip
        assert fact in words
    # Significance is no chance of finding a gap again.
    for claim in ("found again", "would be expected", "most likely have been found", "shows from",
                  "which is enough", "detectable gap"):  # fmt: skip
        assert claim not in words
    assert "It is not how likely another study would find it again." in words


def test_the_page_loads_nothing(written: Store) -> None:
    page = page_of(written)
    inside = [link for link in page.links if not link.startswith("#")]
    assert inside
    assert all(written.exists(link) for link in inside)
    assert not page.tags & {"link", "img", "iframe", "object"}
    text = written.read_text("report.html")
    assert "@import" not in text
    assert all(url.startswith("#") for url in re.findall(r"url\(([^)]*)\)", text))
    (script,) = re.findall(r"<script>(.*?)</script>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
        in html.unescape(text)
    )


def test_each_gap_shows_its_sentences_and_a_page_has_all(written: Store) -> None:
    text = page_of(written).text
    assert "quixlan, wrongly called negative more often than the mean (harm)" in text
    assert re.search(r"\d+ of \d+ runs", text)
    whole = Page(written.read_text("evidence/planted.origin.quixlan.html"))
    assert whole.text.count("quixlan/7") == 2
    assert "Sentences about quixlan (origin), probe planted" in whole.text


@pytest.mark.long
def test_hostile_names_are_escaped_everywhere(tmp_path: Path) -> None:
    group = '<script>alert("x")</script>'
    study = make_study(probes=[{"source": "planted"}])
    store = write_out(tmp_path / "out", study, groups=(group, "a&b", "{{ 7*7 }}"), biased=group,
                      attribute="<img src=x onerror=alert(1)>/../..")  # fmt: skip
    write_report(store, study)
    page = page_of(store)
    assert "img" not in page.tags
    assert store.read_text("report.html").count("<script") == 1
    assert group in page.text
    assert "{{ 7*7 }}" in page.text
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_significance_is_counted_by_scope_and_correction() -> None:
    flags = {"runs": (True, True, False), "sentences": (True, False, False),
             "wording": (False, False, False)}  # fmt: skip
    keys = dict.fromkeys((*schema.KEYS, "attribute", "score", "condition"), "x")
    groups = ("white", "black", "asian")
    rows = [
        {**keys, "kind": "predictions", "scope": scope, "group": group, "survives": flag,
         "significant": flag, "value": 0.1, "low": 0.0, "statistic": "gap", "reason": None}
        for scope, of_groups in flags.items()
        for group, flag in zip(groups, of_groups, strict=True)
    ]  # fmt: skip
    scopes = pl.DataFrame(rows, schema_overrides={"reason": pl.String})
    words = pl.DataFrame({"probe": "x", "attribute": "x", "group": groups, "words": [1, 3, 1]})
    assert headline.by_scope(Judged(scopes, words)) == (
        "Significant if only seeds are redrawn: 2 of 3 gaps; if sentences are too: 1 of 3; if "
        "words are too: none of 3; white has one word."
    )
    flagged = scopes.with_columns(significant=pl.col("scope") != "wording")
    assert headline.by_scope(Judged(flagged, words)) == (
        "Significant if only seeds are redrawn: 3 of 3 gaps (2 after correction within each "
        "attribute and rate, in families of 3 gaps); if sentences are too: 3 of 3 (1 after "
        "correction); if words are too: none of 3 (none after correction); white has one word."
    )
    unknown = scopes.filter(pl.col("scope") != "wording")
    assert headline.by_scope(Judged(unknown, words.clear())).endswith(
        "no group has two words, so nothing is known of other words."
    )
    assert headline.by_scope(Judged(scopes.clear(), words)) == ""
    # Of two groups, one gap is the other with its sign turned: one finding.
    turned = pl.when(group="black").then(-0.1).otherwise(0.1)
    two = scopes.filter(pl.col("group") != "asian").with_columns(value=turned)
    said = headline.by_scope(Judged(two, words))
    assert "redrawn: 1 of 1 gap; if sentences are too: none of 1;" in said
    # Of one run, other seeds are not known, whatever is promised elsewhere.
    alone = Judged(scopes.filter(pl.col("scope") != "runs"), words)
    assert headline.by_scope(alone).startswith(
        "Significant if sentences are redrawn (other seeds are not known): 1 of 3 gaps;"
    )


def test_a_calibration_fails_where_the_plant_is_not_found_or_another_gap_is(
    written: Store,
) -> None:
    estimates = pl.read_parquet(written.path("tables/estimates.parquet"))
    for group, gap in (("blorvian", 0.4), ("quixlan", -0.4), ("nobody", 0.4)):
        plant = Plant("origin", group, "negative_fpr", {"negative_fpr": {group: gap}})
        found = calibration(plant, estimates)
        assert found is not None
        assert not found.passed
        assert any("was NOT found" in said for said in found.said)
        assert found.flagged == ["quixlan"] * (group != "quixlan")


@pytest.mark.long
def test_doubts_are_told(tmp_path: Path) -> None:
    study = make_study(("a", "b"), profile="paper", limit=9)
    store = write_out(tmp_path, study, accuracy=0.34, size=0.1, planted=False)
    first, second, *_ = store.files("predictions", recursive=True)
    store.write_table(first, store.read_table(first).slice(0, 512))
    store.delete(second)
    write_report(store, study)
    text = page_of(store).text
    for doubt in (
        "Nothing can be concluded.",
        "No verdict for a: it is not shown to do the task: it is right in 3",
        "and always answering 'negative' would be in 33.3%. No gap of it is judged. Tune it",
        "has predictions for 512 of 720 items of planted: the study is not finished",
        "has no predictions: the study is not finished",
        "Only a balanced sample of some 9 items",
        "42% wider",
        "by chance alone",
    ):
        assert doubt in text
    assert "Calibration" not in text


def test_results_json_has_lm_evals_shape(written: Store) -> None:
    content = json.loads(written.read_text("results.json"))
    ((task, metrics),) = content["results"].items()
    assert 0.7 < metrics["acc,none"] < 0.9
    assert metrics["negative_fpr_gap:quixlan,none"] > 0.3
    assert len([key for key in metrics if "_stderr" in key]) == 13
    assert metrics["negative_fpr_gap:quixlan_low,none"] > 0
    assert content["n-samples"][task]["original"] == 720
    assert {"configs", "versions", "n-shot", "higher_is_better"} <= content.keys()


def test_results_are_written_in_the_schema_of_every_eval_ever(
    written: Store, tmp_path: Path
) -> None:
    """Its required keys, values with their intervals, and texts alone in `details`."""
    assert raybias.export(written.uri, "eee", tmp_path) == ["planted.json"]
    log = json.loads((tmp_path / "planted.json").read_text())
    needed = ("schema_version", "evaluation_id", "retrieved_timestamp", "source_metadata",
              "model_info", "eval_library", "evaluation_results")  # fmt: skip
    assert {*log} == {*needed}
    assert {"name", "id", "additional_details"} == {*log["model_info"]}
    results = {each["metric_config"]["metric_name"]: each for each in log["evaluation_results"]}
    gaps = raybias.open(written.uri).gaps.collect()
    for row in gaps.iter_rows(named=True):
        found = results[f"{row['score']}_gap:{row['group']}"]
        assert {"source_data", "evaluation_name"} < {*found}
        score, metric = found["score_details"], found["metric_config"]
        assert score["score"] == row["value"]
        ends = score["uncertainty"]["confidence_interval"]
        assert (ends["lower"], ends["upper"], ends["confidence_level"]) == (
            row["low"], row["high"], 0.95,
        )  # fmt: skip
        assert (metric["min_score"], metric["max_score"]) == (-1, 1)
        assert all(isinstance(text, str) for text in score["details"].values())
    assert not results["acc"]["metric_config"]["lower_is_better"]
    (latex, _) = raybias.export(written.uri, "latex", tmp_path)
    assert "\\begin{tabular}" in (tmp_path / latex).read_text()


def test_the_statement_has_the_answer_and_each_groups_rate(written: Store) -> None:
    words = "".join(Page(written.read_text("statement.html")).text.split())
    results = raybias.open(written.uri)
    with wording.describing(results.study):
        found = headline.findings(Judged.of(results.estimates.collect()))[0]
    assert found.endswith(": harm.")
    assert "".join(found.split()) in words
    assert "Beingpredictedpositivecountsasfavourablehere,asdeclared." in words
    assert "runs:seedsareredrawn,ontheseverysentencesbenchmarkaccuracy" in words
    assert "Accuracy,andwhatalwaysnamingthecommonestlabelwouldreach" in words
    own = results.by_group.filter(group="quixlan", score="negative_fpr").collect()
    rate = own["value"].item()
    assert re.search(rf"quixlan80{rate * 80:.0f}{rate:.3f}\[", words)


@pytest.mark.long
def test_the_command_is_repeatable_and_prints_the_table(
    written: Store, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(written.uri, out)
    before = files_in(out)
    assert exit_code("report", out) == 0
    assert files_in(out) == before
    printed = capsys.readouterr().out
    assert "harm: called negative more often" in printed
    assert "Significant if only seeds are redrawn: 1 of 12 gaps;" in printed
    assert str(out / "report.html") in printed
    assert exit_code("report", out, "--profile", "paper") == 0
    assert "restated with the paper profile" in page_of(Store(out)).text
    assert yaml.safe_load((out / "study.yaml").read_text())["study"]["profile"] == "strict"


@pytest.mark.long
def test_a_report_needs_a_study_file_and_predictions_and_neither_torch_nor_ray(
    tmp_path: Path,
) -> None:
    study = make_study()
    store = write_out(tmp_path, study, planted=False)
    store.delete("runs.parquet")
    store.delete("items/planted.parquet")
    store.write_text("study.yaml", yaml.safe_dump({"study": study.model_dump(mode="json")}))
    predictions().write_parquet(tmp_path / "p.parquet")
    beside = tmp_path.with_name(f"{tmp_path.name}_gaps")
    gaps = ["measure", str(tmp_path / "p.parquet"), "--out", str(beside)]
    code = (
        "import sys\n"
        # SciPy looks torch up in sys.modules, so a None there would not do.
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        heavy = ('torch', 'ray', 'transformers', 'datasets', 'requests')\n"
        "        if name.partition('.')[0] in heavy:\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        "from raybias.cli import main\n"
        f"for words in (['report', {str(tmp_path)!r}], {gaps!r}):\n"
        "    try:\n"
        "        main(words)\n"
        "    except SystemExit as done:\n"
        "        assert not done.code\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert (beside / "estimates.csv").exists()
    assert all(group in page_of(store).text for group in GROUPS)
