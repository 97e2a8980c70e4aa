"""How often verdicts and intervals err, where simulation knows the truth.

`calibrate.py` has the coverage of the intervals of gaps; it simulates with variances as on Regard.

    python benchmarks/coverage.py again|compare|judges|looks|metrics|units --studies 300
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import polars as pl
import typer
from calibrate import Design, WordTables, simulate
from scipy.special import ndtri
from scipy.stats import false_discovery_control
from tabulate import tabulate

import raybias
from raybias import schema
from raybias.config import Statistics
from raybias.config.policy import load_policy
from raybias.measures.compare import COMPARED
from raybias.measures.compare_gaps import Blend, Family, changes
from raybias.measures.entries import options
from raybias.measures.entries import triples as of_triples
from raybias.measures.kind import Sums
from raybias.measures.prediction_rows import gap_rows
from raybias.probes.sampling import sample_items
from raybias.report.policy import decided
from raybias.seeding import generator
from raybias.stats.bootstrap import draw_counts, gap_intervals
from raybias.stats.components import Doubles
from raybias.stats.foreign import read_paper_tsv
from raybias.stats.intervals import unit_intervals, without_each
from raybias.stats.judged import JudgeSample
from raybias.stats.looks import level_of_each
from raybias.stats.metric_table import measure
from raybias.stats.scopes import SCOPES, GapTable, Scope

app = typer.Typer(help=__doc__.partition("\n")[0])
Studies = Annotated[int, typer.Option(help="Simulated studies a row.")]
Random = np.random.Generator
Arrays = dict[str, np.ndarray]


def tell(rows: Sequence[Sequence[object]], *headers: str) -> None:
    """Print a Markdown table."""
    print(tabulate(rows, headers=headers, tablefmt="pipe", floatfmt=".3f"))


RATES, SIZE = 2, 0.03


def effects(random: Random, d: Design, tables: int, scope: Scope | None) -> Arrays:
    """Draw what a scope draws anew, all of it where there is none."""
    words, groups = len(d.group_W), len(d.words)

    def drawn(variance: float, *shape: int) -> np.ndarray:
        return random.normal(0, np.sqrt(variance), (tables, *shape)).astype(np.float32)

    found = {"run": drawn(d.run, 1, d.runs) + drawn(d.run_group, groups, d.runs)[:, d.group_W]}
    if scope != "runs":
        of_group = drawn(d.template_group, groups, d.templates)[:, d.group_W]
        common = drawn(d.template, 1, d.templates)
        found["template"] = common + of_group + drawn(d.word_template, words, d.templates)
    if scope in ("wording", None):
        found["word"] = drawn(d.word, words)
    return found


def verdicts(
    random: Random, d: Design, parts: Arrays, gap_NG: np.ndarray, scope: Scope
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the gaps [N, G], their p and their `mde` under a scope."""
    level_NW = ndtri(d.rate + gap_NG)[:, d.group_W] + parts["word"]
    fixed_NWRT = (level_NW[..., None] + parts["template"])[:, :, None] + parts["run"][..., None]
    noise = random.standard_normal(fixed_NWRT.shape, np.float32) * np.float32(np.sqrt(d.noise))
    hits_NWRT = (fixed_NWRT + noise > 0).astype(np.int64)
    items = np.ones((*hits_NWRT.shape[:2], d.templates), np.int64)
    rows = []
    for table, words in WordTables(hits_NWRT, items, d.group_W).tables():
        found = table.estimates(words)[scope]
        rows.append((found.mean, found.p_value(), found.detectable(0.95)))
    mean, p, shows = np.swapaxes(np.array(rows), 0, 1)
    return mean, p, shows


def survives(p_NG: np.ndarray, level: float = 0.95) -> np.ndarray:
    """Correct by Benjamini-Hochberg over the gaps of each study."""
    of_study = np.nan_to_num(p_NG, nan=1.0).reshape(-1, RATES * p_NG.shape[1])
    return (false_discovery_control(of_study, axis=1) <= 1 - level).reshape(p_NG.shape)


