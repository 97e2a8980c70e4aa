"""Say in sentences what estimates show, and no more than that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import polars as pl

from raybias import schema
from raybias.formats.openings import look_alike
from raybias.measures.class_rows import CLASS, class_of
from raybias.measures.kind import Kind, Table
from raybias.measures.prediction_rows import gap_rows
from raybias.report import wording
from raybias.schema import ALL, LIKELIHOOD
from raybias.stats.breakdown import CARRIED, WITHOUT
from raybias.stats.conclusive import refusal, refused
from raybias.stats.gaps import FAMILIES
from raybias.stats.intervals import MIRROR, NO_ROWS, NO_VARIATION, ONE_RUN, REFERENCE, UNDEFINED
from raybias.stats.scopes import ADDED, REDRAWN, SCOPES

#: Verdicts by which a conclusion depends on style.
_TURNS: Final = ("changes sign", "loses its sign", "gains a sign")
#: Gaps of two groups add up to less.
_ROUNDING: Final = 1e-9
_KEYS: Final = ("model", "probe", "method", "style", "condition", "attribute", "score", "group")
_GAP: Final = (*schema.KEYS, "attribute", "group", "score")
#: Most findings, models or classifiers that are named one by one.
_MOST: Final = 4
_NAMED: Final = 3
#: Why no gap at all has a verdict, where the reason needs more words than in a table.
_CANNOT: Final = {
    ONE_RUN: "an interval needs at least two runs",
    NO_VARIATION: "every gap is the same in all runs",
    REFERENCE: "with one group there is none to compare it with",
    UNDEFINED: "no sentence can be wrong in these ways",
    NO_ROWS: "no group has rows that count",
}
#: Rates nearer to 0 or 1 than this, on fewer templates than that, have too narrow intervals.
_RARE: Final = 0.05
_FEW_TEMPLATES: Final = 20


def of(kind: Kind, estimates: pl.DataFrame) -> Iterator[str]:
    """Count the significant estimates of each quantity that is drawn; say whether style matters."""
    for shown in kind.tables:
        if shown.neutral is not None:
            yield from _counted(kind, estimates.filter(shown.where), shown)
    verdicts = estimates.filter(pl.col("score") == "styles_that_move_it")
    if verdicts.height:
        turned = verdicts.filter(pl.col("reason").is_in(_TURNS)).height
        moved = verdicts.filter(pl.col("value") > 0).height
        total = wording.counted(verdicts.height, "score")
        yield (
            f"Styles move {moved or 'none'} of {total}, and in {turned or 'none'} the conclusion "
            "depends on the style."
        )


def _counted(kind: Kind, part: pl.DataFrame, shown: Table) -> Iterator[str]:
    if part["survives"].count() == 0 and part["significant"].count() == 0:
        return
    part = once(part)
    name = shown.title.partition(":")[0] or kind.title
    for (scope,), tested in part.drop_nulls("significant").group_by("scope", maintain_order=True):
        significant, survives = (int(tested[c].sum()) for c in ("significant", "survives"))
        corrected = (
            f", {survives or 'none'} after correction for many tests"
            if tested["survives"].count() and survives != significant
            else ""
        )
        redrawn = f" if {kind.redrawn.get(str(scope), f'{scope} are redrawn')}" if scope else ""
        yield (
            f"{name[0].upper()}{name[1:]}: {significant or 'none'} of {tested.height} are "
            f"significant{redrawn}{corrected}."
        )
    found = part.filter(pl.col("survives").fill_null(pl.col("significant")).fill_null(value=False))
    if found.is_empty() or part.height == 1:
        return
    far = (pl.col("value") - shown.neutral).abs()
    found = found.sort(far, "p", descending=[True, False])
    if found["condition"].str.starts_with(CLASS).all():
        yield from of_classes(found)
        return
    clearest = found.row(0, named=True)
    keys = [key for key in _KEYS if part[key].n_unique() > 1]
    value = wording.interval(*scaled(clearest, kind), digits=kind.digits, plus=shown.signed)
    said = (wording.bias_type(str(clearest[key])) for key in keys or ["model"] if clearest[key])
    yield f"The clearest: {wording.spaced(', '.join(said))} {value}."


def of_classes(found: pl.DataFrame) -> Iterator[str]:
    """State the clearest gap by class of each rate, in a table of gaps with the clearest first."""
    for (score,), part in found.group_by("score", maintain_order=True):
        row = part.row(0, named=True)
        name = class_of(row["condition"])
        metric = wording.metric(str(score), name)
        who = " ".join(filter(None, (wording.spaced(row["group"]), metric.among)))
        if part["model"].n_unique() > 1:
            who = f"{row['model']}: {who}"
        value = wording.interval(row["value"], row["low"], row["high"])
        often = "more" if row["value"] > 0 else "less"
        yield f"The clearest gap of {score} by class: {who}: {metric.words} {often} often, {value}."


def once(part: pl.DataFrame) -> pl.DataFrame:
    """Leave out the second of two groups, whose gap is that of the first with its sign turned."""
    by = [name for name in (*_KEYS[:-1], "dataset", "scope") if name in part.columns]
    twins = (pl.len() == 2) & (pl.col("value").sum().abs() < _ROUNDING)
    second = pl.col("group") != pl.col("group").min()
    signed = pl.col("statistic").is_in(["gap", "difference"])
    return part.filter(~(signed & (twins & second).over(by)).fill_null(value=False))


def scaled(row: Mapping[str, Any], kind: Kind) -> tuple[float | None, ...]:
    """Return value, low and high in the unit of a kind's tables."""
    ends = (row["value"], row["low"], row["high"])
    return tuple(None if end is None else kind.scale * end for end in ends)


