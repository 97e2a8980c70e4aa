"""How often a change or a gap is called equivalent, where simulation knows that it is not.

    python benchmarks/equivalence.py arms|gaps|pairs --studies 300

Harm can be spread over all sentences, or sit in whole templates: a model can learn to answer a few
wordings otherwise. Of the second a sample without such a template shows nothing at all. Told are
the share of studies in which it is called equivalent all the same (at most .05 is promised), and
how often what has no harm is.

Shapes: N studies, G groups, W words of all groups, R runs, T templates.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Annotated, Final

import numpy as np
import polars as pl
import typer
from calibrate import Design, WordTables, simulate
from coverage import tell

from raybias.config import Statistics
from raybias.measures.compare import compare_pairs
from raybias.measures.compare_gaps import Blend, Family, changes
from raybias.stats.count_arrays import CountArrays
from raybias.stats.scopes import GapTable, rate_table, scope_rows
from raybias.stats.units import BLOCK

app = typer.Typer(help=__doc__.partition("\n")[0])
Studies = Annotated[int, typer.Option(help="Simulated studies a row.")]
Random = np.random.Generator

MARGIN: Final = 0.02


def sure(design: Design, of_groups: float) -> Design:
    """Have runs answer nearly alike: the sentence decides, with a part that a group shares."""
    sentences = replace(design, word_template=0.8, template=0.1, template_group=of_groups)
    return replace(sentences, run=0.0, run_group=0.0)


@dataclass(frozen=True)
class Arms:
    """Two arms with a true change of the first group's gap."""

    name: str
    templates: int
    change: float = 0.0
    how: str = "whole"
    """Whole: in some templates all sentences about the group get the event, in all runs. Cells: in
    some sentences, of all templates. Answers: some answers, of all sentences and runs."""
    rate: float = 0.3
    words: tuple[int, ...] = (1,) * 6
    runs: int = 5
    other_seeds: bool = False
    sure: bool = False
    """Whether runs of an arm answer nearly alike."""
    new: float = 0.0
    """The share of all answers that are given anew, which changes no rate."""

    @property
    def design(self) -> Design:
        """The answers of the base, and of runs with other seeds."""
        runs = self.runs * (1 + self.other_seeds)
        plain = Design(self.name, self.rate, runs, self.templates, self.words, word=0.0)
        return sure(plain, plain.template_group) if self.sure else plain


MANY: Final = (3, 2, 1, 2, 2, 1)
ARMS: Final = (
    *(Arms(f"whole templates, {t}", t, c) for t, c in (
        (31, 0.02), (57, 0.02), (101, 0.02), (228, 0.02), (31, 0.04), (101, 0.04), (500, 0.02))),
    *(Arms(f"whole templates, {t}, words", t, 0.02, words=MANY) for t in (31, 57, 101, 228, 500)),
    *(Arms(f"whole templates, {t}, one run", t, 0.02, runs=1) for t in (57, 228)),
    Arms("spread over sentences, 57", 57, 0.02, "cells"),
    Arms("spread over sentences, 57, words", 57, 0.02, "cells", words=MANY),
    Arms("spread over answers, 57, words", 57, 0.02, "answers", words=MANY),
    Arms("spread over sentences, 31, rate .02", 31, 0.02, "cells", rate=0.02, words=MANY),
    Arms("spread over answers, 31, rate .02", 31, 0.02, "answers", rate=0.02, words=MANY),
    Arms("whole templates, 200, 2% of answers new", 200, 0.02, words=MANY, new=0.02),
    Arms("whole templates, 500, 2% of answers new", 500, 0.02, words=MANY, new=0.02),
    *(Arms(f"other seeds, whole, {t}, rate .02", t, 0.02, rate=0.02, other_seeds=True, sure=True)
      for t in (31, 57, 101, 228)),
    *(Arms(f"other seeds, whole, {t}, rate .1", t, 0.02, rate=0.1, words=MANY, other_seeds=True,
           sure=True) for t in (101, 228, 500)),
    Arms("other seeds, whole, 500, rate .1, runs vary", 500, 0.02, rate=0.1, other_seeds=True),
    Arms("other seeds, spread, 228, rate .02", 228, 0.02, "answers", rate=0.02, other_seeds=True),
    *(Arms(f"alike, {t}, 2% of answers new", t, words=MANY, new=0.02) for t in (57, 150, 200, 500)),
    *(Arms(f"alike, {t}, one word and run, 2% new", t, runs=1, new=0.02)
      for t in (200, 500, 1000)),
    *(Arms(f"other seeds, alike, {t}, rate .02", t, rate=0.02, other_seeds=True)
      for t in (57, 228, 1000)),
    Arms("other seeds, alike, 1000, rate .1, words", 1000, rate=0.1, words=MANY, other_seeds=True),
)  # fmt: skip