@app.command()
def again(studies: Studies = 300) -> None:
    """How often significant gaps are significant again: what significance by scope does not say.

    Each study of six groups and two rates, with true gaps of a standard deviation of .03, is
    repeated with what its scope draws anew. Told are, of the survivors, how many are significant
    there with the same sign, and how many survive; and the same of gaps as large as `mde`.
    """
    d, rows, tables = Design("again"), [], RATES * studies
    for scope in SCOPES:
        random = np.random.default_rng(7)
        gap_NG = random.normal(0, SIZE, (tables, len(d.words)))
        gap_NG -= gap_NG.mean(axis=1, keepdims=True)
        first = effects(random, d, tables, None)
        one, p_one, shows = verdicts(random, d, first, gap_NG, scope)
        second = first | effects(random, d, tables, scope)
        other, p_other, _ = verdicts(random, d, second, gap_NG, scope)
        same, kept = np.sign(one) == np.sign(other), survives(p_one)
        # One group of every table as far out as `mde` says, the others as they are.
        planted = gap_NG.copy()
        planted[:, 0] = float(np.nanmedian(shows))
        _, p_planted, _ = verdicts(random, d, effects(random, d, tables, None), planted, scope)
        rows.append(
            (scope, int(kept.sum()) / studies, ((p_other < 0.05) & same)[kept].mean(),
             (survives(p_other) & same)[kept].mean(), float(np.nanmedian(shows)),
             (p_planted[:, 0] < 0.05).mean(), survives(p_planted)[:, 0].mean())
        )  # fmt: skip
    tell(rows, "scope", "survivors a study", "of them significant again", "survive again", "mde",
         "of gaps so large significant", "survive")  # fmt: skip


#: Templates of the first of three looks, and the level of each.
FIRST, EACH = 57, level_of_each(3)


@app.command()
def looks(
    studies: Studies = 400,
    files: Annotated[list[Path] | None, typer.Option(help="Kohankhaki2024's files.")] = None,
) -> None:
    """How often audits of three looks find a gap where there is none, and how much they read.

    Each look doubles the templates, and ends an audit of six groups and two rates where a gap
    survives the correction. Under `sentences` words do not vary, so that no gap is there but the
    planted one. Published files are read in samples as an audit draws them.
    """
    rows = []
    for scope, gaps in product(SCOPES[1:], (None, (0.1, *[-0.02] * 5))):
        design = Design("looks", templates=4 * FIRST, word=0.003 * (scope == "wording"))
        drawn, _ = simulate(design, RATES * studies, gaps=gaps)
        found_LN, whole_LN = np.zeros((2, 3, studies), bool)
        for look in range(3):
            hits, items = drawn.hits_NWRT, drawn.items_NWT[..., : FIRST << look]
            tables = WordTables(hits[..., : FIRST << look], items, design.group_W).tables()
            p_NG = np.array([table.estimates(words)[scope].p_value() for table, words in tables])
            for found_N, level in ((found_LN[look], EACH), (whole_LN[look], 0.95)):
                found_N[:] = survives(p_NG, level).reshape(studies, -1).any(axis=1)
        ended_N = np.argmax([*found_LN[:2], np.ones(studies, bool)], axis=0)
        shares = found_LN.any(axis=0), whole_LN[-1], 2.0 ** (ended_N - 2)
        rows.append((scope, gaps is not None, *(each.mean() for each in shares)))
    tell(rows, "scope", "a gap of .1", "found by three looks", "by one at 95%", "share read")
    heads = (
        "classifier",
        *(f"survivors in {part}" for part in ("1/4", "1/2", "all", "all at 95%")),
    )
    tell([row for file in files or () for row in replayed(file)], *heads, "of gaps")