def refusals(estimates: pl.DataFrame, what: str = "score") -> list[str]:
    """Name the models or classifiers that cannot do the task, and of which no `what` is judged."""
    rows = own_readings(estimates).filter(refused("reason"), pl.col("model") != ALL)
    keys = wording.shortest_keys(estimates.filter(pl.col("model") != ALL))
    probe = ["probe"] if estimates["probe"].n_unique() > 1 else []
    rows = rows.unique([*keys, *probe], maintain_order=True)
    pairs = [
        (" on ".join((wording.classifier_name(row, keys), *(row[key] for key in probe))),
         row["reason"])
        for row in rows.iter_rows(named=True)
    ]  # fmt: skip
    if len(pairs) > _NAMED:
        first = "; ".join(f"{name}: {reason}" for name, reason in pairs[:_NAMED])
        return [
            f"No verdict for {len(pairs)} classifiers, of which no {what} is judged. {first}; and "
            f"{len(pairs) - _NAMED} more, in the table `estimates`. Tune them, ask them otherwise, "
            "or measure models that can."
        ]
    return [refusal(*pair, what) for pair in pairs]


def own_readings(estimates: pl.DataFrame) -> pl.DataFrame:
    """Leave out likelihood readings that cannot do the task, beside the method that they are of.

    They are made for comparison; the table `estimates` has them.
    """
    others = [key for key in schema.KEYS if key != "method"]
    beside = estimates.select(*others, pl.col("method") + LIKELIHOOD).unique()
    how: dict[str, Any] = {"on": schema.KEYS, "nulls_equal": True, "maintain_order": "left"}
    idle = estimates.filter(refused("reason")).join(beside, how="semi", **how)
    return estimates.join(idle, how="anti", **how)


def able(frame: pl.DataFrame, gaps: pl.DataFrame) -> pl.DataFrame:
    """Leave out classifiers of which no gap is judged, since they cannot do their task."""
    unable = gaps.filter(refused("reason")).select(schema.TABLE).unique()
    return frame.join(unable, on=schema.TABLE, how="anti", nulls_equal=True, maintain_order="left")


