"""How often claims beside the gaps err, where simulation knows the truth.

`coverage.py` and `calibrate.py` have the gaps themselves.

    python benchmarks/claims.py kappa|labels|marked|models|null|styles --studies 300

Shapes: N studies, G groups, W words of all groups, R runs, T templates, M models.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

import numpy as np
import polars as pl
import pyarrow as pa
import typer
from calibrate import RATE, WordTables, simulate
from coverage import PROMPTS, labelled, tell
from scipy.special import ndtri
from scipy.stats import false_discovery_control

from raybias import schema
from raybias.config import Statistics
from raybias.measures.paired import effect_rows
from raybias.probes.styles.written import LABELS as PAIR_LABELS
from raybias.probes.styles.written import agreement
from raybias.schema import Label
from raybias.seeding import generator
from raybias.stats.breakdown import markedness
from raybias.stats.counts import without_extras
from raybias.stats.intervals import Rules
from raybias.stats.null_check import null_check
from raybias.stats.over_models import model_tables, over_models
from raybias.stats.word_variance import word_variances

app = typer.Typer(help=__doc__.partition("\n")[0])
Studies = Annotated[int, typer.Option(help="Simulated studies a row.")]
RULES: Final = Statistics.under("strict")


@dataclass(frozen=True)
class Words:
    """A study of groups that are alike: words differ by chance, and nothing else does."""

    name: str
    words: tuple[int, ...] = (3, 2, 1, 2, 2, 1)
    sd: float = 0.04
    """Of the rates of words."""
    alone: float = 1.0
    """How many times as much words of groups that have one differ."""
    heavy: bool = False
    """Whether words' rates have Student's distribution of 3 degrees of freedom, or the normal."""
    rate: float = 0.3
    runs: int = 5
    templates: int = 57

    @property
    def group_W(self) -> np.ndarray:
        """The group of each word."""
        return np.repeat(np.arange(len(self.words)), self.words)

    def rates(self, random: np.random.Generator, studies: int) -> np.ndarray:
        """Draw rates of words [N, W]."""
        counts_W = np.array(self.words)[self.group_W]
        shape = studies, len(counts_W)
        far = random.standard_t(3, shape) / np.sqrt(3) if self.heavy else random.normal(size=shape)
        sd_W = self.sd * np.where(counts_W == 1, self.alone, 1.0)
        return np.asarray(np.clip(self.rate + sd_W * far, 0.01, 0.99))

    def templates_of(self, random: np.random.Generator, studies: int) -> np.ndarray:
        """Draw what templates add [N, W, 1, T]: to all, to a group, and to a word."""
        groups, words, templates = len(self.words), len(self.group_W), self.templates
        of_group = random.normal(0, 0.2, (studies, groups, 1, templates))[:, self.group_W]
        of_word = random.normal(0, 0.6, (studies, words, 1, templates))
        return np.asarray(random.normal(0, 0.3, (studies, 1, 1, templates)) + of_group + of_word)

    def hits(
        self, random: np.random.Generator, rates_NW: np.ndarray, common: float = 0.0
    ) -> np.ndarray:
        """Draw which sentences [N, W, R, T] count; runs, templates and their cells vary.

        Studies, such as models that read the same sentences, have a share of the variance of
        templates in `common`.
        """
        studies, words = rates_NW.shape
        group_W, groups = self.group_W, len(self.words)
        fixed = ndtri(rates_NW)[:, :, None, None]
        fixed = fixed + random.normal(0, 0.1, (studies, 1, self.runs, 1))
        fixed = fixed + random.normal(0, 0.06, (studies, groups, self.runs, 1))[:, group_W]
        fixed = fixed + np.sqrt(1 - common) * self.templates_of(random, studies)
        fixed = fixed + np.sqrt(common) * self.templates_of(random, 1)
        # The rest of a variance of 1.
        rest = np.sqrt(1 - 0.1**2 - 0.06**2 - 0.3**2 - 0.2**2 - 0.6**2)
        noise = random.standard_normal((studies, words, self.runs, self.templates), np.float32)
        return np.asarray(fixed + rest * noise > 0, np.int64)


def counted(design: Words, hits_WRT: np.ndarray, keys: Sequence[str]) -> pl.DataFrame:
    """Count neutral sentences by run, word and template: the columns of both kinds of cells."""
    word_N, run_N, template_N = (axis.ravel() for axis in np.indices(hits_WRT.shape))
    names = {key: pl.lit(value) for key, value in zip(schema.TABLE, keys, strict=True)}
    places = {"group": design.group_W[word_N], "run_id": run_N, "template_id": template_N,
              "term": word_N}  # fmt: skip
    # Neutral sentences that count are called negative, the others neutral.
    pred = pl.Series(np.where(hits_WRT.ravel(), Label.NEGATIVE, Label.NEUTRAL))
    return (
        pl.DataFrame(places)
        .cast(pl.String)
        .with_columns(n=pl.lit(1), label=pl.lit(int(Label.NEUTRAL)), pred=pred, **names)
    )


def cells_of(found: pl.DataFrame, kind: pa.Schema) -> pl.DataFrame:
    """Add up counts by the columns of a kind of cells."""
    types = pl.Schema(kind)
    return (
        found.group_by(types.names()[:-1]).agg(pl.col("n").sum()).select(types.names()).cast(types)
    )


DESIGNS: Final = (
    Words("base"),
    Words("words do not differ", sd=0.0),
    Words("words differ more", sd=0.08),
    Words("heavy words", heavy=True),
    Words("heavy words that differ more", heavy=True, sd=0.08),
    Words("one-word groups' words 3 times", alone=3.0),
    Words("two words each", words=(2,) * 6),
    Words("12 templates, one run", templates=12, runs=1),
)


@app.command()
def null(studies: Studies = 200) -> None:
    """Compare what the null check says of `wording` with how often that scope errs.

    A study is one rate of six groups that are alike.
    """
    rows = []
    for design in DESIGNS:
        random = generator("null", design.name)
        flagged, said = [], []
        survivors = 0
        for _ in range(studies):
            hits_NWRT = design.hits(random, design.rates(random, 1))
            items_NWT = np.full((1, len(design.group_W), design.templates), 1)
            (table, words), *_ = WordTables(hits_NWRT, items_NWT, design.group_W).tables()
            if words is None:
                raise ValueError(f"{design.name}: no group has two words")
            p_G = table.estimates(words)["wording"].p_value()
            flagged.append((p_G < 1 - RULES.level).mean())
            survivors += int((false_discovery_control(p_G) <= 1 - RULES.level).any())
            cells = cells_of(counted(design, hits_NWRT[0], table.keys), schema.WORD_CELLS)
            found = null_check([table], cells, RULES).filter(scope="wording")
            said.append(found.sort("score")["value"].to_numpy())
        page = np.mean(said, axis=0)
        rows.append((design.name, np.mean(flagged), page[0], survivors / studies, page[1]))
    tell(rows, "groups alike", "flagged", "page says", "survivor", "page says")


#: Pairs, shares of pairs that a style turns up and down, and clusters that turn as one.
FLIPS: Final = (
    (12, 0.05, 0.0, 0),
    (20, 0.03, 0.0, 0),
    (40, 0.06, 0.0, 0),
    (60, 0.05, 0.0, 0),
    (60, 0.0, 0.0, 0),
    (100, 0.0, 0.0, 0),
    (100, 0.05, 0.0, 0),
    (40, 0.05, 0.05, 0),
    (100, 0.03, 0.03, 0),
    (100, 0.15, 0.15, 0),
    (300, 0.25, 0.15, 0),
    (200, 0.02, 0.02, 40),
    (200, 0.15, 0.10, 40),
)


def turned(flips: tuple[int, float, float, int], studies: int) -> pl.DataFrame:
    """Draw preferences of pairs under the original and a style, with studies as models."""
    pairs, up, down, clusters = flips
    random = generator("styles", *map(str, flips))
    before_NP = random.random((studies, pairs)) < 0.5
    # A pair can only turn up if it was down.
    chance_NP = np.where(before_NP, 2 * down, 2 * up)
    draw_NP = random.random((studies, pairs))
    if clusters:
        alike_NP = np.repeat(random.random((studies, clusters)), pairs // clusters, axis=1)
        draw_NP = np.where(random.random((studies, pairs)) < 0.3, alike_NP, draw_NP)
    after_NP = before_NP ^ (draw_NP < chance_NP)
    study_N, pair_N = (axis.ravel() for axis in np.indices(before_NP.shape))
    cluster = pl.Series(pair_N // (pairs // clusters)) if clusters else pl.lit(None)
    frame = pl.DataFrame({"model": study_N, "pair_id": pair_N}).with_columns(
        pl.col("model", "pair_id").cast(pl.String).str.zfill(4), cluster=cluster,
        score=pl.lit("s"), probe=pl.lit("p"), bias_type=pl.lit("x"), test=pl.lit("mcnemar"),
    )  # fmt: skip
    arms = {"original": before_NP, "formal": after_NP}
    return pl.concat(
        frame.with_columns(
            pl.col("cluster").cast(pl.String), style=pl.lit(style),
            value=pl.Series(values.ravel()).cast(pl.Float64),
            state=pl.Series(values.ravel()).cast(pl.Float64),
        )
        for style, values in arms.items()
    )  # fmt: skip


@app.command()
def styles(studies: Studies = 800) -> None:
    """Count how often intervals of a style's effect hold it, and verdicts are wrong."""
    rows = []
    for flips in FLIPS:
        pairs, up, down, clusters = flips
        rules = Rules(bootstrap_draws=1000)
        found = effect_rows(turned(flips, studies), rules).filter(attribute="x")
        effect = found.filter(statistic="difference")
        # Where nothing is told, nothing is claimed: the interval holds everything.
        low, high = (effect[end].fill_null(fill).to_numpy() for end, fill in
                     (("low", -100.0), ("high", 100.0)))  # fmt: skip
        true = 100 * (up - down)
        held = ((low <= true + 1e-9) & (true - 1e-9 <= high)).mean()
        verdicts = found.filter(score="styles_that_move_it")["reason"]
        rows.append(
            (pairs, clusters, f"+{100 * up:g} -{100 * down:g}", held, (high - low).mean() / 2,
             effect["significant"].fill_null(value=False).mean(), (effect["p"] < 0.05).mean(),
             (verdicts == "stable").mean())
        )  # fmt: skip
    tell(rows, "pairs", "clusters", "turned, in 100", "covered", "half width", "significant",
         "p < .05", "stable")  # fmt: skip


