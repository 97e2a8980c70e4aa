"""Match the predictions of two arms, and count the answers that change from one to the other.

Arms are, say, a quantised model and the full one, or two methods of one study. Where each has a
single model (method, or training set), they may differ in it. Answers are matched by the others, by
probe, style and sentence, and by seed where both have seeds. Many answers can change while no gap
does (*masked flips*); two runs of one arm differ too, which is the noise floor. A sentence is one
observation; McNemar's test takes sentences as independent, which those of one template are not.

Shapes: R runs, I items, T templates, G groups, D draws.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl

from raybias import schema
from raybias.errors import ConfigError, DataError
from raybias.measures.compare import Row, refuse_lacking
from raybias.measures.pair_means import mcnemar
from raybias.schema import RUN_KEYS
from raybias.seeding import generator
from raybias.stats.checks import StatisticsWarning, checked_runs, fingerprints
from raybias.stats.components import ROUNDING, Doubles, mean_squares
from raybias.stats.count_arrays import linearised
from raybias.stats.counts import without_extras
from raybias.stats.file_classes import with_classes
from raybias.stats.metric import shares
from raybias.stats.predictions import Source, join_pieces, sources
from raybias.stats.units import BLOCK, CLUSTER
from raybias.table_files import columns_of

#: Whether no label could be read from an answer.
UNREAD: Final = pl.col("pred").is_null() | pl.col("parsed").not_().fill_null(value=False)
_FACTS: Final = ("item_id", "label", "attribute", "group", "template_id", "term")
_CLASSIFIER: Final = schema.KEYS[:3]
#: What intervals draw anew, and the source example of versions, which tables of others may name.
UNIT: Final = "template_id"
SOURCE: Final = "source_id"
#: Run ids of studies end with the seed.
_SEED: Final = r"\.s(\d+)$"
_DRAWS: Final = 1_000
#: Sort keys held at once; 8 MiB.
_CHUNK_ENTRIES: Final = 1 << 20


@dataclass(frozen=True)
class Unit:
    """What intervals draw anew of predictions, in the words of their data."""

    name: str
    """In the plural: `templates`."""
    scope: str = "sentences"
    """What `stats.redrawn` calls it."""
    size: float = 1.0
    """How many of these are one level of `template_id`, on average."""


TEMPLATES: Final = Unit("templates")


@dataclass(frozen=True)
class Matched:
    """What two classifiers answered on one probe in one style."""

    keys: tuple[str, ...]
    """Values of schema.KEYS; `a -> b` where the arms differ."""
    base: pl.DataFrame
    """Predictions with `keys`, sorted by run and item; `run_id` is the seed where it is known."""
    candidate: pl.DataFrame
    paired: bool
    """Whether both have the same runs; otherwise the runs of one say nothing of the other's."""
    condition: str = ""
    """As in schema.ESTIMATES: the class, where labels are this class or another."""

    @cached_property
    def unit(self) -> Unit:
        """What its levels of `template_id` are: nothing that the data do not name."""
        units = self.base.select(UNIT, "item_id").unique().cast(pl.String)
        levels = units[UNIT].unique()
        size = units["item_id"].n_unique() / levels.len()
        if levels.str.starts_with(BLOCK).all():
            runs = self.base["run_id"].n_unique()
            return Unit("rows" if runs == 1 else "items", "items", size)
        if levels.str.starts_with(CLUSTER).all():
            return Unit("clusters of rows", "clusters")
        if SOURCE in self.base.columns:
            return Unit("source examples")
        return Unit("sentences") if (units[UNIT] == units["item_id"]).all() else TEMPLATES