def verdict(gaps: pl.DataFrame) -> str:
    """Name the classifiers that cannot do their task, then state the `conclusion`, if any."""
    said = conclusion(gaps)
    nothing = [] if said else ["Nothing can be concluded about how groups are treated."]
    return " ".join([*nothing, *refusals(gaps, "gap"), *said])


def conclusion(gaps: pl.DataFrame) -> list[str]:
    """State the largest finding: who is wrongly called what, how much more often than others.

    It is that of most classifiers, then the largest. Without one, this says which size is not
    excluded, or why nothing could be judged; nothing where no classifier can do its task.
    """
    judged = gaps.filter(pl.col("significant").is_not_null())
    if judged.is_empty():
        if able(gaps.drop_nulls("value"), gaps).height or not refusals(gaps):
            reasons = [_CANNOT.get(reason, reason) for reason in _without_verdict(gaps)]
            return [f"No gap could be judged: {wording.listed(reasons) or 'there is none'}."]
        return []
    if parts := ranked(gaps):
        more = len(parts) - 1
        others = wording.counted(more, "other difference was", "other differences were")
        return [_sentence(gaps, parts[0]), *([f"{others} found."] * (more > 0))]
    said = ["No group was shown to be treated unlike the others."]
    far = pl.max_horizontal(pl.col("low", "high").abs()).max()
    ends = judged.group_by("score", maintain_order=True).agg(far.alias("far")).drop_nulls()
    if ends.height:
        reach = [_size(rate, end) for rate, end in ends.iter_rows()]
        if len(reach) > 1:
            names = (wording.metric(rate).title for rate in ends["score"])
            reach = [f"{size} ({name})" for size, name in zip(reach, names, strict=True)]
        said.append(
            "Nor was it shown that all are treated alike: the intervals reach up to "
            f"{wording.listed(reach)}."
        )
    return said


def ranked(gaps: pl.DataFrame) -> list[pl.DataFrame]:
    """Split the gaps that survive by attribute, group, rate and sign, the clearest first."""
    found = once(gaps).filter(pl.col("survives").fill_null(value=False))
    found = found.with_columns(sign=pl.col("value").sign())
    parts = found.partition_by("attribute", "group", "score", "sign", maintain_order=True)
    return sorted(parts, key=lambda part: (part.height, part["value"].abs().median()), reverse=True)


def findings(gaps: pl.DataFrame) -> list[str]:
    """Put each finding in a sentence, with its reading, and explain significance."""
    parts = ranked(gaps)
    said = []
    for part in parts[:_MOST]:
        effect = wording.effect(part["score"][0], part["value"][0])
        said.append(f"{_sentence(gaps, part).removesuffix('.')}{f': {effect}' * bool(effect)}.")
    if len(parts) > _MOST:
        said.append(f"{len(parts) - _MOST} more differences, which the tables below list.")
    if parts:
        said.append(
            "Significant means that chance alone seldom makes such a difference. It is not how "
            "likely another study would find it again."
        )
    return said


def _sentence(gaps: pl.DataFrame, part: pl.DataFrame) -> str:
    row = part.row(0, named=True)
    group = wording.spaced(row["group"])
    if gaps["attribute"].n_unique() > 1:
        group = f"{group} ({row['attribute']})"
    often = "more" if row["value"] > 0 else "less"
    who = f"sentences about {group}" if row["probe"] else f"examples of {group}"
    metric = wording.metric(row["score"])
    said = (
        f"{who} {metric.among} are {metric.words}" if metric.among else f"{who} are {metric.title}"
    )
    total = gaps.filter(attribute=row["attribute"], group=row["group"], score=row["score"]).height
    if total == 1:
        interval = ""
        if row["low"] is not None:
            near, far = sorted(abs(row[end]) for end in ("low", "high"))
            near, far = (_size(row["score"], e).removesuffix(" points") for e in (near, far))
            interval = f" ({near} to {far})"
        size = _size(row["score"], row["value"])
        return f"{said[0].upper()}{said[1:]} {size} {often} often than average{interval}."
    sizes = [_size(row["score"], value) for value in sorted(part["value"].abs())]
    by = sizes[0] if len(sizes) == 1 else f"{sizes[0].removesuffix(' points')} to {sizes[-1]}"
    return f"In {part.height} of {total} classifiers, {said} {often} often than average, by {by}."


