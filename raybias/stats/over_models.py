"""Judge claims over models, and the reliability of rankings of groups and of models.

Every model has runs of its own and reads the same templates. The interval of a mean over models
covers other runs and sentences of these very models, other words too, or other models, with these
words or with others.

The reliability of a ranking (generalizability coefficient) is v / (v + error variance): v is the
variance between the ranked, estimated without bias (Brennan 2001, *Generalizability Theory*,
chapter 2). It is about the correlation of two studies like this one.

Shapes: D draws, G groups, M models, R runs, T templates, W words.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal, get_args

import numpy as np
import polars as pl

from raybias import schema
from raybias.config import Statistics
from raybias.schema import ALL, TABLE
from raybias.seeding import generator
from raybias.stats.checks import warn
from raybias.stats.components import ROUNDING, Doubles, MeanEstimate, MeanSquares, mean_squares
from raybias.stats.intervals import from_rows, verdicts
from raybias.stats.scopes import GapTable, Scope, by_group, estimates_of_sum
from raybias.stats.word_deals import WordCounts, steps, word_counts
from raybias.stats.word_variance import WordVariance, word_variances

ModelScope = Literal["sentences", "wording", "models", "models, words"]
#: How often the extremes of groups whose names are exchanged are counted.
_DRAWS: Final = 999
#: Of the keys, how many say which model it is and how it was tuned.
_TUNED: Final = 3


@dataclass(frozen=True)
class ModelTables:
    """One rate's gaps on one attribute in several models, which read the same templates."""

    tables: tuple[GapTable, ...]
    """One for each model, with the same groups."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Values of schema.KEYS and the attribute; empty where the tables differ."""
        each = zip(*(table.keys for table in self.tables), strict=True)
        return tuple(values[0] if len(set(values)) == 1 else "" for values in each)

    @property
    def names(self) -> dict[str, Any]:
        """The columns that all its rows share."""
        return {**dict(zip(TABLE, self.keys, strict=True)), "score": self.tables[0].score}

    @cached_property
    def means_GMT(self) -> Doubles:
        """Means over runs, in which every model meets every template."""
        return np.stack([table.values_GRT.mean(axis=1) for table in self.tables], axis=1)

    @cached_property
    def crossed(self) -> MeanSquares:
        """Mean squares [G] of models and templates."""
        return mean_squares(self.means_GMT, ("model", "template"))

    def estimates(self, words: WordVariance | None) -> dict[ModelScope, MeanEstimate]:
        """Estimate the mean gaps over models [G] under every scope that the design allows."""
        of_these = estimates_of_sum([each.values_GRT / len(self.tables) for each in self.tables])
        found: dict[ModelScope, MeanEstimate] = {"sentences": of_these["sentences"]}
        if words is not None:
            found["wording"] = words.added_to(found["sentences"], self.tables[0])
        found["models"] = self.crossed.estimate()
        if words is not None:
            found["models, words"] = words.added_to(found["models"], self.tables[0])
        return found

    def extremes(self, words: Sequence[WordCounts]) -> dict[str, dict[str, Doubles]]:
        """Count the models in which each group of the mean is `lowest` and `highest`, and test it.

        `value` [G] are the models, of which groups at the same end share one; `p` is the chance
        that any group is at either end in as many models or more, if groups are alike: if their
        words are dealt to them, alike in all models and runs, each with all its sentences; without
        `words`, a count for each model, if their names are exchanged in every template. NaN for a
        group that is not in the mean.
        """
        in_mean_G = self.tables[0].in_mean_G
        observed = _ends(self.means_GMT[in_mean_G].mean(axis=2))
        random = generator("extremes over models", *map(str, self.keys), self.tables[0].score)
        drawn = self._dealt(words, random) if words else self._exchanged(random)
        # One test for all groups and both ends (Westfall and Young 1993).
        most_D = np.concatenate(
            [np.max([*_ends(each_DGM).values()], axis=(0, 2)) for each_DGM in drawn]
        )
        found: dict[str, dict[str, Doubles]] = {}
        for end, counts_G in observed.items():
            reached_G = (most_D >= counts_G[:, None] - ROUNDING).sum(axis=1)
            both_2G = np.full((2, len(in_mean_G)), np.nan)
            both_2G[:, in_mean_G] = counts_G, (1 + reached_G) / (1 + _DRAWS)
            found[end] = dict(zip(("value", "p"), both_2G, strict=True))
        return found

    def _exchanged(self, random: np.random.Generator) -> Iterator[Doubles]:
        """Yield gaps [D, G, M] of groups whose names are exchanged in every template."""
        values_TGM = self.means_GMT[self.tables[0].in_mean_G].transpose(2, 0, 1)
        n_templates, n_groups, _ = values_TGM.shape
        for draws in steps(_DRAWS, values_TGM.size):
            order_DTG = random.random((draws, n_templates, n_groups)).argsort(axis=2)
            yield values_TGM[np.arange(n_templates)[:, None], order_DTG].mean(axis=1)

    def _dealt(self, words: Sequence[WordCounts], random: np.random.Generator) -> Iterator[Doubles]:
        """Yield rates [D, G, M] of groups to which words are dealt."""
        first = words[0]
        items_WM, hits_WM = (
            np.stack([each_WT.sum(axis=1) for each_WT in counts], axis=1)
            for counts in ([w.items_WT for w in words], [w.hits_WT for w in words])
        )
        for draws in steps(_DRAWS, len(first.words_G) * max(items_WM.shape)):
            dealt_DGW = first.deal(random, draws)
            yield (dealt_DGW @ hits_WM) / (dealt_DGW @ items_WM)