def read_arm(
    paths: Sequence[str], chosen: Mapping[str, str], classes: Sequence[str] = ()
) -> pl.DataFrame:
    """Read one arm's predictions, without scores and the extra groups of markedness.

    `chosen` are values of schema.KEYS to keep; `classes` are those of both arms in the order of
    their numbers, if they are measured by class. Runs are named by their seeds, if ids end with it
    and no two runs share one.

    Raises DataError: as `join_pieces`; or no prediction is left, or one has no template id.
    """
    files = with_classes(sources(paths), classes)
    known = [SOURCE] if all(map(_names_examples, files)) else []
    where, columns = ", ".join(paths), (*RUN_KEYS, *_FACTS, *known, "pred", "parsed")
    frame = without_extras(join_pieces(files, where=where, columns=columns))
    for name, value in chosen.items():
        if name not in schema.KEYS:
            raise ConfigError(
                f"{name!r} does not name a classifier", cure=f"choose by {', '.join(schema.KEYS)}"
            )
        there = frame[name].unique().cast(pl.String).sort().to_list()
        frame = frame.filter(pl.col(name) == value)
        if frame.is_empty():
            cure = f"it has {', '.join(map(repr, there))}"
            raise DataError(f"has no {name} {value!r}", where=where, cure=cure)
    if frame["template_id"].null_count():
        raise DataError(
            "has predictions without template_id, over which changes of gaps are judged",
            where=where,
            cure="name each sentence's template",
        )
    seed = pl.col("run_id").cast(pl.String).str.extract(_SEED)
    seeds = frame.select(RUN_KEYS).unique().with_columns(run_id=seed)
    told = not (seeds["run_id"].null_count() or seeds.is_duplicated().any())
    return frame.with_columns(run_id=seed if told else pl.col("run_id").cast(pl.String))


def _names_examples(file: Source) -> bool:
    """Whether a table of others names the source examples of its rows, and no templates."""
    if not file.is_foreign or file.parts:
        return False
    there = {name.strip().lower() for name in columns_of(file.store, file.name)}
    return SOURCE in there and UNIT not in there


def matched(base: pl.DataFrame, candidate: pl.DataFrame) -> Iterator[Matched]:
    """Yield the classifiers of two arms (`read_arm`) in pairs, by probe and style.

    Raises DataError: a classifier, probe or style that one arm lacks, runs of other items, or an
    item whose label, attribute, group, template or term differs.
    """
    alone = [k for k in _CLASSIFIER if base[k].n_unique() == candidate[k].n_unique() == 1]
    on = [key for key in schema.KEYS if key not in alone]
    refuse_lacking(base, candidate, on, "read both on the same probes, and choose classifiers")
    others = candidate.partition_by(on, as_dict=True)
    for place, part in base.sort(on).partition_by(on, as_dict=True, maintain_order=True).items():
        yield _matched(part, others[place])


def _matched(base: pl.DataFrame, candidate: pl.DataFrame) -> Matched:
    values = [(base[key][0], candidate[key][0]) for key in schema.KEYS]
    keys = [one if one == other else f"{one} -> {other}" for one, other in values]
    texts = zip(schema.KEYS, keys, strict=True)
    named = {key: pl.lit(value, pl.Categorical()) for key, value in texts}
    arms = [part.with_columns(**named).sort("run_id", "item_id") for part in (base, candidate)]
    runs = [arm["run_id"].unique(maintain_order=True).to_list() for arm in arms]
    apart = [
        arm.with_columns(run_id=f"{name} " + pl.col("run_id"))
        for name, arm in zip(("base", "candidate"), arms, strict=True)
    ]
    with warnings.catch_warnings():
        # Equal runs draw a warning elsewhere; between two arms they are a finding.
        warnings.simplefilter("ignore", StatisticsWarning)
        prints = pl.concat(map(fingerprints, apart)).cast({pl.Categorical: pl.String})
        checked_runs(prints, lambda: apart, where="base and candidate", uneven="refuse")
    return Matched(tuple(keys), arms[0], arms[1], paired=runs[0] == runs[1])