def _size(rate: str, gap: float) -> str:
    """Give a gap without its sign: in percentage points where the rate is a share."""
    if wording.metric(rate).share is not None:
        return f"{100 * abs(gap):.1f} points"
    return f"{abs(gap):.3f}"


def _without_verdict(gaps: pl.DataFrame) -> dict[str, int]:
    """Count the gaps without a verdict by reason, without mirrors of other gaps."""
    reason = pl.col("reason")
    own = gaps.filter(
        pl.col("survives").is_null(), ~reason.str.starts_with(MIRROR),
        ~reason.is_in([UNDEFINED, NO_ROWS]), ~refused("reason"),
    )  # fmt: skip
    counts = own.group_by("reason").len().sort("len", "reason", descending=[True, False])
    return {str(reason): int(n) for reason, n in counts.iter_rows()}


def by_scope(
    gaps: pl.DataFrame, components: pl.DataFrame, redrawn_by: Mapping[str, str] = REDRAWN
) -> str:
    """Count significant gaps by scope: `Significant if only seeds are redrawn: 3 of 12`.

    redrawn_by: what intervals of each scope resample, in words.
    """
    judged = once(gaps.filter(pl.col("survives").is_not_null()))
    corrected = bool((judged["significant"] != judged["survives"]).any())
    parts: list[str] = []
    for scope in (scope for scope in SCOPES if (judged["scope"] == scope).any()):
        part = judged.filter(scope=scope)
        begin = "if" if parts else "Significant if"
        total = str(part.height) if parts else wording.counted(part.height, "gap")
        redrawn = f"{ADDED[scope]} are too" if parts else redrawn_by[scope]
        if scope == "runs":
            redrawn = "only seeds are redrawn"
        said = f"{begin} {redrawn}: {part['significant'].sum() or 'none'} of {total}"
        if corrected:
            many = "" if parts else " for many tests"
            said += f" ({part['survives'].sum() or 'none'} after correction{many})"
        parts.append(said)
    if not parts:
        return ""
    lasting = judged.filter("survives")
    sure, sure_of_words = ({*lasting.filter(scope=s)["group"]} for s in ("sentences", "wording"))
    lost = [group for group in _one_word(components) if group in sure - sure_of_words]
    if lost:
        parts[-1] += f"; {wording.listed(lost)} {'has' if len(lost) == 1 else 'have'} one word"
    if not (judged["scope"] == "wording").any():
        parts.append("no group has two words, so nothing is known of other words")
    parts += [f"{n:,} more without a verdict: {why}" for why, n in _without_verdict(gaps).items()]
    return f"{'; '.join(parts)}."


def _one_word(components: pl.DataFrame) -> list[str]:
    """List the groups that one word stands for, where others have more (schema.COMPONENTS)."""
    words = components.filter(facets="word", levels="1")
    return [str(group) for group in words["group"].unique().sort()]


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


def doubts(
    estimates: pl.DataFrame, gaps: pl.DataFrame, components: pl.DataFrame, sentences: pl.DataFrame
) -> Iterator[str]:
    """Name significant gaps that one word or template may carry, and intervals that are narrow."""
    found = gaps.filter(pl.col("survives").fill_null(value=False))
    if found.height:
        yield from _carried(estimates, found, components)
    families = estimates.filter(pl.col("scope").str.starts_with(FAMILIES))
    yield from _by_family(gap_rows(estimates), families)
    place = ["probe", "attribute"]
    yield from look_alike(
        sentences.drop_nulls("template_id").join(
            families.select(place).unique(), on=place, how="anti", maintain_order="left"
        )
    )
    yield from _rare(estimates, gaps, components)