def replayed(file: Path) -> Iterator[tuple[object, ...]]:
    """Yield how many gaps survive at each look, and in all of a file at 95%."""
    rows = read_paper_tsv(file.read_bytes(), name=file.name, where=str(file))
    for (model,), part in rows.group_by("model", maintain_order=True):
        items = part.filter(run_id=part["run_id"][0]).with_columns(text="item_id")
        q_L = []
        for size in (items.height >> 2, items.height >> 1, items.height):
            some = sample_items(items, size, source="regard").select("item_id")
            found = raybias.measure(part.join(some, on="item_id", how="semi"), scope="sentences")
            q_L.append(gap_rows(found, "sentences").drop_nulls("significant")["q"].to_numpy())
        yield model, *((q <= 1 - EACH).sum() for q in q_L), (q_L[-1] <= 0.05).sum(), len(q_L[-1])


#: Runs of the base and of the candidate; how much runs vary; templates.
ARMS: Final = ((5, 5, 1.0, 57), (2, 3, 1.0, 57), (2, 3, 2.0, 57), (40, 40, 1.0, 200))
#: A policy with two margins for the two rates.
RULES: Final = load_policy(
    {"rules": [{"name": f"rate{k}", "score": f"rate{k}", "tier": "critical", "margin": margin}
               for k, margin in enumerate((0.02, 0.05))]}
)  # fmt: skip
EQUAL_GAPS: Final = (0.1, -0.1, 0.1, -0.1, 0.1, -0.1)


def family(table: GapTable, base: int, rate: int) -> Family:
    """Deal the runs of one table to two arms with seeds of their own."""
    one, other = (
        replace(table, values_GRT=part, score=f"rate{rate}")
        for part in np.split(table.values_GRT, [base], axis=1)
    )

    def blend(*weights: float) -> Blend:
        parts = zip(weights, (one, other), strict=True)
        # Words are the same in both arms and cancel in a change.
        return Blend(tuple(replace(t, values_GRT=w * t.values_GRT) for w, t in parts), None)

    return Family(one, other, blend(-1.0, 1.0), blend(0.5, 0.5))


@app.command()
def compare(studies: Studies = 400) -> None:
    """How often `raybias compare` errs, in simulated arms that are alike but for their seeds.

    Both answer the same sentences about six groups, which all have a gap of a tenth, at two rates.
    """
    shown, rules = [], Statistics.under("strict", scope="sentences")
    for base, candidate, more, templates in ARMS:
        name = f"{base} and {candidate}, {more}"
        plain = Design(name, runs=base + candidate, templates=templates)
        design = replace(plain, run=plain.run * more, run_group=plain.run_group * more)
        drawn, _ = simulate(design, RATES * studies, gaps=EQUAL_GAPS)
        tables = [table for table, _ in drawn.tables()]
        false = held = 0
        said: Counter[str] = Counter()
        for first in range(0, len(tables), RATES):
            study = tables[first : first + RATES]
            arms = [family(each, base, k) for k, each in enumerate(study)]
            rows = changes(arms, rules, margin=0)
            false += any(row["verdict"] in ("worse", "better") for row in rows)
            held += all(float(str(row["low"])) <= 0 <= float(str(row["high"])) for row in rows)
            made = {m: pl.DataFrame(changes(arms, rules, margin=m), COMPARED) for m in (0.02, 0.05)}
            said[decided(RULES, made.__getitem__, ["group"]).verdict] += 1
        outcomes = (said[each] / studies for each in ("no-go", "inconclusive", "go"))
        shown.append((name, templates, false / studies, held / studies, *outcomes))
    heads = ("runs, variance", "templates", "a false verdict", "all bands hold", "no-go")
    tell(shown, *heads, "inconclusive", "go")