def event_flips(arms: Matched, metrics: Sequence[str]) -> pl.DataFrame:
    """Count sentences on which a rate's event became more frequent, and those on which rarer.

    By keys, attribute, group, score (the rate) and condition: `flips_up`, `flips_down`, and
    `p_flips` of McNemar's exact two-sided test (null without a flip).
    """
    by = [*schema.KEYS, "attribute", "group"]
    more = pl.col("event_right") - pl.col("event")
    tables = []
    for rate, share in shares(metrics).items():
        one, other = (
            arm.filter(share.among)
            .group_by(*by, "item_id")
            .agg(event=share.holds.fill_null(value=False).mean())
            for arm in (arms.base, arms.candidate)
        )
        both = one.join(other, on=[*by, "item_id"], nulls_equal=True).group_by(by)
        counts = both.agg(flips_up=(more > 1e-9).sum(), flips_down=(more < -1e-9).sum())
        place = {"score": pl.lit(rate), "condition": pl.lit(arms.condition)}
        named = counts.with_columns(**place).cast({pl.Categorical: pl.String})
        tables.append(named.sort(by))
    counted = pl.concat(tables)
    flipped = counted.select("flips_up", "flips_down").to_numpy().T
    p_flips = np.where(flipped.any(axis=0), mcnemar(*flipped), np.nan)
    return counted.with_columns(p_flips=pl.Series(p_flips).fill_nan(None))


def changed_answers(arms: Matched) -> pl.DataFrame:
    """Count the answers on each attribute, and those that differ between the arms.

    Gives the keys, attribute, `answers`, `differ`, and `of`, which says what is counted: answers,
    or sentences if the runs of the arms are not the same. A sentence differs if a label has another
    share of its answers.
    """
    of = "answers" if arms.paired else "sentences"
    place = [*schema.KEYS, "attribute"]
    each = [*place, "group", "item_id", *(["run_id"] if arms.paired else [])]
    one, other = (
        arm.group_by(*each, pl.col("pred").fill_null(-1))
        .agg(n=pl.len())
        .with_columns(share=pl.col("n") / pl.col("n").sum().over(each))
        for arm in (arms.base, arms.candidate)
    )
    both = one.join(other, on=[*each, "pred"], how="full", coalesce=True, nulls_equal=True)
    change = pl.col("share").fill_null(0) - pl.col("share_right").fill_null(0)
    differs = both.group_by(each).agg(differs=(change.abs() > ROUNDING).any())
    counted = differs.group_by(place).agg(answers=pl.len(), differ=pl.col("differs").sum())
    return counted.with_columns(of=pl.lit(of)).cast({pl.Categorical: pl.String})


def changed_events(arms: Matched, metrics: Sequence[str]) -> pl.DataFrame:
    """Find out how the event of each rate changes from one arm to the other on each attribute.

    Gives the keys, attribute, score, condition, `moved` (whether it changes on any template) and
    `alike` (whether on each template it does so by as much in every group).
    """
    place = [*schema.KEYS, "attribute"]
    where = [*place, "template_id", "group"]
    change = pl.col("event_right") - pl.col("event")
    tables = []
    for rate, share in shares(metrics).items():
        one, other = (
            arm.filter(share.among)
            .group_by(where)
            .agg(event=share.holds.fill_null(value=False).mean())
            for arm in (arms.base, arms.candidate)
        )
        by_group = one.join(other, on=where, nulls_equal=True).with_columns(change=change)
        by_template = by_group.group_by(*place, "template_id").agg(
            moved=(pl.col("change").abs() > ROUNDING).any(),
            apart=pl.col("change").max() - pl.col("change").min(),
        )
        found = by_template.group_by(place).agg(
            pl.col("moved").any(), alike=(pl.col("apart") <= ROUNDING).all()
        )
        tables.append(found.with_columns(score=pl.lit(rate), condition=pl.lit(arms.condition)))
    return pl.concat(tables).cast({pl.Categorical: pl.String})


def described_changes(answers: int, differ: int, of: str, moved: bool, alike: bool) -> str:
    """Describe a gap that does not move by the counts of `changed_answers` and the events."""
    if not differ:
        return f"no {of.removesuffix('s')} differs"
    how = ", none of them in this rate"
    if moved:
        how = ", in all groups alike" if alike else ""
    return f"the gap does not move ({differ:,} of {answers:,} {of} differ{how})"


