"""Describe how a comparison was made: what its intervals cover, and cautions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import polars as pl

from raybias.measures.compare import SCOPE
from raybias.measures.compare_answers import Matched
from raybias.measures.kind import Kind, kinds
from raybias.report import wording
from raybias.stats.redrawn import Seeds, redrawn_by
from raybias.stats.scopes import SCOPES


def comparison_notes(
    arms: Sequence[Matched],
    changes: pl.DataFrame,
    answers: pl.DataFrame,
    margin: float,
    level: float,
) -> Iterator[str]:
    """Yield what bands and verdicts of changes (`COMPARED`) rest on, and which flips are masked."""
    redrawn = {**redrawn_by(_seeds(arms)), SCOPE: "pairs are redrawn, in these very styles"}
    units = {each.unit.name: each.unit for each in arms}
    scored = [kinds[name] for name in kinds if name in changes["kind"] and kinds[name].sums]
    for scope in (*SCOPES, SCOPE):
        if scope in changes["scope"]:
            # Of rows without templates the scope says what the data have.
            drawn = {each.scope for each in units.values()} if scope == "sentences" else {scope}
            yield from (f"Intervals cover {name}: {redrawn[name]}." for name in sorted(drawn))
    if SCOPE in changes["scope"]:
        yield (
            "A score of pairs is a share from 0 to 1, or a difference of shares; what is said of a "
            "gap holds for its distance from no bias, which is 0.5 for preferences and 0 for "
            "coreference."
        )
    pairs = ["pairs"] if SCOPE in changes["scope"] else []
    for kind in scored:
        yield from _about_scores(kind, changes.filter(kind=kind.name))
    sampled = dict.fromkeys([*units, *pairs, *(kind.units for kind in scored)])
    yield (
        "A gap is worse where it moved away from 0 and better where it moved towards it, by bands "
        f"that are wrong anywhere in at most {1 - level:.0%} of comparisons; it is equivalent "
        f"where the {2 * level - 1:.0%} interval of its change lies within {margin:g}, and the "
        f"sampled {' or '.join(sampled)} leave no room for more in those that were not sampled."
    )
    yield from dict.fromkeys(map(_about_runs, arms))
    if any(not each.paired for each in arms):
        half = changes.select(((pl.col("high") - pl.col("low")) / 2).median()).item()
        if half is not None:
            yield (
                f"A true change of half the width of its band (median {half:.3f}) is found one "
                "time in two at most, a smaller one less often."
            )
    for row in answers.filter("masked").iter_rows(named=True):
        yield (
            f"Masked flips: {row['between']:.1%} of the answers on {row['attribute']} "
            f"{row['probe']} differ between the arms and {row['within']:.1%} between two runs of "
            f"one, though every gap changed by less than {margin:g}."
        )
    if counted := [*(["sentences"] if arms else []), *pairs]:
        yield _about_flips([*units], counted)


def _about_scores(kind: Kind, changes: pl.DataFrame) -> Iterator[str]:
    """Say what bands of a kind's scores cover, and from what value their distance is taken."""
    for scope in changes["scope"].unique().sort():
        units = scope.replace(", ", " and ")
        yield (
            f"Intervals of {kind.name} cover {units}: {units} are redrawn, the same ones in both "
            "arms."
        )
    known = {name: score for name, score in kind.scores.items() if name in changes["score"]}
    free = [f"{(score.unbiased or 0) / score.whole:g} for {name}" for name, score in known.items()]
    yield (
        f"What is said of a gap holds for a score's distance from its value of no bias: "
        f"{wording.listed(free)}."
    )
    if any(score.whole > 1 for score in known.values()):
        yield f"Scores of {kind.name} are shares: 0.02 is two points in percent."
    if own := [name for name, score in known.items() if score.bounds is None]:
        yield f"The margin is in units of the score for {wording.listed(own)}."
    yield (
        f"Flips of {kind.name} count {kind.units} that raise or lower the base's score if they "
        "take the candidate's answers; their p (sign test, exact) takes them as independent."
    )


def _about_flips(units: Sequence[str], counted: Sequence[str]) -> str:
    """Say what flips count, and which units have several sentences that answer alike."""
    whole = [name for name in units if name not in ("rows", "items", "sentences")]
    apart = f", which those of one unit ({' or '.join(whole)}) are not" if whole else ""
    return (
        f"Flips count {' or '.join(counted)} on which the event became more or less frequent; "
        f"their p (McNemar, exact) takes them as independent{apart}."
    )


def engine_notes(arms: Sequence[Matched], engines: Mapping[str, str]) -> Iterator[str]:
    """Yield which arms have the same weights, by the model that each engine has."""
    for name in dict.fromkeys(each.keys[0] for each in arms):
        one, _, other = name.partition(" -> ")
        if other and engines.get(one, one) == engines.get(other, other):
            yield f"{one} and {other} have the same weights: what changed is the engine."


def _seeds(arms: Sequence[Matched]) -> Seeds:
    """Return whether intervals of changes resample seeds: no arm may have one run alone."""
    several = {
        min(arm["run_id"].n_unique() for arm in (each.base, each.candidate)) > 1 for each in arms
    }
    return "some" if len(several) > 1 else "one" if several == {False} else "drawn"


def _about_runs(arms: Matched) -> str:
    counts = [arm["run_id"].n_unique() for arm in (arms.base, arms.candidate)]
    if arms.paired and counts[0] == 1:
        return "Each arm has one run: this says nothing of other seeds."
    if arms.paired:
        return f"The {counts[0]} runs of both arms are matched by seed or name."
    runs = f"{wording.counted(counts[0], 'run')} of the base and {counts[1]} of the candidate"
    more = "" if min(counts) > 1 else ", and one run cannot show a change for better or worse"
    return f"{runs} are not matched, since their seeds differ: the noise of both counts{more}."