GAPS: Final = (0.05, -0.05, 0.1, -0.1, 0.0, 0.0)
PROMPTS: Final = Design(
    "prompts", rate=0.25, runs=3, words=(1,) * 6, word=0.0, word_template=0.0, templates=57
)
WORDS: Final = Design("words", rate=0.25, runs=3, words=(3, 2, 2, 2, 2, 2))
#: Shares of the texts of each group that a judge calls negative: rightly, and wrongly.
JUDGES: Final = {
    "errs by group": ((0.8, 0.6, *(0.8,) * 4), (0.25, 0.08, *(0.1,) * 4)),
    "errs alike": ((0.8,) * 6, (0.1,) * 6),
    "good": ((0.95, 0.9, *(0.95,) * 4), (0.06, 0.02, *(0.02,) * 4)),
}
#: What is simulated, who judges, and how many texts of a group people label.
CASES: Final[tuple[tuple[Design, str, int], ...]] = (
    *((PROMPTS, "errs by group", labels) for labels in (20, 30, 50, 100)),
    (PROMPTS, "errs alike", 30),
    (PROMPTS, "good", 20),
    (PROMPTS, "good", 50),
    (replace(PROMPTS, name="rare", rate=0.12), "errs by group", 30),
    (replace(PROMPTS, name="many", templates=400), "errs by group", 30),
    (replace(PROMPTS, name="few", templates=12, runs=10), "errs by group", 30),
    (WORDS, "errs by group", 50),
)


def labelled(
    human_WRT: np.ndarray, judged_WRT: np.ndarray, group_W: np.ndarray, labels: int, random: Random
) -> JudgeSample:
    """Draw the texts of each group that people label."""
    group_N = np.broadcast_to(group_W[:, None, None], human_WRT.shape).ravel()
    groups = np.unique(group_W)
    place_N = np.concatenate(
        [random.choice(np.flatnonzero(group_N == g), labels, False) for g in groups]
    )
    judged, human = (each.ravel()[place_N].astype(float) for each in (judged_WRT, human_WRT))
    template_N = place_N % human_WRT.shape[2]
    return JudgeSample(judged, human, np.repeat(np.arange(len(groups)), labels), template_N)


@app.command()
def judges(studies: Studies = 2000) -> None:
    """How often intervals hold the true gap where a judge that errs labels the texts.

    Told are, over groups, the mean and lowest share of 95% intervals that hold the true gap: of the
    judge's verdicts alone, and corrected by so many texts of each group that people labelled.
    """
    rows = []
    for design, judge, labels in CASES:
        scope: Scope = "wording" if design is WORDS else "sentences"
        human, truth = simulate(design, studies, gaps=GAPS)
        random = generator(0, "judge", design.name, judge, labels)
        group_W = design.group_W
        hits_W11, false_W11 = (np.array(each)[group_W][:, None, None] for each in JUDGES[judge])
        chance_NWRT = np.where(human.hits_NWRT, hits_W11, false_W11)
        judged = replace(human, hits_NWRT=(random.random(chance_NWRT.shape) < chance_NWRT) * 1)
        held, widths = np.zeros((2, len(GAPS))), np.zeros(2)
        for n, (table, words) in enumerate(judged.tables()):
            alone = table.estimates(words)
            texts = human.hits_NWRT[n], judged.hits_NWRT[n]
            sample = labelled(*texts, group_W, labels, random)
            corrected = sample.corrected(alone, scope, table.in_mean_G)
            for place, found in enumerate((alone[scope], corrected)):
                low, high = found.interval(0.95)
                held[place] += (low <= truth[scope][n]) & (truth[scope][n] <= high)
                widths[place] += (high - low).mean()
        said = f"{design.templates} prompts x {design.runs}, rate {design.rate:g}, {scope}"
        shares = [f"{each.mean():.1%} ({each.min():.1%})" for each in held / studies]
        rows.append((said, judge, labels, *shares, *(widths / studies / 2)))
    tell(rows, "texts of a group; covers", "judge", "labelled", "verdicts alone", "corrected",
         "half width", "corrected half width")  # fmt: skip


METRICS: Final = (
    *("fped", "fpr_ratio", "fpr_range", "equalized_odds_difference", "equalized_odds_ratio"),
    *("tpr_gap", "disparity_score", "subgroup_auc", "positive_aeg", "average_group_fairness"),
    *("ece", "ece_range"),
)
GROUPS: Final = ("a", "b", "c")
EFFECTS: Final = {"groups differ": (0.0, 0.3, 0.8), "groups alike": (0.0, 0.0, 0.0)}


