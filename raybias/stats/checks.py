"""Check what gaps rest on: that runs can be averaged, and which groups enter an attribute's mean.

A run's predictions are reduced to sums of hashes that add up over pieces in any order: of its
items, of their facts and of the predictions. The checks cost one pass and no memory.
"""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Literal

import polars as pl

from raybias import schema
from raybias.errors import ConfigError, DataError, RaybiasWarning
from raybias.schema import EXTRA_GROUPS, LIKELIHOOD, RUN_KEYS
from raybias.stats.units import UNITS

#: The papers' lists (Kohankhaki2024, code); an attribute that is not here uses all its groups.
REFERENCE_GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "race": (
        "african_american", "american_indian", "asian", "hispanic", "pacific_islander", "white",
    ),
    "age": ("adult", "old", "young"),
    "sexuality": ("asexual", "bisexual", "heterosexual", "homosexual", "other"),
    "gender": ("female", "male", "many-genders", "non-binary", "trans"),
    "religion": ("christianity", "islam", "judaism"),
    "disability": (
        "chronic_illness", "cognitive", "hearing", "mental_health", "mobility", "physical",
        "sight", "without",
    ),
}  # fmt: skip
#: What an item is; the last two may be unknown to some files.
_FACTS: Final = ("label", "attribute", "group", "template_id", "term")
_ITEMS: Final = ("n", "items")
_SUMS: Final = (*_ITEMS, "facts", "preds")

Frames = Callable[[], Iterable[pl.DataFrame]]


class StatisticsWarning(RaybiasWarning):
    """Something about the data that changes what a gap means."""


class UnevenRuns(StatisticsWarning):
    """Runs of one classifier that do not hold the same items; to be read before any number."""


def warn(text: str, category: type[StatisticsWarning] = StatisticsWarning) -> None:
    """Issue a `StatisticsWarning`."""
    warnings.warn(text, category, stacklevel=3)


def fingerprints(predictions: pl.DataFrame, by: Sequence[str] = RUN_KEYS) -> pl.DataFrame:
    """Sum up what each run holds and predicts.

    `predictions` are schema.PREDICTIONS, with or without `answer`. Gives `by`, n (predictions),
    items, facts and preds (sums of hashes, modulo 2**64) and prompted.
    """
    item = predictions["item_id"].hash().to_numpy()
    # Categories, so that texts hash alike however a file was read.
    facts = predictions.select(_FACTS).cast({pl.String: pl.Categorical})
    label = predictions["pred"].fill_null(-1)
    prompted = pl.col("method").cast(pl.String).str.ends_with(LIKELIHOOD)
    if "answer" in predictions.columns:
        prompted |= pl.col("answer").is_not_null()
    each = predictions.select(*by, prompted=prompted).with_columns(
        items=item,
        # A product of hashes changes where two items change places.
        facts=item * (facts.hash_rows().to_numpy() | 1),
        preds=item * (label.hash().to_numpy() | 1),
    )
    sums = pl.col("items", "facts", "preds").sum()
    return each.group_by(by).agg(pl.col("prompted").any(), sums, n=pl.len().cast(pl.UInt64))