def _carried(
    estimates: pl.DataFrame, found: pl.DataFrame, components: pl.DataFrame
) -> Iterator[str]:
    """Name findings that rest on one word, or lose half of their size without one unit."""
    single = [group for group in _one_word(components) if (found["group"] == group).any()]
    if components.filter(facets="word").is_empty():
        yield "No group has two words: no gap can be told from the words for the group."
    elif single:
        each = "has one word: its gap" if len(single) == 1 else "have one word each: their gaps"
        yield f"{wording.listed(single)} {each} cannot be told from that word."
        if (found["scope"] == "wording").any():
            yield (
                "Intervals that draw words take the words for a group with one word to vary as "
                "those of the other groups do; where they vary more, they are too narrow."
            )
    carried = estimates.filter(
        pl.col("condition").str.starts_with(WITHOUT), pl.col("reason").str.starts_with(CARRIED)
    ).unique(subset=[*_GAP, "reason"], maintain_order=True)
    carried = carried.join(found, on=_GAP, how="semi", nulls_equal=True)
    unit = pl.col("condition").str.extract(f"^{WITHOUT}([a-z]+) ")
    for row in carried.with_columns(unit=unit).iter_rows(named=True):
        yield (
            f"{row['group']} {row['score']} of {row['model']}: without the {row['unit']} "
            f"{row['reason'].removeprefix(CARRIED)} the gap would lose half of its size or more."
        )


def _by_family(gaps: pl.DataFrame, families: pl.DataFrame) -> Iterator[str]:
    """Count the verdicts that stand where families of templates are resampled."""
    scope = pl.when(scope=FAMILIES).then(pl.lit("sentences")).otherwise(pl.lit("wording"))
    both = once(gaps).join(
        families.with_columns(scope=scope), on=[*_GAP, "scope"], suffix="_family", nulls_equal=True
    )
    said = []
    for name in SCOPES:
        part = both.filter(pl.col("significant"), scope=name)
        if part.is_empty():
            continue
        lasting = part.filter("survives")
        corrected = f" ({lasting['survives_family'].sum()} of {lasting.height} after correction)"
        said.append(
            f"{part['significant_family'].sum()} of the {part.height} that are significant "
            f"if {REDRAWN[name]}{corrected if lasting.height else ''}"
        )
    if said:
        yield (
            "Some templates were written from one opening. Where such families are resampled, not "
            f"single templates, these gaps stay significant: {wording.listed(said)}."
        )


def _rare(estimates: pl.DataFrame, gaps: pl.DataFrame, components: pl.DataFrame) -> Iterator[str]:
    rates = estimates.filter(statistic="rate").unique(_GAP).select(*_GAP, rate="value")
    levels = components.filter(facets="template")
    judged = gaps.filter(pl.col("significant").is_not_null(), pl.col("scope") != "runs")
    for more in (rates, levels.select(*_GAP, "levels")):
        judged = judged.join(more, on=_GAP, nulls_equal=True, maintain_order="left")
    few = judged.filter(
        pl.col("levels").cast(pl.Int64) < _FEW_TEMPLATES,
        pl.min_horizontal(pl.col("rate"), 1 - pl.col("rate")) < _RARE,
    )
    if few.height:
        yield (
            f"{wording.counted(few.height, 'gap rests', 'gaps rest')} on rates below {_RARE:.0%} "
            f"or above {1 - _RARE:.0%} and on fewer than {_FEW_TEMPLATES} templates: their "
            "intervals are too narrow. Of a rate of 2% on 12 templates, simulated 95% intervals "
            "that redraw sentences held the true gap 83 to 92 times in 100."
        )
