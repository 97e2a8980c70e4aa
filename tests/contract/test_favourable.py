"""Harm and benefit are said of a declared favourable outcome alone, and in a table's own words."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import raybias
from raybias.errors import ConfigError, DataError
from raybias.planning.labels import resolve_labels
from raybias.probes.registries import probes
from raybias.report import wording
from raybias.report.page import write_report
from raybias.schema import LABELS
from raybias.stats.metric import metrics
from raybias.stats.rated_class import RatedClass
from support.commands import exit_code
from support.pages import Page
from support.report_outs import make_study, write_out

#: What no output says while no outcome is declared to be favourable.
CLAIMS = re.compile(r"\bharm(s|ed|ful)?\b|benefit|favoure?d\b|favored", re.IGNORECASE)
#: Words for the class and for the rest: participles, nouns, numbers, a comparison, yes and no.
PAIRS = [("approved", "denied"), ("High", "Low"), ("1", "0"), (">50K", "<=50K"), ("yes", "no")]
RATES = ("selection_rate", "tpr", "fpr", "fnr", "tnr")
#: By rate, what more of it is to a person whose favourable outcome is the class.
MORE = {"selection_rate": "benefit", "tpr": "benefit", "fpr": "benefit", "fnr": "harm",
        "tnr": "harm"}  # fmt: skip


def decisions(pred: Sequence[str], label: Sequence[str], seed: int = 0) -> pl.DataFrame:
    """2,000 decisions, of which men get the first of `pred` far more often."""
    random = np.random.default_rng(seed)
    sex = random.choice(["women", "men"], 2000)
    right = random.choice([*label], 2000)
    chosen = random.random(2000) < 0.3 + 0.3 * (sex == "men") + 0.2 * (right == label[0])
    words = np.where(chosen, pred[0], pred[1])
    return pl.DataFrame({"sex": sex, "paid": right, "decided": words})


def measured(path: Path, out: Path, *options: str) -> dict[str, str]:
    """The texts of all files that `raybias measure` writes about a table of decisions."""
    columns = ("--by", "sex", "--label-column", "paid", "--pred-column", "decided")
    assert exit_code("measure", path, *columns, *options, "--out", out) == 0
    return texts_of(out)


def texts_of(out: Path) -> dict[str, str]:
    kinds = (".html", ".csv", ".md", ".json", ".svg", ".tex")
    return {
        str(path.relative_to(out)): path.read_text("utf-8")
        for path in sorted(out.rglob("*"))
        if path.suffix in kinds
    }


@pytest.mark.parametrize("words", PAIRS, ids=lambda words: words[0])
def test_a_table_of_decisions_is_told_in_its_own_words(
    words: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "loans.csv"
    decisions(words, ("back", "lost")).write_csv(path)
    named = ("--positive", f"paid=back,decided={words[0]}")
    texts = measured(path, tmp_path / "out", *named)
    printed = capsys.readouterr().out
    for name, text in {**texts, "printed": printed}.items():
        assert not CLAIMS.search(text), name
    page, statement = (Page(texts[f"{name}.html"]).text for name in ("report", "statement"))
    shown = [" ".join(text.split()) for text in (printed, page, statement)]
    for text in shown:
        assert f"predicted {words[0]}" in text
        assert "called the class" not in text
        assert "predicted the class" not in text
    # Figures tell rates of one event apart by whom they are of.
    figures = "".join(texts[name] for name in texts if name.endswith(".svg")) + texts["report.html"]
    drawn = html.unescape(figures)
    assert f"predicted {words[0]}, label is back" in drawn
    assert f"predicted {words[0]}, label is not back" in drawn
    begin = f"Examples of men whose label is back are predicted {words[0]} "
    assert begin in shown[2]
    assert "was not declared" in shown[2]
    assert "2,000 predictions." in shown[2]
    # An impact ratio is of being selected, which nobody declared this to be.
    headers = re.findall(r">([a-z ]*ratio[a-z ]*)</th>", texts["statement.html"])
    assert sorted(headers) == ["ratio of error rates", "ratio of rates", "ratio of rates"]


@pytest.mark.parametrize(("declared", "women"), [("approved", "harm"), ("denied", "benefit")])
def test_a_declared_outcome_gives_every_rate_its_effect(
    declared: str, women: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "loans.csv"
    decisions(("approved", "denied"), ("back", "lost")).write_csv(path)
    options = ("--positive", "paid=back,decided=approved", "--favourable", declared)
    asked = [word for rate in RATES for word in ("--metric", rate)]
    texts = measured(path, tmp_path / "out", *options, *asked)
    printed = capsys.readouterr().out
    assert f"Being predicted {declared} counts as favourable here, as declared." in printed
    other = {"harm": "benefit", "benefit": "harm"}[women]
    for word, group in ((women, "women"), (other, "men")):
        often = "less" if group == "women" else "more"
        assert re.search(rf" {group} .*{word}: predicted approved {often} often", printed)
    # Of two groups one sentence has both, and says what the first one has.
    assert re.search(rf"Examples of men .* more often than those of women .*: {other}\.", printed)
    for line in printed.splitlines():
        if "often" in line and "Examples" not in line:
            # Women are approved less often and not approved more often: one effect in every rate.
            assert re.search(r"harm|benefit", line).group() == (  # type: ignore[union-attr]
                women if " women " in line else other
            )
    # The word of Local Law 144 is for rates of what people are selected for.
    assert (">impact ratio</th>" in texts["statement.html"]) == (declared == "approved")
    # Of two groups the first by name is told.
    assert re.search(
        rf"points more often than those of women [^:]*: {other}\.", texts["statement.html"]
    )


@given(st.sampled_from(RATES), st.floats(-1, 1).filter(bool), st.sampled_from([True, False, None]))
def test_what_a_rate_means_follows_from_the_outcome(
    rate: str, gap: float, is_favourable: bool | None
) -> None:
    rated = RatedClass("approved", "paid", "x" * (is_favourable is not None), is_favourable)
    with wording.describing_class(rated):
        found = wording.effect(rate, gap)
        known = wording.metric(rate)
        # Whoever is rightly classified more often may be so in rejections.
        assert wording.effect("accuracy", gap) == ""
    turned = (gap > 0) == (is_favourable is True)
    opposite = {"harm": "benefit", "benefit": "harm"}[MORE[rate]]
    assert found == ("" if is_favourable is None else MORE[rate] if turned else opposite)
    assert "the class" not in known.words + known.among + known.title + known.about
    assert known.among.removeprefix("whose label is ").removeprefix("not ") in ("", "paid")


@given(st.sampled_from(["positive", "negative", "neutral", ""]), st.sampled_from([-0.1, 0.1]))
def test_rates_of_sentiment_have_an_effect_if_a_label_is_declared(
    favourable: str, gap: float
) -> None:
    with wording.describing_class(RatedClass(favourable=favourable)):
        found = [wording.effect(name, gap) for name in ("negative_fpr", "positive_fpr")]
    usual = ["harm", "benefit"] if gap > 0 else ["benefit", "harm"]
    assert found == {"positive": usual, "negative": usual[::-1]}.get(favourable, ["", ""])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"positive": ["High", "Medium"], "favourable": "High"},
         "--favourable High is neither the class nor all that is not of it; rates are of High, "),
        ({"positive": "High", "favourable": "Low"}, "against Low, Medium: name all of one side"),
        ({"positive": "High", "favourable": "high"}, "--favourable high is neither"),
        ({"favourable": "Middling"}, "Middling is no label of these files; choose one of High, "),
    ],
)  # fmt: skip
def test_a_part_of_what_is_rated_is_not_taken_for_the_whole(
    options: dict[str, Any], message: str
) -> None:
    words = ["High", "Medium", "Low"] * 20
    table = {"group": ["a", "b"] * 30, "label": words, "pred": words[1:] + words[:1]}
    with pytest.raises((ConfigError, DataError), match=re.escape(message)) as refused:
        raybias.measure(table, **options)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("pred", "options", "name", "favourable"),
    [
        ("score", {"threshold": 0.5, "pred_column": "score", "favourable": 0.2}, "0.5 or above",
         False),
        ("score", {"favourable": 1}, "1", True),
        ("pred", {"favourable": True}, "1", True),
        ("pred", {"favourable": "0"}, "1", False),
        ("pred", {"positive": "0", "favourable": "0"}, "0", True),
    ],
)  # fmt: skip
def test_numbers_name_the_class(
    pred: str, options: dict[str, Any], name: str, favourable: bool
) -> None:
    random = np.random.default_rng(1)
    numbers = random.random(200) if pred == "score" else random.integers(0, 2, 200)
    table = {"group": ["a", "b"] * 100, "label": [1, 0, 0, 1] * 50, pred: numbers}
    said: list[Any] = []
    raybias.measure(table, report_classes=said.append, **options)
    rated = said[0].rated
    assert (rated.name, rated.is_favourable) == (name, favourable)


def test_by_class_the_favourable_one_alone_has_an_effect() -> None:
    with wording.describing_class(RatedClass(favourable="nurse")):
        assert wording.verdict("tpr", 0.1, "nurse") == (
            "benefit: predicted nurse more often, of those whose label is nurse"
        )
        assert wording.verdict("fpr", -0.1, "poet") == (
            "predicted poet less often, of those whose label is not poet"
        )


def test_every_probe_of_sentiment_of_ours_declares_it_and_no_other() -> None:
    for name, source in probes.items():
        assert source.favourable == ("positive" if source.labels == LABELS else ""), name


def test_a_study_takes_over_what_its_probes_declare(tmp_path: Path) -> None:
    def favourable(**changes: Any) -> str | None:
        return resolve_labels(make_study(**changes)).statistics.favourable

    for name, text in (("plain", ""), ("declared", "favourable: negative\n")):
        (tmp_path / f"{name}.yaml").write_text(
            f"kind: label\nabout: x\nharm: y\nfile: mine.csv\n{text}"
        )
    own = {name: {"source": "file", "name": name, "data": str(tmp_path / f"{name}.yaml")}
           for name in ("plain", "declared")}  # fmt: skip
    ours = {"source": "planted"}
    assert favourable() == "positive"
    assert favourable(probes=[own["plain"]]) is None
    assert favourable(probes=[own["declared"]]) == "negative"
    # Probes that do not agree declare nothing.
    assert favourable(probes=[ours, own["plain"]]) is None
    assert favourable(probes=[ours, own["declared"]]) is None
    assert favourable(probes=[ours, own["plain"]], statistics={"favourable": "neutral"}) == (
        "neutral"
    )
    with pytest.raises(ConfigError, match=r"statistics\.favourable.*'good' is no label"):
        favourable(statistics={"favourable": "good"})


def test_a_study_that_declares_nothing_and_a_comparison_claim_nothing(tmp_path: Path) -> None:
    study = make_study()
    undeclared = study.statistics.model_copy(update={"favourable": None})
    study = study.model_copy(update={"statistics": undeclared})
    store = write_out(tmp_path / "out", study)
    write_report(store, study)
    found = raybias.compare(tmp_path / "out", tmp_path / "out", out=tmp_path / "compared")
    assert found.verdict
    files = {**texts_of(tmp_path / "out"), **texts_of(tmp_path / "compared")}
    assert {"report.html", "statement.html", "compare.html", "tables/model_card.md"} <= {*files}
    for name, text in files.items():
        assert not CLAIMS.search(text), name
    assert "was not declared" in files["report.html"]


def test_no_metric_is_said_to_be_good_by_default() -> None:
    for name in metrics:
        known = wording.metric(name)
        assert (known.above, known.below) == ("", ""), name