def examples(random: Random, runs: int, templates: int, effects: tuple[float, ...]) -> pl.DataFrame:
    """Draw two examples of each group on each template and run."""
    label_T = np.arange(templates) % 2
    latent = (
        np.array(effects)[:, None]
        + random.normal(0, 0.8, templates)[:, None, None]
        + random.normal(0, 0.3, runs)[:, None, None, None]
        + random.normal(0, 0.4, (runs, templates))[..., None, None]
        + random.normal(0, 0.3, (templates, len(GROUPS)))[..., None]
        + random.logistic(0, 0.7, (runs, templates, len(GROUPS), 2))
        + (1.6 * label_T - 0.8)[:, None, None]
    )
    score = 1 / (1 + np.exp(-latent))
    run, template, group, _ = (axis.ravel() for axis in np.indices(score.shape))
    names = {key: pl.lit("") for key in schema.KEYS}
    return pl.DataFrame(
        {"run_id": run, "unit": template, "group": np.array(GROUPS)[group],
         "label": 2 * label_T[template], "score": score.ravel(), "pred": 2 * (score.ravel() >= 0.5)}
    ).with_columns(
        pl.col("run_id", "unit").cast(pl.String), pl.col("pred").cast(pl.Int8),
        attribute=pl.lit("x"), n=pl.lit(1), **names,
    )  # fmt: skip


def estimated(table: pl.DataFrame, draws: int) -> Iterator[tuple[tuple[str, str], list[float]]]:
    """Compute value, low and high of every metric and group."""
    rules = Statistics.under("strict").model_copy(update={"bootstrap_draws": draws})
    inside = pl.DataFrame({"probe": "", "attribute": "x", "group": GROUPS, "in_mean": True})
    for each in measure(table, METRICS, inside, rules):
        for row in each.rows:
            bounds = [row.get(name, np.nan) for name in ("value", "low", "high")]
            yield (row["score"], row["group"]), bounds


@app.command()
def metrics(studies: Studies = 120, templates: int = 30, runs: int = 5) -> None:
    """How often the drawn intervals of `raybias measure` hold the truth.

    The truth is the metric of 40 runs on 400 templates.
    """
    rows: list[tuple[object, ...]] = []
    for design, effects in EFFECTS.items():
        random = np.random.default_rng(1)
        wide: dict[tuple[str, str], list[float]] = defaultdict(list)
        for _ in range(4):
            for key, (value, *_) in estimated(examples(random, 40, 400, effects), 2):
                wide[key].append(value)
        truth = {key: float(np.mean(values)) for key, values in wide.items()}
        held: dict[tuple[str, str], list[bool]] = defaultdict(list)
        for _ in range(studies):
            for key, bounds in estimated(examples(random, runs, templates, effects), 400):
                _, low, high = bounds
                if not np.isnan(low):
                    held[key].append(bool(low - 1e-12 <= truth[key] <= high + 1e-12))
        rows += [(design, *key, truth[key], np.mean(hits), len(hits)) for key, hits in held.items()]
    tell(rows, "design", "metric", "group", "truth", "held", "n")


#: Logits of an unknown answer and of following, and their standard deviations over templates.
MODELS: Final = {"undecided": (0.3, 0.8, 1.0), "often right": (2.5, 0.0, 1.5)}
#: Of the sizes of templates, on the logarithmic scale.
SPREADS: Final = {"equal": 0.0, "unequal": 0.8}
MANY: Final = 400_000


def chances(random: Random, logit: float, sd: float, units: int) -> Doubles:
    """Draw a chance for each unit."""
    return np.asarray(1 / (1 + np.exp(-random.normal(logit, sd, units))))