def answer_flips(arms: Matched, *, level: float) -> Iterator[Row]:
    """Compare, by attribute, the answers that differ between the arms and between runs of one arm.

    Yields rows of the keys and attribute; `answers` of a run; each arm's accuracy and unread share;
    `between`, the share of answers that differ between the arms, at equal seeds where they have
    them; `within`, between two runs of one arm (null where each has one run); `excess` of the first
    over the second, with `low` and `high` over templates; and `p_even`, of the permutation test
    within templates that changes are spread evenly over groups.
    """
    for (attribute,), base in arms.base.group_by("attribute", maintain_order=True):
        candidate = arms.candidate.filter(attribute=attribute)
        items = base.filter(run_id=base["run_id"][0])
        gold_I = items["label"].to_numpy()
        row: Row = dict(zip(schema.KEYS, arms.keys, strict=True))
        row |= {"attribute": attribute, "answers": items.height}
        labels = []
        for name, part in (("base", base), ("candidate", candidate)):
            own_RI = part["pred"].fill_null(-1).to_numpy().reshape(-1, items.height)
            row[f"{name}_accuracy"] = float((own_RI == gold_I).mean())
            row[f"{name}_unread"] = part.select(UNREAD.mean()).item()
            labels.append(own_RI)
        between_I = _differ(*labels, paired=arms.paired)
        # A run never differs from itself, so such pairs are left out of the mean.
        within = [_differ(own, own, paired=False) * (len(own) / (len(own) - 1))
                  for own in labels if len(own) > 1]  # fmt: skip
        row |= dict.fromkeys(("within", "excess", "low", "high"))
        if within:
            within_I = np.mean(within, axis=0)
            excess_I = between_I - within_I
            low, high = _over_templates(excess_I, items["template_id"], level)
            row |= {"within": float(within_I.mean()), "excess": float(excess_I.mean()),
                    "low": low, "high": high}  # fmt: skip
        p_even = _evenness(between_I, items, (*arms.keys, str(attribute)))
        yield row | {"between": float(between_I.mean()), "p_even": p_even}


def _differ(
    one_RI: npt.NDArray[np.int8], other_RI: npt.NDArray[np.int8], *, paired: bool
) -> Doubles:
    """Return shares [I] of pairs of runs that differ: of equal place, or every run with every."""
    if paired:
        return np.asarray((one_RI != other_RI).mean(axis=0))
    values = np.unique(np.concatenate([one_RI, other_RI]))
    agree = ((one_RI == value).mean(axis=0) * (other_RI == value).mean(axis=0) for value in values)
    return np.asarray(1 - sum(agree))


def _over_templates(values_I: Doubles, templates: pl.Series, level: float) -> tuple[float, float]:
    """Interval of a mean over sentences when templates are drawn; NaN where nothing varies."""
    _, place = np.unique(templates.cast(pl.String).to_numpy(), return_inverse=True)
    sizes_T, sums_T = (np.bincount(place, weights).astype(float) for weights in (None, values_I))
    if len(sizes_T) < 2:
        return np.nan, np.nan
    parts_T = linearised(sizes_T[None, None], sums_T[None, None])[0, 0]
    low, high = mean_squares(parts_T, ("template",)).estimate().interval(level)
    return float(low), float(high)


def _evenness(changed_I: Doubles, items: pl.DataFrame, key: Sequence[str]) -> float | None:
    """Test by permutation within templates whether groups differ in their changed answers."""
    place = np.argsort(items["template_id"].cast(pl.String).to_numpy(), kind="stable")
    template, group = (
        np.unique(items[name].cast(pl.String).to_numpy()[place], return_inverse=True)[1]
        for name in ("template_id", "group")
    )
    changed_I = changed_I[place]
    if not (group.any() and np.ptp(changed_I)):
        return None
    member_IG = np.eye(group.max() + 1)[group]
    weights_G = 1 / member_IG.sum(axis=0)

    def unevenness(changed_DI: Doubles) -> Doubles:
        return np.asarray((changed_DI @ member_IG) ** 2 @ weights_G)

    (observed,) = unevenness(changed_I[None])
    random, reached, left = generator("flips", *key), 0, _DRAWS
    while left:
        draws = min(left, max(1, _CHUNK_ENTRIES // len(changed_I)))
        order_DI = np.argsort(template + random.random((draws, len(changed_I))), axis=1)
        reached += int((unevenness(changed_I[order_DI]) >= observed - 1e-9).sum())
        left -= draws
    return (reached + 1) / (_DRAWS + 1)