def checked_runs(
    prints: pl.DataFrame, frames: Frames, *, where: str, uneven: Literal["refuse", "warn"]
) -> pl.DataFrame:
    """Check that runs can be averaged, and find those that are copies of another.

    `prints` are of `fingerprints`; `frames` reads the predictions again, where runs hold different
    items. Gives RUN_KEYS of the prompted runs to leave out: all but the first where all are the
    same. A StatisticsWarning names runs that gave the same predictions.

    Raises DataError: an item that is not the same in all runs, or `uneven` runs.
    """
    prints = prints.group_by(RUN_KEYS).agg(pl.col("prompted").any(), pl.col(_SUMS).sum())
    for problem in _uneven(prints):
        if uneven == "refuse":
            raise DataError(
                problem,
                where=where,
                cure="give whole runs: finish the study with the same `raybias run`, or leave "
                "out what is not whole",
            )
        warn(problem, UnevenRuns)
    _check_items(prints, frames, where)
    same = pl.col("preds").n_unique().over(schema.KEYS) == 1
    first = pl.col("run_id") == pl.col("run_id").min().over(schema.KEYS)
    dropped = prints.filter("prompted", same, ~first).select(RUN_KEYS).sort(RUN_KEYS)
    for row in dropped.group_by(schema.KEYS).len().sort(schema.KEYS).iter_rows(named=True):
        warn(
            f"all {row['len'] + 1} runs of {_classifier(row)} gave the same predictions: they "
            "count as one run, without an interval"
        )
    others = prints.join(dropped.select(schema.KEYS), on=schema.KEYS, how="anti", nulls_equal=True)
    copies = others.group_by(*schema.KEYS, *_ITEMS, "preds").agg(pl.col("run_id").sort())
    copies = copies.filter(pl.col("run_id").list.len() > 1).sort(*schema.KEYS, "run_id")
    for row in copies.iter_rows(named=True):
        warn(
            f"{_named(row['run_id'])} of {_classifier(row)} gave the same {row['n']:,} "
            "predictions: copies of one run, or seeds that change nothing; they count as "
            "different runs"
        )
    return dropped


def _uneven(prints: pl.DataFrame) -> Iterable[str]:
    sets = prints.group_by(*schema.KEYS, *_ITEMS).agg(pl.col("run_id").sort())
    several = sets.filter(pl.len().over(schema.KEYS) > 1).sort(*schema.KEYS, "n", "run_id")
    for keys, part in several.group_by(schema.KEYS, maintain_order=True):
        held = "; ".join(
            f"{_named(runs)} {'holds' if len(runs) == 1 else 'hold'} {n:,}"
            for n, runs in part.select("n", "run_id").iter_rows()
        )
        others = "" if part["n"].is_unique().all() else ", but not the same ones"
        yield (
            f"the runs of {_classifier(dict(zip(schema.KEYS, keys, strict=True)))} do not hold the "
            f"same items, so their mean compares different sentences: {held}{others}"
        )


def _check_items(prints: pl.DataFrame, frames: Frames, where: str) -> None:
    """Refuse an item whose label, attribute, group, template or term differs between runs."""
    # One run for all that hold the same; where each probe has one, nothing can differ.
    first = prints.sort(RUN_KEYS).unique(
        ["probe", *_ITEMS, "facts"], keep="first", maintain_order=True
    )
    few = first.filter(pl.len().over("probe") > 1).select(RUN_KEYS)
    if few.is_empty():
        return
    found = pl.concat(
        frame.select(*RUN_KEYS, "item_id", *_FACTS)
        .cast({pl.Categorical: pl.String})
        .join(few, on=RUN_KEYS, how="semi", nulls_equal=True)
        for frame in frames()
    )
    item = ["probe", "item_id"]
    # Blocks are numbered within a classifier: another one, with other items, has other numbers.
    of_classifier = pl.col("template_id").n_unique().over(*schema.KEYS, "item_id") == 1
    is_block = pl.col("template_id").str.contains(f"^({'|'.join(UNITS.values())})")
    found = found.with_columns(template_id=pl.when(~(is_block & of_classifier)).then("template_id"))
    # A template or term that some files do not have is unknown, and nothing else.
    differs = [pl.col(name).drop_nulls().n_unique() > 1 for name in _FACTS]
    broken = found.group_by(item).agg(differs).filter(pl.any_horizontal(_FACTS)).sort(item)
    if broken.is_empty():
        return
    worst = broken.row(0, named=True)
    name = next(fact for fact in _FACTS if worst[fact])
    rows = found.filter(probe=worst["probe"], item_id=worst["item_id"]).drop_nulls(name)
    one, other = rows.unique(name, keep="first", maintain_order=True).head(2).iter_rows(named=True)
    more = f" (and {broken.height - 1:,} more items)" if broken.height > 1 else ""
    raise DataError(
        f"item {worst['item_id']!r} of probe {worst['probe']!r} has the {name} {one[name]!r} in "
        f"run {one['run_id']!r} and {other[name]!r} in run {other['run_id']!r}{more}",
        where=where,
        cure="give predictions on one version of the probe, and each probe its own name",
    )


