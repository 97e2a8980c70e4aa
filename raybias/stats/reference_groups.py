"""Decide which groups enter an attribute's mean."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import polars as pl

from raybias.errors import ConfigError
from raybias.schema import EXTRA_GROUPS

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


class StatisticsWarning(UserWarning):
    """Something about the data that changes what a gap means."""


class UnevenRuns(StatisticsWarning):
    """Runs of one classifier that do not hold the same items; to be read before any number."""


def membership(
    groups: pl.DataFrame, chosen: Callable[[str, str], Sequence[str] | None]
) -> pl.DataFrame:
    """Say for each group whether it enters its attribute's mean.

    Parameters
    ----------
    groups: probe, attribute, group; one row each; without the extra groups.
    chosen: the reference groups of a probe's attribute; None takes the papers' list.

    Returns
    -------
    `groups` with `in_mean`.

    Raises
    ------
    ConfigError: a chosen group that the probe does not have, or an empty choice.

    Warns
    -----
    StatisticsWarning: a probe has only some groups of the papers' list; then all of its
    groups enter, since a mean over the rest of the list would be another metric.
    """
    several = groups["probe"].n_unique() > 1
    inside: list[tuple[str, str, str, bool]] = []
    for (probe, attribute), rows in groups.sort(groups.columns).group_by(
        ["probe", "attribute"], maintain_order=True
    ):
        present = rows["group"].to_list()
        wanted = chosen(str(probe), str(attribute))
        if wanted is None:
            wanted = _published(str(probe), str(attribute), present)
        else:
            where = f"reference groups of probe {probe}" if several else "reference groups"
            check_reference_groups(rows, {str(attribute): wanted}, where=where)
        inside += [(str(probe), str(attribute), group, group in wanted) for group in present]
    return pl.DataFrame(
        inside,
        schema={"probe": pl.String, "attribute": pl.String, "group": pl.String,
                "in_mean": pl.Boolean},
        orient="row",
    )  # fmt: skip


def sole_references(inside: pl.DataFrame) -> pl.DataFrame:
    """List the groups that alone are their attribute's mean, so that their gap is always 0.

    Parameters
    ----------
    inside: of `membership`.

    Returns
    -------
    probe, attribute, group.
    """
    alone = pl.len().over("probe", "attribute") == 1
    return inside.filter("in_mean").filter(alone).drop("in_mean")


def _published(probe: str, attribute: str, present: Sequence[str]) -> Sequence[str]:
    listed = REFERENCE_GROUPS.get(attribute, ())
    missing = [group for group in listed if group not in present]
    if missing and len(missing) < len(listed):
        warnings.warn(
            f"{attribute}{f' of probe {probe}' if probe else ''} lacks {', '.join(missing)} of "
            f"the papers' groups; the mean is over all its groups: {', '.join(present)}",
            StatisticsWarning,
            stacklevel=5,
        )
    return present if missing else listed or present


def check_reference_groups(
    groups: pl.DataFrame,
    chosen: Mapping[str, Sequence[str]],
    *,
    where: str = "reference groups",
) -> None:
    """Refuse reference groups that a probe does not have.

    Parameters
    ----------
    groups: attribute and group of a probe's items or predictions; rows may repeat.
    chosen: reference groups by attribute.
    where: who chose them, for messages.

    Raises
    ------
    ConfigError: an attribute or group that is not there, an extra group, or an empty choice.
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
            _check_group(attribute, group, present, where)


def _check_group(attribute: str, group: str, present: Sequence[str], where: str) -> None:
    if group in EXTRA_GROUPS:
        raise ConfigError(
            f"{attribute} lists {group!r}, which is no group and enters no mean",
            where=where,
            cure="leave it out; its effect is in the table of markedness",
        )
    if group not in present:
        near = difflib.get_close_matches(group, present, n=1)
        raise ConfigError(
            f"{attribute} has no group {group!r}",
            where=where,
            cure=f"did you mean {near[0]!r}?"
            if near
            else f"groups are {', '.join(sorted(present))}",
        )