def model_tables(tables: Sequence[GapTable]) -> Iterator[ModelTables]:
    """Put the tables of several models together, each of which counts once.

    Models with several classifiers are put together for each method and training set. A
    StatisticsWarning names models that did not read the same sentences, which are left out.
    """
    alike: dict[tuple[str, ...], list[GapTable]] = defaultdict(list)
    for table in tables:
        alike[*table.keys[_TUNED:], table.score].append(table)
    for (*_, attribute, score), found in alike.items():
        apart: dict[tuple[str, ...], list[GapTable]] = defaultdict(list)
        once = len({table.keys[0] for table in found}) == len(found)
        for table in found:
            apart[() if once else table.keys[1:_TUNED]].append(table)
        for part in apart.values():
            if len(part) < 2 or len(part[0].templates) < 2:
                continue
            if len({(table.groups, table.templates) for table in part}) == 1:
                yield ModelTables(tuple(part))
                continue
            warn(
                f"the models did not read the same sentences and groups of {attribute} "
                f"({score}): nothing is said of them together"
            )


def over_models(
    together: Sequence[ModelTables], words: pl.DataFrame, rules: Statistics
) -> pl.DataFrame:
    """Judge the mean of every gap over models under each scope, and count its extremes.

    Gives columns of schema.ESTIMATES for the model `all`: mean gaps (units are models), and the
    scores `NAME_lowest_in_models` and `NAME_highest_in_models` of `ModelTables.extremes`, under
    `wording` if the same words are known of all models, and else under `sentences`.
    """
    counts = word_counts(words, [table for models in together for table in models.tables])
    means: list[dict[str, Any]] = []
    ends: list[dict[str, Any]] = []
    for models in together:
        groups, score = models.tables[0].groups, models.tables[0].score
        names = {**models.names, "model": ALL, "units": len(models.tables)}
        for scope, found in models.estimates(_word_variance(words, models)).items():
            low, high = found.interval(rules.level)
            columns = {"value": found.mean, "low": low, "high": high, "p": found.p_value()}
            means += by_group({**names, "statistic": "gap", "scope": scope}, groups, columns)
        known = [counts[table.place] for table in models.tables if table.place in counts]
        same = len(known) == len(models.tables) and len({each.names for each in known}) == 1
        for end, columns in models.extremes(known if same else []).items():
            named = {**names, "score": f"{score}_{end}_in_models", "statistic": "score",
                     "scope": "wording" if same else "sentences"}  # fmt: skip
            ends += by_group(named, groups, columns)
    table = from_rows(means)
    parts = [verdicts(table.filter(scope=scope), rules) for scope in get_args(ModelScope)]
    order = ["attribute", "score", "group", *schema.KEYS[1:]]
    return pl.concat([*parts, from_rows(ends)]).sort(order, maintain_order=True)