def _classifier(row: Mapping[str, object]) -> str:
    """Name a classifier by its model and method, and its probe if the probe has a name."""
    name = f"{row['model']} {row['method']}".strip()
    return f"{name} on {row['probe']}" if row["probe"] else name


def _named(runs: Sequence[str]) -> str:
    return f"run{'s' * (len(runs) > 1)} {', '.join(runs)}"


def membership(
    groups: pl.DataFrame, chosen: Callable[[str, str], Sequence[str] | None]
) -> pl.DataFrame:
    """Say for each probe, attribute and group of a table whether it enters the mean: `in_mean`.

    `chosen` gives the reference groups of a probe's attribute; None takes the papers' list. Where a
    probe has only some groups of the list a StatisticsWarning says that all of its groups enter.

    Raises ConfigError: a chosen group that the probe does not have, or an empty choice.
    """
    place = ["probe", "attribute"]
    named = groups.select(pl.col(*place, "group").cast(pl.String)).unique().sort(*place, "group")
    several = named["probe"].n_unique() > 1
    inside: list[tuple[str, str, str, bool]] = []
    for (probe, attribute), rows in named.group_by(place, maintain_order=True):
        present = rows["group"].to_list()
        wanted = chosen(probe, attribute)
        if wanted is None:
            wanted = _published(probe, attribute, present)
        else:
            where = f"reference groups of probe {probe}" if several else "reference groups"
            check_reference_groups(rows, {attribute: wanted}, where=where)
        inside += [(probe, attribute, group, group in wanted) for group in present]
    types = {**dict.fromkeys(("probe", "attribute", "group"), pl.String), "in_mean": pl.Boolean}
    return pl.DataFrame(inside, types, orient="row")


def sole_references(inside: pl.DataFrame) -> pl.DataFrame:
    """List the groups that alone are their attribute's mean, so that their gap is always 0."""
    alone = pl.len().over("probe", "attribute") == 1
    return inside.filter("in_mean").filter(alone).drop("in_mean")


def _published(probe: str, attribute: str, present: Sequence[str]) -> Sequence[str]:
    listed = REFERENCE_GROUPS.get(attribute, ())
    missing = [group for group in listed if group not in present]
    if missing and len(missing) < len(listed):
        warn(
            f"{attribute}{f' of probe {probe}' if probe else ''} lacks {', '.join(missing)} of "
            f"the papers' groups; the mean is over all its groups: {', '.join(present)}"
        )
    return present if missing else listed or present


def check_reference_groups(
    groups: pl.DataFrame,
    chosen: Mapping[str, Sequence[str]],
    *,
    where: str = "reference groups",
) -> None:
    """Refuse `chosen` reference groups, by attribute, that `groups` of a probe do not hold.

    Raises ConfigError: an attribute or group that is not there, an extra group, or an empty choice.
    """
    for attribute, wanted in chosen.items():
        present = groups.filter(pl.col("attribute") == attribute)["group"].unique().to_list()
        if not present:
            attributes = groups["attribute"].unique().cast(pl.String).sort().to_list()
            raise ConfigError(
                f"no items on the attribute {attribute!r}",
                where=where,
                cure=f"attributes are {', '.join(attributes)}",
            )
        if not wanted:
            raise ConfigError(
                f"{attribute!r} names no group", where=where, cure="name some, or leave it out"
            )
        for group in wanted:
            if group in EXTRA_GROUPS:
                raise ConfigError(
                    f"{attribute} lists {group!r}, which is no group and enters no mean",
                    where=where,
                    cure="leave it out; its effect is in the table of markedness",
                )
            if group not in present:
                near = difflib.get_close_matches(group, present, n=1)
                known = f"groups are {', '.join(sorted(present))}"
                cure = f"did you mean {near[0]!r}?" if near else known
                raise ConfigError(f"{attribute} has no group {group!r}", where=where, cure=cure)