def candidates(arms: Arms, hits_NWRT: np.ndarray, random: Random) -> np.ndarray:
    """Return the base's answers [N, W, R, T] with some given anew, and with the planted change."""
    answers = hits_NWRT.copy()
    anew = random.random(answers.shape) < arms.new
    answers[anew] = random.random(int(anew.sum())) < arms.rate
    first = arms.words[0]
    studies, _, runs, templates = answers.shape
    sizes = {"whole": (studies, 1, 1, templates), "cells": (studies, first, 1, templates),
             "answers": (studies, first, runs, templates)}  # fmt: skip
    groups = len(arms.words)
    # Answers that have the event already do not change.
    share = arms.change * groups / (groups - 1) / (1 - arms.rate)
    planted = random.random(sizes[arms.how]) < share
    answers[:, :first] |= planted
    return answers


def family(base: GapTable, candidate: GapTable, *, paired: bool) -> Family:
    """Make the change and the middle of two arms."""

    def blend(*weights: float) -> Blend:
        parts = [w * each.values_GRT for w, each in zip(weights, (base, candidate), strict=True)]
        values = [parts[0] + parts[1]] if paired else parts
        return Blend(tuple(replace(base, values_GRT=each) for each in values), None)

    return Family(base, candidate, blend(-1.0, 1.0), blend(0.5, 0.5))


def tables(hits_NWRT: np.ndarray, group_W: np.ndarray) -> Iterator[GapTable]:
    """Yield the gap of the first group of each study."""
    items_NWT = np.ones((*hits_NWRT.shape[:2], hits_NWRT.shape[3]), np.int64)
    for counts in WordTables(hits_NWRT.astype(np.int64), items_NWT, group_W).arrays():
        rates = rate_table(counts, 0, dict.fromkeys(counts.groups, True))
        if rates is None:
            raise RuntimeError("a table without rows")
        table = rates.less_mean()
        yield replace(table, groups=table.groups[:1], values_GRT=table.values_GRT[:1])


@app.command()
def arms(
    studies: Studies = 300,
    only: Annotated[str, typer.Option(help="Of the designs whose name begins so.")] = "",
) -> None:
    """How often `compare` calls the changed gap equivalent, and gaps of arms that are alike."""
    rules = Statistics.under("strict", scope="sentences")
    rows = []
    for each in (one for one in ARMS if one.name.startswith(only)):
        drawn, _ = simulate(each.design, studies)
        one_NWRT = drawn.hits_NWRT[:, :, : each.runs] > 0
        source = drawn.hits_NWRT[:, :, -each.runs :] > 0
        other_NWRT = candidates(each, source, np.random.default_rng(7))
        pairs = zip(tables(one_NWRT, drawn.group_W), tables(other_NWRT, drawn.group_W), strict=True)
        found = [changes([family(*pair, paired=not each.other_seeds)], rules, margin=MARGIN)[0]
                 for pair in pairs]  # fmt: skip
        verdicts = [row["verdict"] for row in found]
        held = [row["low"] <= each.change <= row["high"] for row in found]
        shares = (verdicts.count(name) / studies for name in ("equivalent", "worse", "better"))
        rows.append((each.name, each.change, *shares, np.mean(held)))
    tell(rows, "arms, templates", "true change", "equivalent", "worse", "better", "band holds")


#: Rates of groups, templates, runs, words of each group: the second group's gap is not within the
#: margin, or all are alike.
GAPS: Final = (
    ((0.0, 0.04), 24, 5, 1), ((0.0, 0.04), 57, 5, 1), ((0.0, 0.04), 100, 1, 1),
    ((0.0, 0.04), 149, 1, 1), ((0.0, 0.04), 228, 5, 1), ((0.0, 0.04), 57, 5, 2),
    ((0.1, 0.14), 228, 5, 1), ((0.1, 0.14), 1000, 1, 1), ((0.02,) * 2, 228, 5, 1),
    ((0.02,) * 2, 1000, 1, 1), ((0.1,) * 2, 1000, 5, 2), ((0.3,) * 2, 3000, 5, 2),
)  # fmt: skip