def _word_variance(words: pl.DataFrame, models: ModelTables) -> WordVariance | None:
    keys = pl.DataFrame([table.keys for table in models.tables], TABLE, orient="row")
    mine = words.cast(dict.fromkeys(TABLE, pl.String)).join(
        keys, on=TABLE, how="semi", nulls_equal=True
    )
    named = zip(TABLE[:_TUNED], models.keys, strict=False)
    mine = mine.with_columns(pl.lit(value).alias(key) for key, value in named)
    score = models.tables[0].score
    return word_variances(mine, [score]).get((*models.keys, score))


def _ends(gaps: Doubles) -> dict[str, Doubles]:
    """Count the models [..., G] in which each group is an end of gaps [..., G, M]."""
    counts = {}
    varies = np.ptp(gaps, axis=-2, keepdims=True) > ROUNDING
    for end, signed in (("lowest", gaps), ("highest", -gaps)):
        ends = varies & (signed <= signed.min(axis=-2, keepdims=True) + ROUNDING)
        counts[end] = (ends / np.maximum(1, ends.sum(axis=-2, keepdims=True))).sum(axis=-1)
    return counts


def reliability(
    tables: Sequence[GapTable],
    words: Mapping[tuple[str, ...], WordVariance],
    together: Sequence[ModelTables],
) -> pl.DataFrame:
    """Estimate the reliability of each ranking under every scope that its design allows.

    Ranked are the groups of the mean by a classifier's gaps, and the models by a group's gap. For
    models, sentences are drawn alike for all, and words are not drawn. `n` are ranked; `value` is
    s^2 / (s^2 + e^2) of the standard deviation s of the true gaps, and e of one estimate.
    """
    rows: list[dict[str, Any]] = []
    for table in tables:
        inside_G = table.in_mean_G
        # The gaps of the groups in the mean add to 0, so their errors have one degree less.
        freedom = int(inside_G.sum()) - 1
        for scope, found in table.estimates(words.get(table.place)).items() if freedom else ():
            error = float(found.variance[inside_G].sum()) / freedom
            between = float((found.mean[inside_G] ** 2).sum()) / freedom
            rows.append({
                **table.names, "condition": "ranking of groups", "n": freedom + 1, "scope": scope,
                "value": _reliable(np.array(between), np.array(error)).item(),
            })  # fmt: skip
    for models in together:
        names = {**models.names, "condition": "ranking of models", "n": len(models.tables)}
        for scope, value_G in _of_models(models):
            rows += by_group({**names, "scope": scope}, models.tables[0].groups, {"value": value_G})
    order = ("condition", "model", "attribute", "score", "group")
    return from_rows(rows).sort(order, maintain_order=True).with_columns(
        score=pl.format("{}_reliability", "score"), statistic=pl.lit("score")
    )  # fmt: skip


def _of_models(models: ModelTables) -> Iterator[tuple[Scope, Doubles]]:
    """Yield, by scope, how reliably each gap [G] ranks models."""
    crossed = models.crossed
    templates = crossed.levels["template"]
    between = crossed.squares["model",] / templates
    several = [each.squares for each in models.tables if each.values_GRT.shape[1] > 1]
    if not several:
        return
    # Models with one run are taken to vary over runs as the others do.
    given, cells = (
        np.mean([each.squares[names] / math.prod(each.levels.values()) for each in several], axis=0)
        for names in (("run",), ("run", "template"))
    )
    anew = np.maximum(given, given - cells + crossed.squares["model", "template"] / templates)
    yield "runs", _reliable(between, given)
    yield "sentences", _reliable(between, anew)


def _reliable(observed: Doubles, error: Doubles) -> Doubles:
    """Return the part that is no error of the variance of estimates; NaN where all are alike."""
    true = np.maximum(0.0, observed - error)
    with np.errstate(invalid="ignore"):
        return np.asarray(true / (true + error))
