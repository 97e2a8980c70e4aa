"""State in sentences which gaps are found, in how wide a scope, and what is not shown."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import polars as pl

from raybias.measures.prediction_rows import WIDTHS
from raybias.report import wording
from raybias.report.judged import GAP, Judged
from raybias.report.sentences import able, once, refusals, two_groups
from raybias.schema import LIKELIHOOD
from raybias.stats.conclusive import refused
from raybias.stats.few_events import FEWEST
from raybias.stats.gaps import OUTSIDE
from raybias.stats.intervals import MIRROR, NO_ROWS, NO_VARIATION, ONE_RUN, REFERENCE, UNDEFINED
from raybias.stats.scopes import ADDED, SCOPES

#: Most findings, models or classifiers that are named one by one.
_MOST: Final = 4
#: Why no gap at all has a verdict, if the reason needs more words than in a table.
_CANNOT: Final = {
    ONE_RUN: "an interval needs at least two runs",
    NO_VARIATION: "every gap is the same in all runs",
    REFERENCE: "with one group there is none to compare it with",
    UNDEFINED: "no sentence can be wrong in these ways",
    NO_ROWS: "no group has rows that count",
}
#: What a finding is about, by the widest scope in which it holds.
ABOUT: Final = {
    "runs": "on these very sentences",
    "sentences": "for these words",
    "wording": "for other words too",
}


def verdict(judged: Judged) -> str:
    """Name the classifiers that cannot do their task, then state the `conclusion`, if any."""
    said = conclusion(judged)
    nothing = [] if said else ["Nothing can be concluded about how groups are treated."]
    return " ".join([*nothing, *refusals(judged.gaps, "gap"), *said])


def conclusion(judged: Judged, *, with_effect: bool = False) -> list[str]:
    """State the largest finding: who is wrongly called what, how much more often than others.

    It is that of the widest scope, then of most classifiers, then the largest. Without one in any
    scope, this says which size is not excluded, or why nothing could be judged; nothing if no
    classifier can do its task.

    with_effect: also say whether it is a harm or a benefit, if that was declared.
    """
    gaps = judged.gaps
    tested = gaps.filter(pl.col("significant").is_not_null())
    if parts := ranked(judged):
        others = _others(parts)
        effect = _effect(parts[0]) if with_effect else ""
        return [_sentence(judged, parts[0], effect), *([others] if others else [])]
    if tested.is_empty():
        if able(gaps.drop_nulls("value"), gaps).height or not refusals(gaps):
            reasons = [_CANNOT.get(reason, reason) for reason in _without_verdict(gaps)]
            return [f"No gap could be judged: {wording.listed(reasons) or 'there is none'}."]
        return []
    said = ["No group was shown to be treated unlike the others."]
    # Of two groups the difference is twice the gap.
    factor = pl.when(two_groups(tested)).then(2).otherwise(1)
    far = (factor * pl.max_horizontal(pl.col("low", "high").abs())).alias("far")
    ends = tested.with_columns(far).group_by("score", maintain_order=True).agg(pl.col("far").max())
    reach = {rate: _size(rate, end) for rate, end in ends.drop_nulls().iter_rows()}
    if reach:
        named = [f"{size} ({wording.metric(rate).title})" for rate, size in reach.items()]
        sizes = named if len(reach) > 1 else [*reach.values()]
        said.append(
            "Nor was it shown that all are treated alike: the intervals reach up to "
            f"{wording.listed(sizes)}."
        )
    return said


def ranked(judged: Judged) -> list[pl.DataFrame]:
    """Split what is found by attribute, group, rate, sign and scope, the clearest first.

    Of one scope harms come first, if it was declared what is favourable. What rests on so few units
    that they cannot have enough of both outcomes comes last, however large it is.
    """
    found = judged.found.with_columns(sign=pl.col("value").sign())
    parts = found.partition_by("attribute", "group", "score", "sign", "width", maintain_order=True)
    return sorted(parts, key=_clearness, reverse=True)


def _clearness(part: pl.DataFrame) -> tuple[bool, int, bool, int, float]:
    sizes = part["value"].abs().to_numpy()
    small = part["few"] & (part["units"] < 2 * FEWEST)
    is_harm = _effect(part) == "harm"
    return not small.all(), int(part["width"][0]), is_harm, part.height, float(sizes.mean())


def _others(parts: list[pl.DataFrame]) -> str:
    """Count the other findings, by what they are about."""
    first, *others = parts
    if not others:
        return ""
    said = wording.counted(len(others), "other difference")
    counts: dict[int, int] = {}
    for part in others:
        counts[int(part["width"][0])] = counts.get(int(part["width"][0]), 0) + 1
    if {*counts} == {int(first["width"][0])}:
        return f"{said}."
    about = {WIDTHS[scope]: words for scope, words in ABOUT.items()}
    each = [f"{n} {about[width]}" for width, n in sorted(counts.items(), reverse=True)]
    return f"{said}: {wording.listed(each)}."


def findings(judged: Judged, most: int = _MOST) -> list[str]:
    """Put up to `most` findings in a sentence each, with its reading, and explain significance."""
    parts = ranked(judged)
    said = [_sentence(judged, part, _effect(part)) for part in parts[:most]]
    if len(parts) > most:
        said.append(f"{len(parts) - most} more differences, which report.html lists.")
    if parts:
        said.append(
            "Significant means that chance alone seldom makes such a difference. It is not how "
            "likely another study would find it again."
        )
    return said


def _effect(part: pl.DataFrame) -> str:
    """Return what a finding means for its group, `harm` or `benefit`, if that was declared."""
    return wording.effect(part["score"][0], part["value"][0])


def _sentence(judged: Judged, part: pl.DataFrame, effect: str = "") -> str:
    """State one finding: scope, group, rate, size, its `effect`, and what is not shown."""
    row = part.row(0, named=True)
    often = "more" if row["value"] > 0 else "less"
    said, factor = _compared(judged, row)
    gap = pl.struct(GAP)
    own = judged.rows.filter(attribute=row["attribute"], group=row["group"], score=row["score"])
    total = own.select(gap.n_unique()).item()
    whom, than = said
    if total == 1:
        size = _size(row["score"], factor * row["value"])
        text = f"{whom} {size} {often} often {than}{_interval(row, factor)}"
    else:
        sizes = [_size(row["score"], factor * value) for value in sorted(part["value"].abs())]
        by = sizes[0] if len(sizes) == 1 else f"{sizes[0].removesuffix(' points')} to {sizes[-1]}"
        text = f"in {part.height} of {total} classifiers, {whom} {often} often {than}, by {by}"
    text = f"{_begin(judged, row)}{text}"
    ends = [f": {effect}" if effect else "", *(f"; {end}" for end in _tail(judged, part))]
    return f"{text[0].upper()}{text[1:]}{''.join(ends)}."


def _compared(judged: Judged, row: Mapping[str, Any]) -> tuple[tuple[str, str], int]:
    """Return who is called what, than whom; and what a gap is multiplied by.

    Of two groups it is the difference between them.
    """
    metric = wording.metric(row["score"])
    of = "sentences about" if row["probe"] else "examples of"
    also = f" ({row['attribute']})" if judged.rows["attribute"].n_unique() > 1 else ""
    called = f"{metric.among} are {metric.words}" if metric.among else f"are {metric.title}"
    whom = f"{of} {wording.spaced(row['group'])}{also} {called}"
    those = "those about" if row["probe"] else "those of"
    if row["two"]:
        return (whom, f"than {those} {wording.spaced(row['other'])}"), 2
    if alone := judged.reference_of(row):
        return (whom, f"than {those} {wording.spaced(alone)}"), 1
    inside, every = judged.count_groups(row)
    if row["condition"] == OUTSIDE:
        mean = f"the mean of {wording.counted(inside, 'other group')}"
    elif inside < every:
        mean = f"the mean of {inside} of the {every} groups"
    else:
        mean = "the groups' mean"
    return (whom, f"than {mean}"), 1


def _interval(row: Mapping[str, Any], factor: int) -> str:
    if row["low"] is None:
        return ""
    near, far = sorted(abs(row[end]) for end in ("low", "high"))
    sizes = (_size(row["score"], factor * end).removesuffix(" points") for end in (near, far))
    return f" ({' to '.join(sizes)})"


def _size(rate: str, gap: float) -> str:
    """Give a gap without its sign: in percentage points if the rate is a share."""
    if wording.metric(rate).share is not None:
        return f"{100 * abs(gap):.1f} points"
    return f"{abs(gap):.3f}"


def _begin(judged: Judged, row: Mapping[str, Any]) -> str:
    """Say what a finding is limited to."""
    if row["scope"] == "runs":
        return "on these very sentences, " if row["probe"] else "on these very items, "
    if row["scope"] == "sentences" and _of_words(judged, row):
        return "for these words, "
    return ""


def _of_words(judged: Judged, row: Mapping[str, Any]) -> bool:
    """Return whether words of the group are known, so that there can be others."""
    return judged.words_of(row["probe"], row["attribute"], row["group"]) is not None


def _tail(judged: Judged, part: pl.DataFrame) -> Iterator[str]:
    """Say in which wider scopes a finding is not shown, and whether it is of one word."""
    row = part.row(0, named=True)
    wider = judged.wider(part)
    known = {*wider.drop_nulls("survives")["scope"]}
    holds = {*wider.filter(pl.col("survives").fill_null(value=False))["scope"]}
    added = {str(scope): what for scope, what in ADDED.items()}
    lacking = [added.get(scope, scope) for scope in WIDTHS if scope in known - holds]
    words = judged.words_of(row["probe"], row["attribute"], row["group"])
    if words == 1 and lacking[-1:] == ["words"]:
        yield f"{wording.spaced(row['group'])} has one word, so that no other was tried"
        lacking.pop()
    if lacking:
        yield f"for other {wording.listed(lacking)} that is not shown"
    if row["scope"] == "sentences" and "wording" not in known and _of_words(judged, row):
        yield "of other words nothing is known"
    if row["scope"] == "wording" and words == 1:
        yield f"{wording.spaced(row['group'])} has one word, and this is of that word"


def _without_verdict(gaps: pl.DataFrame) -> dict[str, int]:
    """Count the gaps without a verdict by reason, without mirrors of other gaps."""
    reason = pl.col("reason")
    own = gaps.filter(
        pl.col("survives").is_null(),
        ~reason.str.starts_with(MIRROR),
        ~reason.is_in([UNDEFINED, NO_ROWS]),
        ~refused("reason"),
    )
    counts = own.group_by("reason").len().sort("len", "reason", descending=[True, False])
    return {str(reason): int(n) for reason, n in counts.iter_rows()}


def by_scope(judged: Judged) -> str:
    """Count significant gaps by scope: `Significant if only seeds are redrawn: 3 of 12`."""
    tested = once(judged.rows.filter(pl.col("survives").is_not_null()))
    corrected = bool((tested["significant"] != tested["survives"]).any())
    parts: list[str] = []
    for scope in (scope for scope in SCOPES if (tested["scope"] == scope).any()):
        part = tested.filter(scope=scope)
        begin = "if" if parts else "Significant if"
        total = str(part.height) if parts else wording.counted(part.height, "gap")
        if parts:
            redrawn = f"{ADDED[scope]} are too"
        else:
            redrawn = "only seeds are redrawn" if scope == "runs" else judged.redrawn[scope]
        said = f"{begin} {redrawn}: {part['significant'].sum() or 'none'} of {total}"
        if corrected:
            within = "" if parts else f" {wording.within_families(judged.family_sizes)}"
            said += f" ({part['survives'].sum() or 'none'} after correction{within})"
        parts.append(said)
    if not parts:
        return ""
    lost = _lost(judged, tested.filter("survives"))
    if lost:
        parts[-1] += f"; {wording.listed(lost)} {'has' if len(lost) == 1 else 'have'} one word"
    if not (tested["scope"] == "wording").any():
        parts.append("no group has two words, so nothing is known of other words")
    parts += [
        f"{n:,} more without a verdict: {why}" for why, n in _without_verdict(judged.rows).items()
    ]
    return f"{'; '.join(parts)}."


def _lost(judged: Judged, lasting: pl.DataFrame) -> list[str]:
    """List the groups of one word that are found if sentences are redrawn, not if words are."""
    sure, sure_of_words = ({*lasting.filter(scope=s)["group"]} for s in ("sentences", "wording"))
    one = {*judged.words.filter(words=1)["group"]} if (judged.words["words"] > 1).any() else set()
    return sorted(str(group) for group in one & (sure - sure_of_words))


def families_said(judged: Judged, estimates: pl.DataFrame, level: float) -> str:
    """Say how often some family shows a gap if nothing differs; empty for one family.

    estimates: with the rows of `stats.null_check`, which say it of these very data.
    """
    families = len(judged.family_sizes)
    if families < 2:
        return ""
    most = 1 - level**families
    said = (
        f"{families} families of gaps are each corrected alone, so that a chance finding is "
        "likelier somewhere than in any one of them: if no groups differed, there would be one in "
        f"up to {most:.0%} of studies with so many families"
    )
    own = estimates.filter(
        pl.col("score") == "meaningless_with_survivor",
        pl.col("scope").is_in(judged.gaps["scope"].unique().implode()),
    )
    shares = own["value"].drop_nulls()
    if shares.is_empty():
        return f"{said}."
    return (
        f"{said}. In these very data with shuffled group labels there was in {max(shares):.0%}. "
        "That is not the chance that a difference listed here is false."
    )


def measured(gaps: pl.DataFrame, composition: pl.DataFrame, runs: str, *, has_seeds: bool) -> str:
    """Count the models, the `runs` of a classifier and the sentences of `stats.composition`.

    A reading of the likelihoods beside a method is no classifier of its own.
    """
    models = gaps["model"].unique(maintain_order=True).to_list()
    named = wording.listed(models) if len(models) <= _MOST else f"{len(models)} language models"
    classifiers, judged = (
        each.filter(~pl.col("method").str.ends_with(LIKELIHOOD))
        .select("model", "method", "dataset", "style")
        .unique(maintain_order=True)
        for each in (gaps, able(gaps, gaps))
    )
    n = len(judged) or len(classifiers)
    made = "a classifier" if n == 1 else f"{n} classifiers"
    attributes = wording.listed(gaps["attribute"].unique().sort().to_list())
    read = wording.counted(int(composition["items"].sum()), "sentence")
    times, were = "once" if runs == "1" else f"{runs} times", "was" if n == 1 else "were"
    kind = f"{made} of {wording.task()}"
    done = (
        f"Of {named}, {kind} {were} made, {'each ' * (n > 1)}{times}, and"
        if has_seeds
        else f"{kind[0].upper()}{kind[1:]}, {named}, {were} taken as published, and"
    )
    said = f"{done} asked about {read} that differ in the group they name ({attributes})."
    if more := len(classifiers) - n:
        others = wording.counted(more, "more classifier has", "more classifiers have")
        said += f" {others} no verdict: it was not shown that they can do the task."
    return said