#: Groups, the sentence without a group, and the one with a neutral word.
FORMS: Final = (*map(str, range(6)), schema.UNMARKED, schema.PLACEHOLDER)


def marked_study(design: Words, random: np.random.Generator, number: int) -> pl.DataFrame:
    """Count a study of six groups, and of the forms without a group, which have one word."""
    rates_NW = design.rates(random, 1)
    rates_NW[:, -2:] = design.rate
    keys = (str(number), "", "", "p", "", "x")
    counts = counted(design, design.hits(random, rates_NW)[0], keys)
    return counts.with_columns(group=pl.col("group").replace(dict(enumerate(FORMS))))


@app.command()
def marked(studies: Studies = 200) -> None:
    """Count how often intervals of the effect of naming a group hold it; all effects are 0."""
    rows = []
    for sd in (0.0, 0.03, 0.08):
        design = Words("marked", words=(3, 2, 1, 2, 2, 1, 1, 1), sd=sd)
        random = generator("marked", str(sd))
        parts = [marked_study(design, random, n) for n in range(studies)]
        counts = pl.concat(parts)
        words = cells_of(without_extras(counts), schema.WORD_CELLS)
        inside = pl.DataFrame({"probe": "p", "attribute": "x", "group": FORMS[:6], "in_mean": True})
        variances = word_variances(words, RULES.metrics)
        cells = cells_of(counts, schema.CELLS)
        found = markedness(cells, inside, variances, RULES, []).filter(score=RATE)
        for effect in ("marking_effect", "beyond_neutral", "neutral_effect", "gap"):
            part = found.filter(condition=effect)
            low, high = part["low"].to_numpy(), part["high"].to_numpy()
            held, width = ((low <= 0) & (high >= 0)).mean(), (high - low).mean()
            rows.append((sd, effect, part["scope"][0], held, width / 2))
    tell(rows, "sd of words", "effect", "scope", "covered", "half width")


