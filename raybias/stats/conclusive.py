"""Decide which answers can carry no conclusion, since their classifier cannot do its task."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from string import ascii_uppercase
from typing import Final

import numpy as np
import polars as pl

from raybias import schema
from raybias.stats import sentiment
from raybias.stats.components import Doubles, MeanEstimate
from raybias.stats.count_arrays import count_arrays, linearised
from raybias.stats.counts import without_extras
from raybias.stats.intervals import unit_intervals, without_each
from raybias.stats.scopes import estimates_of_sum

#: Larger shares refuse: of answers that cannot be read, of one label, of one place of an option.
UNREADABLE_SHARE: Final = 0.5
_ONE_LABEL: Final = 0.95
_ONE_PLACE: Final = 0.9
#: A smaller share of the probability on what was offered refuses.
HELD: Final = 0.5

#: What to do, by words that each reason holds.
CURES: Final[Mapping[str, str]] = {
    " ended at their limit ": "Raise answer_tokens, or turn the thinking of the model off.",
    " were withheld by ": "Measure the model behind an endpoint without this filter.",
    "name no ": "Use a template that it answers with these words, or other words.",
    " of the probability": "Use the model's chat template, or a prompt that it answers so.",
    " stand in place ": "Read options by their words (option_likelihood, read: text), ask in "
    "several orders (orders), or measure a model that can.",
    " of its answers are '": "Tune it (soft_prompt, lora), show it examples (few_shot), or measure "
    "a model that can.",
    " always answering ": "Tune it (soft_prompt, lora), show it examples (few_shot), or measure a "
    "model that can.",
}


@dataclass(frozen=True)
class Showing:
    """What answers show of what their classifier can do; None of what is not known."""

    unread: float = 0.0
    wanted: str = "label word"
    """What an answer should name."""
    held: float | None = None
    """The probability on `offered`, from 0 to 1; the mean over answers."""
    offered: str = ""
    place: tuple[float, str] | None = None
    """The share of the commonest place among the options as asked, and its letter."""
    label: tuple[float, str] | None = None
    """The share of the commonest answer."""
    right: tuple[float, float, float] | None = None
    """The accuracy and its interval."""
    constant: tuple[float, str] | None = None
    """The share of the commonest right answer, which always naming it would reach."""
    cut: float = 0.0
    """The share of answers that ended at their limit of tokens before they named anything."""
    filtered: float = 0.0
    """The share of answers that a filter of contents withheld."""


def why_not(shown: Showing) -> str | None:
    """Return why nothing can be concluded from answers; None where something can."""
    if shown.unread > UNREADABLE_SHARE:
        return _why_unread(shown)
    if shown.held is not None and shown.held < HELD:
        return f"{shown.offered} hold {shown.held:.1%} of the probability of what it would write"
    if shown.place is not None and shown.place[0] > _ONE_PLACE:
        share, letter = shown.place
        return f"it cannot do the task: {share:.1%} of its answers stand in place {letter}"
    if shown.label is not None and shown.label[0] > _ONE_LABEL:
        share, name = shown.label
        return f"it cannot do the task: {share:.1%} of its answers are '{name}'"
    if shown.right is None or shown.constant is None or shown.right[1] > shown.constant[0]:
        return None
    accuracy, low, high = shown.right
    share, name = shown.constant
    able = "it cannot do the task" if accuracy <= share else "it is not shown to do the task"
    # Digits that tell the two apart.
    form = ".2%" if low < share and f"{low:.1%}" == f"{share:.1%}" else ".1%"
    return (
        f"{able}: it is right in {accuracy:.1%} of answers [{low:{form}}, {high:.1%}], and always "
        f"answering '{name}' would be in {share:{form}}"
    )


def _why_unread(shown: Showing) -> str:
    if shown.cut > shown.unread / 2:
        return (
            f"{shown.cut:.1%} of its answers ended at their limit of tokens before they named a "
            f"{shown.wanted}"
        )
    if shown.filtered > shown.unread / 2:
        return f"{shown.filtered:.1%} of its answers were withheld by a filter of contents"
    return f"{shown.unread:.1%} of its answers name no {shown.wanted}"


def refused(column: str) -> pl.Expr:
    """Select the rows whose reason, in a column of text, is one of `why_not`."""
    return pl.col(column).str.contains_any(list(CURES)).fill_null(False)


def without_refused_ends(table: pl.DataFrame) -> pl.DataFrame:
    """Take low, high and p from the rows whose `reason` is one of `why_not`."""
    ends = [name for name in ("low", "high", "p") if name in table.columns]
    return table.with_columns(pl.when(~refused("reason")).then(name) for name in ends)


def is_refused(reason: str | None) -> bool:
    """Return whether a reason is one of `why_not`."""
    return any(words in (reason or "") for words in CURES)


def refusal(name: str, reason: str, what: str = "gap") -> str:
    """Say that no `what` of a classifier is judged, why (of `why_not`), and what to do."""
    cure = next((text for words, text in CURES.items() if words in reason), "")
    return f"No verdict for {name}: {reason}. No {what} of it is judged. {cure}".strip()


def of_predictions(
    cells: pl.DataFrame,
    answers: pl.DataFrame,
    *,
    level: float,
    judged: Collection[str] = (),
    unanswered: pl.DataFrame | None = None,
    labels: Mapping[int, str] = sentiment.BY_CODE,
) -> pl.DataFrame:
    """Find the classifiers of whose predictions on a probe nothing is concluded: KEYS and `reason`.

    `cells` are schema.CELLS, `answers` schema.ANSWERS, `unanswered` schema.UNANSWERED if it is
    known, and `labels` names the classes by their numbers; of methods in `judged`, whose labels are
    a judge's, no label is right. The accuracy's interval covers other runs and templates (without
    templates, other runs or sentences); it must lie above the commonest right label's share. A
    probe with one right label shows no accuracy, but whether nearly all answers are another one.
    """
    whole = answers.filter(run_id="all")
    unread = {tuple(row[:-1]): row[-1] for row in whole.select(*schema.KEYS, "share").iter_rows()}
    missing = _unanswered_shares(unanswered)
    known = without_extras(cells).cast({pl.Categorical: pl.String})
    rows = []
    for keys, part in known.partition_by(schema.KEYS, as_dict=True, maintain_order=True).items():
        shown = Showing(unread.get(keys, 0.0))
        # Of a comparison, `one -> other`.
        if not {*keys[1].split(" -> ")} & {*judged}:
            shown = _of_labels(part, shown.unread, level, labels)
        cut, filtered = missing.get(keys, (0.0, 0.0))
        rows.append((*keys, why_not(replace(shown, cut=cut, filtered=filtered))))
    types = dict.fromkeys((*schema.KEYS, "reason"), pl.String)
    return pl.DataFrame(rows, types, orient="row").drop_nulls("reason").sort(schema.KEYS)


def _unanswered_shares(
    unanswered: pl.DataFrame | None,
) -> dict[tuple[str, ...], tuple[float, float]]:
    """Return the shares of answers that were cut off and filtered, by schema.KEYS."""
    if unanswered is None or unanswered.is_empty():
        return {}
    sums = unanswered.group_by(schema.KEYS).agg(pl.col("answers", "cut", "filtered").sum())
    return {
        tuple(map(str, keys)): (cut / answers, filtered / answers)
        for *keys, answers, cut, filtered in sums.iter_rows()
    }


def _of_labels(
    cells: pl.DataFrame, unread: float, level: float, labels: Mapping[int, str]
) -> Showing:
    gold, named = (
        cells.filter(pl.col(name).is_not_null())
        .group_by(name)
        .agg(pl.col("n").sum())
        .sort("n", name, descending=[True, False])
        for name in ("label", "pred")
    )
    if named.is_empty():
        return Showing(unread)
    constant, label = (
        (frame["n"][0] / frame["n"].sum(), labels.get(frame[name][0], str(frame[name][0])))
        for frame, name in ((gold, "label"), (named, "pred"))
    )
    if gold.height == 1:
        # That nearly all answers are the right one is no fault.
        return Showing(unread, label=None if label[1] == constant[1] else label)
    return Showing(unread, label=label, right=_accuracy(cells, level), constant=constant)


def _accuracy(cells: pl.DataFrame, level: float) -> tuple[float, float, float]:
    cells = cells.filter(pl.col("label").is_not_null())
    one = cells.with_columns(
        pl.col("template_id").fill_null(""), group=pl.lit(""), attribute=pl.lit("")
    )
    (counts,) = count_arrays(one, ["accuracy"])
    values_GRT = linearised(counts.items_KGRT[0], counts.hits_KGRT[0])
    mean, items = values_GRT.mean(axis=(1, 2)), cells["n"].sum() / values_GRT.shape[1]
    found = MeanEstimate(mean, mean * (1 - mean) / items, np.array([max(items - 1, 1)]))
    known = estimates_of_sum([values_GRT])
    if "runs" in known:
        found = found.at_least(known["runs"])
    if not cells["template_id"].null_count():
        found = known.get("sentences", found)
    return _ends(mean, *found.interval(level))


def _ends(mean: Doubles, low: Doubles, high: Doubles) -> tuple[float, float, float]:
    """Return a share [1] and its interval within 0 to 1; where nothing varies it has no width."""
    ends = mean if np.isnan(low[0]) else np.clip([low[0], high[0]], 0, 1)
    return float(mean[0]), float(ends[0]), float(ends[-1])


def of_options(
    answers: pl.DataFrame, *, level: float, letters: Collection[str] = ()
) -> dict[tuple[str, ...], str]:
    """Find whose answers to questions with options carry no conclusion, by model, probe and method.

    The accuracy is that on disambiguated questions, its interval over question templates. Methods
    that compare `letters` need half of the probability on these.
    """
    found = {}
    keys = ("model", "probe", "method")
    for names, part in answers.partition_by(keys, as_dict=True, maintain_order=True).items():
        named = part.filter(pl.col("pred").is_not_null())
        shown = Showing(
            1 - named.height / part.height,
            "option",
            held=held(part) if names[2] in letters else None,
            offered="the letters",
            place=_place(named),
        )
        if (sure := part.filter(context="disambig")).height:
            gold = np.bincount(sure["label"].to_numpy())
            most = gold.max() / gold.sum(), f"option {gold.argmax() + 1}"
            shown = replace(shown, right=_right(sure, level), constant=most)
        if reason := why_not(shown):
            found[tuple(map(str, names))] = reason
    return found


def held(answers: pl.DataFrame) -> float | None:
    """Return the mean probability on all options together; None where scores are not known."""
    sums = answers["scores"].list.eval(pl.element().cast(pl.Float64).exp()).list.sum()
    known = sums.filter(answers["scores"].list.len().fill_null(0) > 1)
    return float(known.to_numpy().mean()) if known.len() else None


def _place(named: pl.DataFrame) -> tuple[float, str] | None:
    """Return the commonest place of answers as asked, unless right answers stand there as often."""
    if named.is_empty():
        return None
    places = named.select(pl.col("pred", "label", "unknown", "target").max()).row(0)
    options = 1 + max(int(place) for place in places if place is not None)
    moved = pl.col("prompt").str.extract(r"order (\d+)").cast(pl.Int64).fill_null(1) - 1
    asked_N2 = named.select(
        (pl.col(name).cast(pl.Int64) - moved) % options for name in ("pred", "label")
    ).to_numpy()
    answered, right = (np.bincount(each, minlength=options) / len(each) for each in asked_N2.T)
    place = int(answered.argmax())
    if right[place] > _ONE_PLACE:
        return None
    return float(answered[place]), ascii_uppercase[place]


def _right(answers: pl.DataFrame, level: float) -> tuple[float, float, float]:
    right = (pl.col("pred") == pl.col("label")).fill_null(False)
    units = answers.group_by("category", "template_id").agg(right.sum().alias("right"), n=pl.len())
    right_U, n_U = (units[name].to_numpy().astype(np.float64) for name in ("right", "n"))
    value_M = np.array([right_U.sum() / n_U.sum()])
    with np.errstate(invalid="ignore"):
        without_MU = (without_each(right_U) / without_each(n_U))[None]
    low, high, *_ = unit_intervals(value_M, [(without_MU, n_U)], (0, 1), level)
    return _ends(value_M, low, high)


def of_decisions(answers: pl.DataFrame) -> dict[tuple[str, ...], str]:
    """Find, by model, probe and "", whose two answers hold less than half of the probability."""
    both = pl.sum_horizontal(pl.col("favourable", "unfavourable").exp())
    shares = answers.group_by("model", "probe", maintain_order=True).agg(both.mean())
    reasons = {
        (model, probe, ""): why_not(Showing(held=share, offered="the two answers"))
        for model, probe, share in shares.iter_rows()
    }
    return {names: reason for names, reason in reasons.items() if reason}