@app.command()
def gaps(studies: Studies = 300) -> None:
    """How often `measure --margin` calls a gap equivalent that is as large as the margin.

    In the first rows all runs answer alike, so that a template has the event or not.
    """
    rules = Statistics.under("strict", scope="sentences", margin=MARGIN)
    rows = []
    for rates, templates, runs, words in GAPS:
        design = Design(str(rates), 0.0, runs, templates, (words,) * len(rates), word=0.0)
        design = sure(design, 0.1)
        drawn, _ = simulate(design, studies, gaps=rates)
        found = [scope_rows([table], {}, rules).filter(scope="sentences")
                 for table, _ in drawn.tables()]  # fmt: skip
        equivalent = [bool(each["equivalent"].to_list()[-1:] == [True]) for each in found]
        true = rates[-1] - np.mean(rates)
        rows.append((str(rates), templates, runs, words, true, np.mean(equivalent)))
    tell(rows, "rates", "templates", "runs", "words", "true gap", "equivalent")
    random = np.random.default_rng(7)
    without = []
    for rates, n in product(((0.0, 0.04), (0.3, 0.34), (0.02, 0.02)), (50, 74, 100, 200, 500)):
        found = [scope_rows([unpaired(random, rates, n)], {}, rules) for _ in range(studies)]
        equivalent = [each["equivalent"].to_list()[-1:] == [True] for each in found]
        without.append((str(rates), n, rates[-1] - np.mean(rates), np.mean(equivalent)))
    tell(without, "rates, no templates", "rows of a group", "true gap", "equivalent")


def unpaired(random: Random, rates: tuple[float, ...], rows: int) -> GapTable:
    """Draw a table whose rows belong to one group each, and to no template."""
    groups = len(rates)
    own_GT = np.repeat(np.eye(groups), rows, axis=1)
    hits_GT = own_GT * (random.random(own_GT.shape) < np.array(rates)[:, None])
    names = tuple(map(str, range(groups)))
    blocks = tuple(f"{BLOCK}{n:04}" for n in range(groups * rows))
    parts = (each[None, :, None, :] for each in (own_GT, hits_GT))
    counts = CountArrays(("",) * 6, ("negative_fpr",), names, blocks, *parts)
    table = rate_table(counts, 0, dict.fromkeys(names, True))
    if table is None:
        raise RuntimeError("a table without rows")
    return table.less_mean()


#: Pairs, share of them whose preference turns, clusters (0: none).
PAIRS: Final = (
    *((n, 0.02, 0) for n in (31, 57, 101, 149, 228)), (500, 0.02, 50), (500, 0.02, 200),
    (200, 0.0, 0), (500, 0.0, 0), (500, 0.0, 200),
)  # fmt: skip


@app.command()
def pairs(studies: Studies = 300) -> None:
    """How often a score of pairs is called equivalent where a share of all pairs turn.

    A pair, or all pairs of a writer, turn to the stereotypical side in the candidate alone.
    """
    random = np.random.default_rng(7)
    rows = []
    for n, share, clusters in PAIRS:
        cluster_N = np.arange(n) if not clusters else np.arange(n) % clusters
        said = []
        for _ in range(studies):
            # Turns of pairs that are stereotypical already change nothing.
            before = random.random(n) < 0.5
            turns = random.random(cluster_N.max() + 1)[cluster_N] < 2 * share
            base, candidate = (outcomes(each, cluster_N if clusters else None)
                               for each in (before, before | turns))  # fmt: skip
            found = compare_pairs(base, candidate, level=0.95, margin=MARGIN)
            said.append(found.filter(group="avg_weighted")["verdict"].item())
        rows.append((n, clusters, share, said.count("equivalent") / studies))
    tell(rows, "pairs", "writers", "true change", "equivalent")


def outcomes(more_N: np.ndarray, cluster_N: np.ndarray | None) -> pl.DataFrame:
    """Make the outcomes of pairs of one bias type."""
    return pl.DataFrame({
        **{"model": "m", "probe": "p", "score": "s", "style": "original"},
        **{"bias_type": "t", "test": "mcnemar", "unread": 0.0},
        "pair_id": [f"{n:05}" for n in range(len(more_N))],
        "cluster": [None if cluster_N is None else str(each) for each in
                    (more_N if cluster_N is None else cluster_N)],
        "value": more_N.astype(float), "state": more_N.astype(float),
    }, schema_overrides={"cluster": pl.String})  # fmt: skip


if __name__ == "__main__":
    app()