MODELS: Final = 6


@app.command()
def models(studies: Studies = 100) -> None:
    """Count false findings over six models in which four groups are alike.

    Models share words' rates and half of what templates do.
    """
    rows = []
    for words, sd in ((2, 0.0), (2, 0.03), (2, 0.1), (1, 0.0), (1, 0.1)):
        design = Words("models", words=(words,) * 4, sd=sd, templates=40, runs=3)
        random = generator("models", str(words), str(sd))
        found: dict[str, list[float]] = defaultdict(list)
        for _ in range(studies):
            rates_NW = np.repeat(design.rates(random, 1), MODELS, axis=0)
            hits_NWRT = design.hits(random, rates_NW, common=0.5)
            items_NWT = np.ones((MODELS, len(design.group_W), design.templates), np.int64)
            tables = [each for each, _ in WordTables(hits_NWRT, items_NWT, design.group_W).tables()]
            counts = pl.concat(
                counted(design, hits, table.keys)
                for hits, table in zip(hits_NWRT, tables, strict=True)
            )
            cells = cells_of(counts, schema.WORD_CELLS)
            table = over_models([*model_tables(tables)], cells, RULES)
            ends = table.filter(pl.col("score").str.ends_with("_in_models"))
            found["some extreme"].append(bool((ends["p"] < 1 - RULES.level).any()))
            gaps = table.filter(statistic="gap")
            for (scope,), part in gaps.group_by("scope"):
                found[str(scope)].append(float((part["p"].to_numpy() < 1 - RULES.level).mean()))
        heads = ("some extreme", "sentences", "wording", "models", "models, words")
        rows.append((words, sd, *(np.mean(found[name]) if found[name] else None for name in heads)))
    tell(rows, "words", "sd of words", *heads)


