"""Metrics of groups: the formulas of their sources, whatever order and group names."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import fairlearn.metrics as fairlearn
import numpy as np
import polars as pl
import pytest
import sklearn.metrics as sklearn
from polars.testing import assert_frame_equal
from scipy import stats as scipy_stats

import raybias
from raybias.errors import RaybiasError
from raybias.report.rendering import markdown
from raybias.stats.metric import metrics
from raybias.stats.metric_files import kendalls_w, metrics_of_cells
from raybias.stats.metric_table import listed_metrics
from support.documents import ROOT
from support.stats_data import judged_files, predictions, prompted

#: Two classes; all groups on all templates, with one to three words each.
GROUPS = ("a", "b", "c")


def answered(seed: int = 0, *, templates: int = 8, runs: int = 1) -> pl.DataFrame:
    """Examples of three groups with noisy scores."""
    random = np.random.default_rng(seed)
    rows = [
        (f"r{run}", f"t{template}", f"{group}{word}", group, template % 2,
         round((float(random.random()) + 0.4 * (template % 2)) / 1.4, 3))
        for run in range(runs) for template in range(templates)
        for place, group in enumerate(GROUPS) for word in range(1 + (template + place) % 3)
    ]  # fmt: skip
    names = ["run_id", "template_id", "term", "group", "label", "score"]
    table = pl.DataFrame(rows, schema=names, orient="row")
    return table.with_columns(pred=(pl.col("score") >= 0.5).cast(pl.Int64))


def measured(table: pl.DataFrame, folder: Path, *names: str, **options: object) -> pl.DataFrame:
    path = folder / "mine.csv"
    table.write_csv(path)
    return of_metrics(raybias.measure(path, metric=names or ["all"], **options))  # type: ignore[arg-type]


def of_metrics(estimates: pl.DataFrame) -> pl.DataFrame:
    """The metrics among estimates: contrasts, and gaps under their widest scope."""
    shown = [name for name, entry in metrics.items() if entry.contrast or entry.share]
    found = estimates.filter(
        pl.col("score").is_in(shown), pl.col("model") != "all",
        pl.col("statistic").is_in(["gap", "score", "ratio"]),
        ~pl.col("condition").str.contains("^(by|word:|without) "),
    ).sort("scope", maintain_order=True)  # fmt: skip
    place = ["model", "method", "attribute", "group", "score", "condition"]
    return found.unique(place, keep="last", maintain_order=True)


def values(table: pl.DataFrame) -> dict[tuple[str, str], float]:
    return {(row["score"], row["group"]): row["value"] for row in table.iter_rows(named=True)}


RATES = {
    "fpr": fairlearn.false_positive_rate,
    "fnr": fairlearn.false_negative_rate,
    "tpr": fairlearn.true_positive_rate,
    "tnr": fairlearn.true_negative_rate,
    "selection_rate": fairlearn.selection_rate,
    "f1": sklearn.f1_score,
}


def of_labels(table: pl.DataFrame) -> dict[tuple[str, str], float]:
    """Table 1 of Czarnowska2021, and what fairlearn has, for the labels of one run."""
    gold, pred, of = (table[name].to_numpy() for name in ("label", "pred", "group"))
    frame = fairlearn.MetricFrame(metrics=RATES, y_true=gold, y_pred=pred, sensitive_features=of)
    found: dict[tuple[str, str], float] = {}
    for name, short in (("fpr", "fped"), ("fnr", "fned")):
        own = frame.by_group[name]
        apart = (frame.overall[name] - own).abs()
        divided = {g: own[g] / RATES[name](gold[of != g], pred[of != g]) for g in GROUPS}
        found |= {(short, g): apart[g] for g in GROUPS} | {(short, "all"): apart.sum()}
        found |= {(f"{name}_ratio", g): divided[g] for g in GROUPS}
        found[f"{name}_ratio", "all"] = float(np.mean([*divided.values()]))
        found[f"{name}_range", "all"] = own.max() - own.min()
    for name, short in (("tpr", "tpr_gap"), ("tnr", "tnr_gap"), ("selection_rate", "parity_gap"),
                        ("f1", "disparity_score")):  # fmt: skip
        pairs = combinations(frame.by_group[name], 2)
        found[short, "all"] = float(np.mean([abs(s - t) for s, t in pairs]))
    for name in ("demographic_parity", "equal_opportunity", "equalized_odds"):
        for kind in ("difference", "ratio"):
            metric = getattr(fairlearn, f"{name}_{kind}")
            found[f"{name}_{kind}", "all"] = metric(gold, pred, sensitive_features=of)
    for name in ("fpr", "fnr", "tpr", "tnr", "selection_rate"):
        own = frame.by_group[name]
        found |= {(name, g): own[g] - own.mean() for g in GROUPS}
    return found


def of_scores(table: pl.DataFrame) -> dict[tuple[str, str], float]:
    """Metrics of Czarnowska2021 that compare the scores of groups."""
    gold, score, of = (table[name].to_numpy() for name in ("label", "score", "group"))

    def above(high: np.ndarray, low: np.ndarray) -> float:
        """The share of pairs in which the first is higher."""
        labels = np.repeat([1, 0], [len(high), len(low)])
        return float(sklearn.roc_auc_score(labels, np.concatenate([high, low])))

    found: dict[tuple[str, str], float] = {}
    for g in GROUPS:
        own_0, own_1, rest_0, rest_1 = (
            score[((of == g) == own) & (gold == label)] for own in (True, False) for label in (0, 1)
        )
        found["subgroup_auc", g] = above(own_1, own_0)
        found["bpsn_auc", g] = above(rest_1, own_0)
        found["bnsp_auc", g] = above(own_1, rest_0)
        found["positive_aeg", g] = 0.5 - above(own_1, rest_1)
        found["negative_aeg", g] = 0.5 - above(own_0, rest_0)
        own = scipy_stats.wasserstein_distance(score, score[of == g])
        found["average_group_fairness", g] = float(own)
        tenths = np.ceil(10 * score[of == g])
        gaps = (score - gold)[of == g]
        bins = [abs(gaps[tenths == tenth].sum()) for tenth in range(1, 11)]
        found["ece", g] = float(sum(bins) / len(gaps))
    for name in ("positive_aeg", "negative_aeg", "average_group_fairness"):
        found[name, "all"] = float(np.mean([found[name, g] for g in GROUPS]))
    found["ece_range", "all"] = float(np.ptp([found["ece", g] for g in GROUPS]))
    return found


def of_versions(table: pl.DataFrame) -> dict[tuple[str, str], float]:
    """Metrics that compare the versions of a sentence, on average over templates."""
    sums: dict[str, list[float]] = {}
    for template in table.partition_by("template_id"):
        own = [template.filter(group=group) for group in GROUPS]
        scores, preds = ([part[name].to_numpy() for part in own] for name in ("score", "pred"))
        gold = [each.mean() if template["label"][0] else 1 - each.mean() for each in scores]
        apart = [scipy_stats.wasserstein_distance(x, y) for x, y in combinations(scores, 2)]
        flips = [(x[:, None] != y).mean() for x, y in combinations(preds, 2)]
        one = {
            "counterfactual_gap": np.mean([abs(x - y) for x, y in combinations(gold, 2)]),
            "perturbation_range": np.ptp(gold),
            "perturbation_deviation": np.std(gold),
            "average_individual_fairness": np.mean(apart),
            "counterfactual_flip_rate": np.mean(flips),
        }
        for name, value in one.items():
            sums.setdefault(name, []).append(float(value))
    return {(name, "all"): float(np.mean(each)) for name, each in sums.items()}


@pytest.mark.long
def test_every_metric_is_the_formula_of_its_source(tmp_path: Path) -> None:
    table = answered(1, templates=16)
    found = values(measured(table, tmp_path))
    expected = of_labels(table) | of_scores(table) | of_versions(table)
    own = {name for name, entry in metrics.items() if entry.of in ("class", "contrast")}
    assert {name for name, _ in expected} == own
    for place, value in expected.items():
        assert found[place] == pytest.approx(value, abs=1e-12), place


@pytest.mark.long
def test_differences_do_not_depend_on_the_order_of_rows(tmp_path: Path) -> None:
    table = answered(3, runs=2, templates=6).with_columns(
        item_id=pl.int_range(pl.len()).over("run_id").cast(pl.String)
    )
    first = measured(table, tmp_path)
    again = measured(table.sample(fraction=1, shuffle=True, seed=5), tmp_path)
    assert_frame_equal(first, again, abs_tol=1e-9)
    assert first["low"].count() > 50
    inside = first.filter(pl.col("low").is_not_null())
    assert inside.select(pl.col("value").is_between("low", "high").mean()).item() > 0.9


def test_backgrounds_classes_and_what_an_interval_covers(tmp_path: Path) -> None:
    table = answered(5, templates=10)
    backgrounds = ("mean_of_groups", "pooled", "pooled_others", "reference:b")
    against = {name: measured(table, tmp_path, "tpr", background=name) for name in backgrounds}
    for name, found in against.items():
        own = found.filter(pl.col("group") != "b") if name == "reference:b" else found
        expected = "" if name == "mean_of_groups" else name
        assert {*own["condition"]} <= {expected, "not in the mean"}
    positive = table.filter(label=1)
    tpr = dict(positive.group_by("group").agg(pl.col("pred").mean()).iter_rows())
    b = values(against["reference:b"])
    assert b["tpr", "b"] == 0
    assert b["tpr", "a"] == pytest.approx(tpr["a"] - tpr["b"])
    rest = positive.filter(pl.col("group") != "a")["pred"].mean()
    assert values(against["pooled_others"])["tpr", "a"] == pytest.approx(tpr["a"] - rest)
    # The other class turns everything round.
    turned = measured(table, tmp_path, "tnr_gap", positive=0)["value"].item()
    assert turned == pytest.approx(measured(table, tmp_path, "tpr_gap")["value"].item())
    assert measured(table, tmp_path, "fped")["scope"].to_list() == ["sentences"] * 4
    bare = table.drop("template_id", "term")
    assert measured(bare, tmp_path, "fped", "tpr")["scope"].to_list() == ["items"] * 7
    # A score that sets examples beside those of others has no mean of groups to be set beside.
    scored = table.with_columns(score=pl.col("pred") * 0.5)
    lacking = measured(scored, tmp_path, "subgroup_auc", background="mean_of_groups")
    assert set(lacking["value"]) == {None}
    assert set(lacking["reason"].str.contains("which a mean of groups does not have")) == {True}
    assert measured(scored, tmp_path, "subgroup_auc", background="pooled")["value"].count() > 0


@pytest.mark.parametrize(
    ("columns", "names", "options", "message"),
    [
        (pl.all(), ["fpde"], {}, "no metric 'fpde'; did you mean fped"),
        (pl.exclude("score"), ["ece"], {}, "needs scores: neither `score` nor `scores` is there"),
        (pl.exclude("template_id"), ["counterfactual_gap"], {}, "neither `source_id` nor `templa"),
        (pl.exclude("group"), [], {}, "lacks the column group"),
        (pl.exclude("pred", "score"), [], {}, r"lacks the column pred \(or score\)"),
        (pl.all(), ["negative_fpr"], {}, "negative, neutral and positive labels, not of labels of"),
        (pl.all(), [], {"positive": 2}, "no label is '2'; choose the class from"),
        (pl.all(), [], {"background": "mean"}, "no background 'mean'"),
        (pl.all(), [], {"background": "reference:x"}, "no group 'x'.*groups are a, b, c"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    columns: pl.Expr, names: list[str], options: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(RaybiasError, match=message) as caught:
        measured(answered().select(columns), tmp_path, *names, out=tmp_path / "out", **options)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("label,group,pred\n1,a,0\n1,a,x\n", "row 2: pred 'x' is no number, as others are"),
        ("label,group,score\n2,a,0.5\n", "the labels do not tell which: label has 2; name the"),
        ('label,group,pred,scores\n1,a,1,"[0.1, 0.9]"\n', "cannot be read as predictions"),
        ("label,group,pred\n", "holds no predictions"),
        ("", "is empty"),
    ],
)
def test_a_malformed_table_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(RaybiasError, match=message):
        raybias.measure(tmp_path / "x.csv", kind="predictions")


def test_metrics_agree_as_their_ranks_do(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    answered(8, templates=12).write_csv(path)
    found = raybias.measure(path, metric=["tpr", "fnr", "fpr"])
    table = found.filter(score="agreement")
    w = dict(table.select("group", "value").iter_rows())
    # What is missed more is found less, and less of that is worse.
    assert w["tpr, fnr"] == 1
    ranks = [of_metrics(found).filter(score=name).sort("group")["value"].to_numpy()
             for name in ("tpr", "fpr")]  # fmt: skip
    rho = scipy_stats.spearmanr(*ranks).statistic
    assert w["tpr, fpr"] == pytest.approx((1 + rho) / 2)
    assert table["low"].null_count() == 0


def test_kendalls_w_is_the_textbooks_with_and_without_ties() -> None:
    # Siegel and Castellan 1988: m = 3 judges, 6 applicants; ties: Kendall's correction by hand.
    plain = np.array([[1, 6, 3, 2, 5, 4], [1, 5, 6, 4, 2, 3], [6, 3, 2, 5, 4, 1]], float)
    tied = np.array([[1, 2, 2, 4], [1, 1, 3, 4]], float)
    sums = np.array([2.5, 4, 5.5, 8])
    s = ((sums - sums.mean()) ** 2).sum()
    corrected = 12 * s / (4 * (64 - 4) - 2 * (6 + 6))
    assert kendalls_w(plain[None])[0] == pytest.approx(0.162, abs=5e-4)
    assert kendalls_w(tied[None])[0] == pytest.approx(corrected)


@pytest.mark.filterwarnings("ignore:.*answers hold no label")
def test_scores_of_three_classes_and_both_readings_of_answers(tmp_path: Path) -> None:
    table = prompted(runs=2, same_scores=True).filter(pl.col("run_id") == "m0.s0")
    table.write_parquet(tmp_path / "ours.parquet")
    estimates = raybias.measure(tmp_path / "ours.parquet", metric=["ece", "tpr"], positive=1)
    found = of_metrics(estimates)
    logits = np.array(table["scores"].to_list(), float)
    score = np.exp(logits[:, 1]) / np.exp(logits).sum(axis=1)
    mine = table.select("label", "group").with_columns(
        label=(pl.col("label") == 1).cast(pl.Int16), score=pl.Series(score)
    )
    expected = values(measured(mine, tmp_path, "ece"))
    for method in ("few_shot", "few_shot+likelihood"):
        of_method = found.filter(method=method)
        assert values(of_method.filter(score="ece")) == pytest.approx(expected)
    assert found.filter(score="tpr")["method"].n_unique() == 2


def test_a_study_has_those_of_counts_and_says_where_the_others_are(tmp_path: Path) -> None:
    table = predictions(models=1, runs=2, terms=True)
    table.write_parquet(tmp_path / "ours.parquet")
    names = ["tpr", "fped", "counterfactual_flip_rate"]
    there = judged_files([tmp_path / "ours.parquet"], metrics=names)
    alone = of_metrics(raybias.measure(tmp_path / "ours.parquet", metric=names))
    study = metrics_of_cells(there.counts.cells, there.inside, there.rules).filter(
        ~pl.col("score").str.ends_with("_less_noise")
    )
    rest = alone.filter(pl.col("score") != "tpr")
    assert study["score"].to_list() == rest["score"].to_list()
    for column in ("group", "value", "condition"):
        assert study[column].to_list() == rest[column].to_list()
    assert set(there.gaps["score"]) == {"tpr"}
    for refused, message in (
        (["tpr", "ece"], "of scores.*run `raybias measure OUT --metric ece`"),
        (["fped"], "none has a gap for each group; add one that has, such as negative_fpr"),
    ):
        with pytest.raises(RaybiasError, match=message):
            judged_files([tmp_path / "ours.parquet"], metrics=refused)


def test_the_page_lists_every_metric_and_source() -> None:
    names = ("metrics.md", "papers.md")
    page, papers = ((ROOT / "docs" / name).read_text("utf-8") for name in names)
    # Those of other tests have no source.
    listed = listed_metrics().filter(pl.col("source") != "")
    assert markdown(listed) in page
    keys = {key.strip() for text in listed["source"] for key in text.split(",") if key}
    assert len(keys) > 10
    assert all(f"| {key} |" in page + papers for key in keys)