def answers(model: str, spread: float, random: Random, units: int) -> Doubles:
    """Count answers in ambiguous contexts by template."""
    unknown, follow, sd = MODELS[model]
    items = 4 * np.maximum(1, np.exp(random.normal(2.2, spread, units)).astype(int))
    right = random.binomial(items, chances(random, unknown, sd, units))
    following = random.binomial(items - right, chances(random, follow, sd, units))
    counts = [items, items, right, following, items - right - following]
    return np.stack(counts, axis=1).astype(float)


def summed(names: str, sums: Doubles) -> Sums:
    """Name the columns of sums [..., K]."""
    return Sums(**dict(zip(names.split(), np.moveaxis(sums, -1, 0), strict=True)))


def bias(sums: Doubles) -> list[Doubles]:
    """Compute accuracy, and bias as in ambiguous and as in disambiguated contexts."""
    counts = summed("items answered right following countering", sums)
    # On one range with the others.
    return [2 * options.accuracy(counts, counts)[0] - 1, *options.bbq(counts, counts)]


def triples(logit: float, random: Random, units: int) -> Doubles:
    """Draw the shares of each term's 27 triples, and 1."""
    means = (logit, 2.2, 2.2)
    shares = [random.binomial(27, chances(random, mean, 0.6, units)) / 27 for mean in means]
    return np.stack([*shares, np.ones(units)], axis=1)


def icat(sums: Doubles) -> list[Doubles]:
    """Compute the branches of icat."""
    return [*of_triples.icat(summed("over_anti over_unrelated anti_over_unrelated terms", sums))]


def held(
    draw: Callable[[Random, int], Doubles],
    scores: Callable[[Doubles], list[Doubles]],
    bounds: tuple[float, float],
    units: int,
    studies: int,
) -> list[str]:
    """Return the shares of studies whose intervals hold each score, and the least of them.

    First those of `unit_intervals`, then percentiles of the bootstrap over units, of which `draw`
    makes counts [U, K].
    """
    random = generator("unit_coverage", units)
    truth = np.array(scores(draw(random, MANY).sum(axis=0)))
    wanted, found = np.append(truth, truth.min()), np.zeros((2, len(truth) + 1))
    for _ in range(studies):
        counts = draw(random, units)
        values = np.array(scores(counts.sum(axis=0)))
        without = np.array(scores(without_each(counts)))
        # Terms count alike.
        sizes = np.maximum(counts[:, 0], 1)
        low, high, *_ = unit_intervals(values, [(without, sizes)], bounds, 0.95)
        found[0] += (np.append(low, low.min()) <= wanted) & (wanted <= np.append(high, high.min()))
        weights = draw_counts(random, 1000, units, units - 1)
        drawn = np.array(scores(weights @ counts))
        freedom = np.full(len(wanted), max(sizes.sum() ** 2 / (sizes**2).sum() - 1, 1))
        low, high, _p = gap_intervals(np.vstack([drawn, drawn.min(axis=0)]), freedom, 0.95)
        found[1] += (low <= wanted) & (wanted <= high)
    return [f"{one:.3f}, {other:.3f}" for one, other in zip(*found / studies, strict=True)]


@app.command()
def units(studies: Studies = 1000) -> None:
    """How often intervals of scores of options and triples hold the truth.

    The truth is what very many question templates or target terms would show, which differ in how
    often each option is chosen. A cell has jackknife and bootstrap.
    """
    rows = [
        (model, name, units, *held(partial(answers, model, spread), bias, (-1, 1), units, studies))
        for model in MODELS
        for name, spread in SPREADS.items()
        for units in (6, 12, 25, 50)
    ]
    heads = ("model", "templates", "number", "accuracy", "bias, ambig", "bias, disambig")
    tell([row[: len(heads)] for row in rows], *heads)
    print()
    tell(
        [
            (logit, terms, held(partial(triples, logit), icat, (0, 200), terms, studies)[-1])
            for logit in (0.0, 0.1, 0.4)
            for terms in (8, 36, 80)
        ],
        *("mean logit of ss", "terms", "icat"),
    )


if __name__ == "__main__":
    app()