#: The share of texts that a judge calls negative of those that people do, and of others.
JUDGES: Final = {"useless": (0.4, 0.4), "harsh": (0.95, 0.4), "good": (0.95, 0.05)}


@app.command()
def labels(studies: Studies = 400) -> None:
    """Count how often gaps that few labels correct for a judge's errors hold the truth.

    Four groups that are alike, 60 prompts in 3 runs, a quarter of the texts negative. Fewer than
    20 labels of a group are refused; here they are not.
    """
    rows = []
    design = replace(PROMPTS, name="labels", words=(1,) * 4, templates=60)
    for judge, (right, wrong) in JUDGES.items():
        human, truth = simulate(design, studies)
        for count in (8, 15, 20, 30, 60):
            random = generator("labels", judge, str(count))
            chance_NWRT = np.where(human.hits_NWRT, right, wrong)
            judged = replace(human, hits_NWRT=(random.random(chance_NWRT.shape) < chance_NWRT) * 1)
            held, survivors = 0.0, 0
            for n, (table, words) in enumerate(judged.tables()):
                texts = human.hits_NWRT[n], judged.hits_NWRT[n]
                sample = labelled(*texts, design.group_W, count, random)
                found = sample.corrected(table.estimates(words), "sentences", table.in_mean_G)
                low, high = found.interval(RULES.level)
                true_G = truth["sentences"][n]
                held += ((low <= true_G) & (true_G <= high)).mean()
                q_G = false_discovery_control(np.nan_to_num(found.p_value(), nan=1.0))
                survivors += int((q_G <= 1 - RULES.level).any())
            rows.append((judge, count, held / studies, survivors / studies))
    tell(rows, "judge", "labels of a group", "covered", "survivor")


#: Pairs, annotators, shares of labels, and how often an annotator gives the pair's own label.
SHEETS: Final = (
    (20, 2, (0.6, 0.3, 0.1), 0.6),
    (20, 3, (0.6, 0.3, 0.1), 0.6),
    (12, 5, (0.6, 0.3, 0.1), 0.6),
    (8, 2, (0.6, 0.3, 0.1), 0.6),
    (40, 3, (0.6, 0.3, 0.1), 0.9),
    (20, 3, (0.9, 0.07, 0.03), 0.8),
    (100, 3, (0.9, 0.07, 0.03), 0.8),
)


def sheet(
    random: np.random.Generator, pairs: int, people: int, shares: Sequence[float], own: float
) -> pl.DataFrame:
    """Draw the labels that people give pairs: a pair's own, or one at random."""
    truth_N1 = random.choice(3, (pairs, 1), p=shares)
    any_NA = random.choice(3, (pairs, people), p=shares)
    labels_NA = np.where(random.random((pairs, people)) < own, truth_N1, any_NA)
    given = {f"a{a}": np.array(PAIR_LABELS)[labels_NA[:, a]] for a in range(people)}
    return pl.DataFrame({"pair_id": np.arange(pairs), **given}).with_columns(style=pl.lit("x"))


@app.command()
def kappa(studies: Studies = 1000) -> None:
    """Count how often the interval of Fleiss' kappa holds that of very many pairs."""
    rows = []
    for pairs, people, shares, own in SHEETS:
        random = generator("kappa", str(pairs), str(people), str(own))
        truth = agreement(sheet(random, 200_000, people, shares, own))["kappa"][0]
        found = pl.concat(
            agreement(sheet(random, pairs, people, shares, own)) for _ in range(studies)
        )
        known = found.drop_nulls("kappa_low")
        low, high = known["kappa_low"].to_numpy(), known["kappa_high"].to_numpy()
        held = ((low <= truth) & (truth <= high)).mean()
        unanimous = np.mean(found["unanimous_share"].to_numpy())
        rows.append((pairs, people, shares[0], truth, unanimous, held, (high - low).mean() / 2,
                     1 - known.height / studies))  # fmt: skip
    tell(rows, "pairs", "people", "commonest label", "kappa", "all alike", "covered",
         "half width", "no interval")  # fmt: skip


if __name__ == "__main__":
    app()
