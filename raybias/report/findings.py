"""What the tables say, in sentences: the answer, what to beware of.

Everything here follows from the tables; nothing is tested or estimated anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from raybias import schema, stats
from raybias.config import Statistics, Study
from raybias.formats.openings import look_alike
from raybias.measures.prediction_rows import CARRIED, FAMILIES, WITHOUT, gap_rows
from raybias.methods import prompted_methods
from raybias.report import wording
from raybias.report.sentences import once
from raybias.stats.conclusive import refusal, refused
from raybias.stats.scopes import SCOPES
from raybias.study_record import Record

#: A larger share of answers without a label is worth a caution.
UNPARSED_SHARE: Final = 0.01

#: So many classifiers or seeds are named one by one.
_NAMED: Final = 3
#: Why no gap at all has a verdict, where the reason needs more words than in a table.
_CANNOT: Final = {
    stats.ONE_RUN: "an interval needs at least two runs",
    stats.NO_VARIATION: "every gap is the same in all runs",
    stats.REFERENCE: "with one group there is none to compare it with",
    stats.UNDEFINED: "no sentence can be wrong in these ways",
}

#: What is drawn anew under each scope, and what in addition to the scope before.
_REDRAWN: Final = {
    "runs": "seeds",
    "sentences": "seeds and sentences",
    "wording": "seeds, sentences and words",
}
_ALSO: Final = {
    "runs": "only seeds are redrawn",
    "sentences": "sentences are too",
    "wording": "words are too",
}
#: Rates nearer to 0 or 1 than this, on fewer templates than that, have too narrow intervals.
_RARE: Final = 0.05
_FEW_TEMPLATES: Final = 20
#: What names a gap.
_GAP: Final = (*schema.KEYS, "attribute", "group", "score")

#: Readings in the order of findings.
_READINGS: Final = ("harm", "benefit", "")


@dataclass(frozen=True)
class Finding:
    """All significant gaps of one rate and direction."""

    heading: str
    effect: str
    """`harm`, `benefit`, or nothing for a rate without a reading."""
    groups: tuple[str, ...]


def null_check(estimates: pl.DataFrame, options: Statistics) -> str:
    """Say how often the rule in use finds something in meaningless labels; nothing if not known."""
    checked = estimates.filter(pl.col("score").str.starts_with("meaningless_"), scope=options.scope)
    found = dict(checked.select("score", "value").iter_rows())
    if not found:
        return ""
    flagged, survivor = found["meaningless_flagged"], found["meaningless_with_survivor"]
    expected = 1 - options.level
    said = (
        f"With meaningless group labels this rule ({options.scope}, {options.interval}) would "
        f"have called {flagged:.1%} of gaps significant ({expected:.0%} expected); {survivor:.0%} "
        "of such studies would have had a survivor."
    )
    far = max(flagged, survivor) > 2 * expected
    beware = " That is far above its level: its findings can be chance; use a wider scope."
    return f"{said}{beware if far else ''}"


def headline(gaps: pl.DataFrame) -> str:
    """`2 of 12 gaps are significant`, how many are left by a correction, how many not judged.

    Classifiers that cannot do their task (`stats.conclusive`) come first. Gaps are counted apart
    by what their intervals cover, and those of two groups once.
    """
    if unable := no_verdicts(gaps):
        rest = gaps.filter(~refused("reason"), pl.col("value").is_not_null())
        if rest.height:
            said = headline(rest)
            unable.append(f"Of the rest: {said[0].lower()}{said[1:]}")
        return " ".join(unable)
    judged = once(gaps.filter(pl.col("significant").is_not_null()))
    without = _without_verdict(gaps)
    if judged.is_empty():
        reasons = [_CANNOT.get(reason, reason) for reason in without]
        return f"No gap could be judged: {wording.listed(reasons) or 'there is none'}."
    parts = {scope: judged.filter(scope=scope) for scope in SCOPES}
    said = "; ".join(
        _counts(part, f" if {_REDRAWN[scope]} are redrawn" if part.height < judged.height else "")
        for scope, part in reversed(parts.items())
        if part.height
    )
    more = "".join(f"; {n:,} more without a verdict: {why}" for why, n in without.items())
    return f"{said[0].upper()}{said[1:]}{more}."


def _counts(judged: pl.DataFrame, scope: str) -> str:
    """Count what is significant, and what is left by a correction for many tests."""
    n, lasting = int(judged["significant"].sum()), int(judged["survives"].sum())
    verb = "is" if n == 1 else "are"
    left = f", {lasting} after correction for many tests" if lasting != n else ""
    return (
        f"{n or 'none'} of {wording.counted(judged.height, 'gap')} {verb} significant{scope}{left}"
    )


def by_the_rules(gaps: pl.DataFrame) -> str:
    """Write the headline of the classifiers that can do their task; nothing if none can."""
    able = gaps.filter(~refused("reason"))
    if able.height < gaps.height and able["value"].count() == 0:
        return ""
    said = headline(able)
    return f"By the rules of this study: {said[0].lower()}{said[1:]}"


def by_scope(gaps: pl.DataFrame, components: pl.DataFrame) -> str:
    """Count the significant gaps of each scope: `Significant if only seeds are redrawn: 3 of 12`.

    That is no count of gaps that another study would find, of which significance says little.

    Parameters
    ----------
    gaps: under every scope; without rows there is nothing to say.
    components: schema.COMPONENTS; says which groups have one word.
    """
    judged = once(gaps.filter(pl.col("survives").is_not_null()))
    corrected = bool((judged["significant"] != judged["survives"]).any())
    parts: list[str] = []
    for scope in (scope for scope in SCOPES if (judged["scope"] == scope).any()):
        part = judged.filter(scope=scope)
        begin = "if" if parts else "Significant if"
        total = str(part.height) if parts else wording.counted(part.height, "gap")
        said = f"{begin} {_ALSO[scope]}: {part['significant'].sum() or 'none'} of {total}"
        if corrected:
            many = "" if parts else " for many tests"
            said += f" ({part['survives'].sum() or 'none'} after correction{many})"
        parts.append(said)
    if not parts:
        return ""
    lost = [group for group in one_word(components) if _lost_to_words(judged, group)]
    if lost:
        parts[-1] += f"; {wording.listed(lost)} {'has' if len(lost) == 1 else 'have'} one word"
    if not (judged["scope"] == "wording").any():
        parts.append("no group has two words, so nothing is known of other words")
    return f"{'; '.join(parts)}."


def one_word(components: pl.DataFrame) -> list[str]:
    """List the groups that one word stands for, where others have more (schema.COMPONENTS)."""
    words = components.filter(facets="word", levels="1")
    return [str(group) for group in words["group"].unique().sort()]


def doubts(estimates: pl.DataFrame, gaps: pl.DataFrame, components: pl.DataFrame) -> list[str]:
    """Say which significant gaps one word or template may carry.

    Parameters
    ----------
    estimates: schema.ESTIMATES, whose gaps without a template or word say what carries them.
    gaps: one row each.
    components: schema.COMPONENTS.
    """
    found = gaps.filter(pl.col("survives").fill_null(False))
    if found.is_empty():
        return []
    said = []
    single = [group for group in one_word(components) if (found["group"] == group).any()]
    if components.filter(facets="word").is_empty():
        said.append("No group has two words: no gap can be told from the words for the group.")
    elif single:
        each = "has one word: its gap" if len(single) == 1 else "have one word each: their gaps"
        said.append(f"{wording.listed(single)} {each} cannot be told from that word.")
        if (found["scope"] == "wording").any():
            said.append(
                "Intervals that draw words take the words for a group with one word to vary as "
                "those of the other groups do; where they vary more, they are too narrow."
            )
    carried = estimates.filter(
        pl.col("condition").str.starts_with(WITHOUT), pl.col("reason").str.starts_with(CARRIED)
    ).unique(subset=[*_GAP, "reason"], maintain_order=True)
    carried = carried.join(found, on=_GAP, how="semi", nulls_equal=True)
    unit = pl.col("condition").str.extract(f"^{WITHOUT}([a-z]+) ")
    said += [
        f"{row['group']} {row['score']} of {row['model']}: without the {row['unit']} "
        f"{row['reason'].removeprefix(CARRIED)} the gap would lose half of its size or more."
        for row in carried.with_columns(unit=unit).iter_rows(named=True)
    ]
    return said


def about_templates(
    estimates: pl.DataFrame, gaps: pl.DataFrame, components: pl.DataFrame, sentences: pl.DataFrame
) -> list[str]:
    """Say where intervals that resample single templates can be too narrow.

    Parameters
    ----------
    estimates: schema.ESTIMATES.
    gaps: one row each.
    components: schema.COMPONENTS.
    sentences: of `evidence.read_sentences`.
    """
    families = estimates.filter(pl.col("scope").str.starts_with(FAMILIES))
    place = ["probe", "attribute"]
    other = sentences.drop_nulls("template_id").join(
        families.select(place).unique(), on=place, how="anti", maintain_order="left"
    )
    rates = estimates.filter(statistic="rate").unique(_GAP).select(*_GAP, rate="value")
    return [
        *_by_family(gap_rows(estimates), families),
        *look_alike(other),
        *_rare(gaps.join(rates, on=_GAP, nulls_equal=True, maintain_order="left"), components),
    ]


def _by_family(gaps: pl.DataFrame, families: pl.DataFrame) -> list[str]:
    """Count the verdicts that stand where families of templates are resampled."""
    scope = pl.when(scope=FAMILIES).then(pl.lit("sentences")).otherwise(pl.lit("wording"))
    on = [*_GAP, "scope"]
    summed = families.with_columns(scope=scope)
    both = once(gaps).join(summed, on=on, suffix="_family", nulls_equal=True)
    said = []
    for name in SCOPES:
        part = both.filter(pl.col("significant"), scope=name)
        if part.is_empty():
            continue
        stand = int(part["significant_family"].sum())
        lasting = part.filter("survives")
        corrected = (
            f" ({int(lasting['survives_family'].sum())} of {lasting.height} after correction)"
            if lasting.height
            else ""
        )
        said.append(
            f"{stand} of the {part.height} that are significant if {_REDRAWN[name]} are "
            f"redrawn{corrected}"
        )
    if not said:
        return []
    return [
        "Some templates were written from one opening. Where such families are resampled, not "
        f"single templates, these gaps stay significant: {wording.listed(said)}."
    ]


def _rare(gaps: pl.DataFrame, components: pl.DataFrame) -> list[str]:
    """Warn of rates near 0 or 1 on few templates."""
    levels = components.filter(facets="template").rename({"rate": "score"})
    judged = gaps.filter(pl.col("significant").is_not_null(), pl.col("scope") != "runs")
    counted = judged.join(levels, on=_GAP, nulls_equal=True, maintain_order="left")
    few = counted.filter(
        pl.col("levels").cast(pl.Int64) < _FEW_TEMPLATES,
        pl.min_horizontal(pl.col("rate"), 1 - pl.col("rate")) < _RARE,
    )
    if few.is_empty():
        return []
    rests = wording.counted(few.height, "gap rests", "gaps rest")
    return [
        f"{rests} on rates below {_RARE:.0%} or above {1 - _RARE:.0%} and on fewer than "
        f"{_FEW_TEMPLATES} templates: their intervals are too narrow. Of a rate of 2% on 12 "
        "templates, simulated 95% intervals that redraw sentences held the true gap 83 to 92 "
        "times in 100."
    ]


def _lost_to_words(judged: pl.DataFrame, group: str) -> bool:
    lasting = judged.filter("survives", group=group)["scope"]
    return bool(lasting.eq("sentences").any() and not lasting.eq("wording").any())


def _without_verdict(gaps: pl.DataFrame) -> dict[str, int]:
    """How many gaps have no verdict, by reason; a mirror of another gap is none of its own."""
    reason = pl.col("reason")
    own = gaps.filter(
        pl.col("survives").is_null(), ~reason.str.starts_with(stats.MIRROR),
        reason != stats.UNDEFINED,
    )  # fmt: skip
    counts = own.group_by("reason").len().sort("len", "reason", descending=[True, False])
    return {str(reason): int(n) for reason, n in counts.iter_rows()}


def no_verdicts(gaps: pl.DataFrame) -> list[str]:
    """Say of which classifiers no gap has a verdict, since they cannot do their task.

    The likelihood reading beside a classifier that can is not named: it is shown for comparison.

    Parameters
    ----------
    gaps: schema.KEYS and `reason`.
    """
    keys = wording.shortest_keys(gaps)
    probe = ["probe"] if gaps["probe"].n_unique() > 1 else []
    able = gaps.filter(~refused("reason")).select(
        *(key for key in schema.KEYS if key != "method"), pl.col("method") + stats.LIKELIHOOD
    )
    rows = gaps.filter(refused("reason")).join(
        able.unique(), on=schema.KEYS, how="anti", nulls_equal=True, maintain_order="left"
    )
    rows = rows.unique([*keys, *probe], maintain_order=True)
    named = [
        " on ".join((wording.classifier_name(row, keys), *(str(row[key]) for key in probe)))
        for row in rows.iter_rows(named=True)
    ]
    pairs = list(zip(named, rows["reason"], strict=True))
    if len(pairs) > _NAMED:
        first = "; ".join(f"{name}: {reason}" for name, reason in pairs[:_NAMED])
        return [
            f"No verdict for {len(pairs)} classifiers, of which no gap is judged. {first}; and "
            f"{len(pairs) - _NAMED} more, in the table `estimates`. Tune them, ask them otherwise, "
            "or measure models that can."
        ]
    return [refusal(*pair) for pair in pairs]


def findings(gaps: pl.DataFrame) -> list[Finding]:
    """List the significant gaps by rate and direction, harm first."""
    significant = gaps.filter(pl.col("survives").fill_null(False))
    rates = significant["score"].unique(maintain_order=True).to_list()
    read = [(wording.effect(rate, sign), -sign, rate) for rate in rates for sign in (1, -1)]
    found = []
    for effect, minus, rate in sorted(read, key=_first_harm):
        rows = significant.filter(pl.col("score") == rate, pl.col("value").sign() == -minus)
        if rows.height:
            found.append(Finding(wording.heading(rate, -minus), effect, _groups(gaps, rows)))
    return found


def _first_harm(read: tuple[str, int, str]) -> tuple[int, int, str]:
    effect, minus, rate = read
    place = _READINGS.index(effect) if effect in _READINGS else len(_READINGS)
    return place, minus, rate


def chance_levels(composition: pl.DataFrame) -> dict[tuple[str, str], float | None]:
    """Share of the commonest label by (probe, attribute); None where there is only one label.

    A probe's attribute `all` is over all its attributes.
    """
    groups = stats.without_extras(composition)
    labels = [pl.col(f"items_{label}").sum() for label in schema.LABELS]
    apart = groups.group_by("probe", "attribute").agg(labels)
    whole = groups.group_by("probe").agg(pl.lit(stats.ALL).alias("attribute"), *labels)
    levels: dict[tuple[str, str], float | None] = {}
    for probe, attribute, *counts in pl.concat([whole, apart]).iter_rows():
        several = sum(count > 0 for count in counts) > 1
        levels[probe, attribute] = max(counts) / sum(counts) if several else None
    return levels


def cautions(study: Study, record: Record, tables: Mapping[str, pl.DataFrame]) -> list[str]:
    """List what happened in this study that a reader must know before believing a number.

    Parameters
    ----------
    tables: of `write_tables`; none where the study has no gaps.
    """
    found = tables["notes"].filter(~pl.col("urgent"))["note"].to_list() if tables else []
    if record.study.profile != study.profile:
        found.append(
            f"The statistics are restated with the {study.profile} profile; the study was run "
            f"with the {record.study.profile} profile."
        )
    if study.limit is not None:
        found.append(
            f"Only a balanced sample of some {study.limit:,} items of each attribute or bias type "
            "was used (limit)."
        )
    if not tables:
        return found
    return [
        *found,
        *_about_runs(study, tables["runs"]),
        *_about_coverage(tables["coverage"]),
        *_about_answers(study, tables["answers"]),
        *_about_gaps(gap_rows(tables["estimates"], study.statistics.scope)),
    ]


def _about_runs(study: Study, runs: pl.DataFrame) -> list[str]:
    final = runs.filter(pl.col("stage") == "final")
    found = []
    for key, part in final.group_by("model", "method", "dataset", maintain_order=True):
        by = next((m.selection for m in study.methods if m.name == key[1]), None)
        name = f"{key[0]}, {key[1]} on {key[2]}"
        for reason, text in (("diverged", "diverged"), ("max_steps", "stopped at max_steps")):
            seeds = part.filter(pl.col("stop_reason") == reason)["seed"].sort().to_list()
            if seeds:
                count = wording.counted(len(seeds), "run")
                found.append(f"{name}: {count} {text} ({_seeds(seeds)}).")
        tied = part.filter(pl.col("tied").fill_null(False))["seed"].sort().to_list()
        if tied and not part["selected"].all():
            found.append(
                f"{name}: equal {by or 'validation'} accuracies; the lower seed decided the rank "
                f"of {_seeds(tied)}."
            )
    return found


def _seeds(seeds: Sequence[int]) -> str:
    """Name a few seeds, or count many."""
    if len(seeds) > _NAMED:
        return f"{len(seeds)} seeds"
    return f"seed {wording.listed([str(seed) for seed in seeds])}"


def _about_coverage(coverage: pl.DataFrame) -> list[str]:
    found = []
    for row in coverage.iter_rows(named=True):
        distinct = row["predictions"] - row["repeated"]
        if row["items"] is not None and distinct != row["items"]:
            found.append(
                f"{row['run_id']} has predictions for {distinct:,} of {row['items']:,} items of "
                f"{row['probe']}: the study is not finished."
            )
        if row["repeated"]:
            found.append(f"{row['run_id']} has {row['repeated']:,} repeated predictions.")
    return found


def _about_answers(study: Study, answers: pl.DataFrame) -> list[str]:
    rules = {m.name: str(m.unparsed) for m in prompted_methods(study.methods)}
    found = []
    high = answers.filter(pl.col("run_id") == "all", pl.col("share") > UNPARSED_SHARE)
    for row in high.iter_rows(named=True):
        rule = wording.UNPARSED.get(rules.get(row["method"], ""))
        found.append(
            f"{row['model']}, {row['method']}, on {row['probe']}: no label could be read from "
            f"{row['share']:.1%} of answers{f'; such an answer counts as {rule}' if rule else ''}"
            "."
        )
    return found


def _about_gaps(gaps: pl.DataFrame) -> list[str]:
    found = []
    undefined = gaps.filter(pl.col("value").is_null())
    if undefined.height:
        named = wording.listed(_named(undefined))
        found.append(f"Not defined, since no sentence can be wrong in that way: {named}.")
    single = gaps.filter(reason=stats.ONE_RUN)
    if single.height:
        found.append(
            f"{wording.counted(single.height, 'gap rests', 'gaps rest')} on one run and have no "
            "interval."
        )
    return found


def _groups(gaps: pl.DataFrame, rows: pl.DataFrame) -> tuple[str, ...]:
    """Name each group once: with its gap, or how many classifiers agree."""
    keys = [*schema.KEYS]
    several = gaps.select(keys).unique().height > 1
    named = []
    for key, part in rows.group_by("attribute", "group", maintain_order=True):
        name = f"{key[1]} ({key[0]})" if gaps["attribute"].n_unique() > 1 else str(key[1])
        if not several:
            row = part.row(0, named=True)
            named.append(
                f"{name} {wording.signed(row['value'])} {wording.span(row['low'], row['high'])}"
            )
            continue
        same = gaps.filter(attribute=key[0], group=key[1], score=part["score"][0])
        ends = sorted({wording.signed(part["value"].min()), wording.signed(part["value"].max())})  # type: ignore[arg-type]
        named.append(
            f"{name} in {part.height} of {wording.counted(same.height, 'classifier')} "
            f"({' to '.join(ends)})"
        )
    return tuple(named)


def _named(rows: pl.DataFrame) -> Sequence[str]:
    keys = wording.naming_keys(rows)
    return [
        f"{row['group']} {row['score']} of {wording.classifier_name(row, keys)}"
        for row in rows.iter_rows(named=True)
    ]
