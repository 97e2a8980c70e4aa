"""How often significant gaps are significant again: what significance by scope does not say.

Studies of six groups and two rates, five runs, 57 templates and words, with variances as on the
published Regard predictions (`calibrate.py`) and true gaps of a standard deviation of .03.
Each study is repeated with what its scope draws anew: other seeds on the same sentences, other
seeds and sentences, or other words too. Told are, of the gaps that survive the correction for many
tests, how many are significant (p < .05) in the repetition with the same sign, and how many survive
there; and of gaps as large as `mde`, the size that a single test finds four times in five, how many
are significant, and how many survive.

    python benchmarks/again.py --studies 300

It needs no model, and measures no time.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import typer
from calibrate import Design, WordTables
from scipy.special import ndtri
from scipy.stats import false_discovery_control
from tabulate import tabulate

from raybias.stats.scopes import SCOPES, Scope

RATES, SIZE = 2, 0.03
Arrays = dict[str, np.ndarray]


def effects(random: np.random.Generator, d: Design, tables: int, scope: Scope | None) -> Arrays:
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


def judged(
    random: np.random.Generator, d: Design, parts: Arrays, gap_NG: np.ndarray, scope: Scope
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the gaps [N, G], their p and their `mde` under a scope."""
    level_NW = ndtri(d.rate + gap_NG)[:, d.group_W] + parts["word"]
    fixed_NWRT = (level_NW[..., None] + parts["template"])[:, :, None] + parts["run"][..., None]
    noise = random.standard_normal(fixed_NWRT.shape, np.float32) * np.float32(np.sqrt(d.noise))
    hits_NWRT = (fixed_NWRT + noise > 0).astype(np.int64)
    items = np.ones((*hits_NWRT.shape[:2], d.templates), np.int64)
    group_NW = np.broadcast_to(d.group_W, hits_NWRT.shape[:2])
    rows = []
    for table, words in WordTables(hits_NWRT, items, group_NW).tables():
        found = table.estimates(words)[scope]
        rows.append((found.mean, found.p_value(), found.detectable(0.95)))
    mean, p, shows = np.swapaxes(np.array(rows), 0, 1)
    return mean, p, shows


def survives(p_NG: np.ndarray) -> np.ndarray:
    """Correct by Benjamini-Hochberg over the gaps of each study."""
    of_study = np.nan_to_num(p_NG, nan=1.0).reshape(-1, RATES * p_NG.shape[1])
    return (false_discovery_control(of_study, axis=1) <= 0.05).reshape(p_NG.shape)


def main(studies: Annotated[int, typer.Option(help="Studies a row.")] = 300) -> None:
    """Simulate studies and their repetitions."""
    d, rows = Design("again"), []
    for scope in SCOPES:
        random = np.random.default_rng(7)
        tables = RATES * studies
        gap_NG = random.normal(0, SIZE, (tables, len(d.words)))
        gap_NG -= gap_NG.mean(axis=1, keepdims=True)
        first = effects(random, d, tables, None)
        one, p_one, shows = judged(random, d, first, gap_NG, scope)
        second = first | effects(random, d, tables, scope)
        other, p_other, _ = judged(random, d, second, gap_NG, scope)
        same = np.sign(one) == np.sign(other)
        kept, again = survives(p_one), survives(p_other)
        # One group of every table as far out as `mde` says, the others as they are.
        planted = gap_NG.copy()
        planted[:, 0] = float(np.nanmedian(shows))
        _, p_planted, _ = judged(random, d, effects(random, d, tables, None), planted, scope)
        rows.append(
            (scope, int(kept.sum()) / studies, ((p_other < 0.05) & same)[kept].mean(),
             (again & same)[kept].mean(), float(np.nanmedian(shows)),
             (p_planted[:, 0] < 0.05).mean(), survives(p_planted)[:, 0].mean())
        )  # fmt: skip
    headers = ("scope", "survivors a study", "of them significant again", "survive again",
               "mde", "of gaps so large significant", "survive")  # fmt: skip
    print(tabulate(rows, headers=headers, floatfmt=".3f"))


if __name__ == "__main__":
    typer.run(main)
