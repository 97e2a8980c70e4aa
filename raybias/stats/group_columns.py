"""Read the groups of a table of others: one column or several, cut, crossed and checked.

What looks like one group and is written in two ways, or looks like a missing value, is warned of
and stays as it is written. A group that is called as `schema.ALL` gets another name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import numpy as np
import polars as pl

from raybias.errors import ConfigError, DataError
from raybias.stats.checks import warn
from raybias.stats.classes import number_of
from raybias.table_files import as_text, refuse, rename_reserved

#: Columns over whose values results are pooled, as `schema.ALL`.
POOLED: Final = ("model", "run_id", "style", "attribute", "group")
#: Between the attributes and the groups of an intersection.
CROSSED: Final = ", "
#: Most groups of an attribute; of numbers, which are seldom names of groups, fewer.
MOST_GROUPS: Final = 200
MOST_NUMBERS: Final = 20
#: What people and programs write for a value that is missing.
_MISSING: Final = ("na", "n/a", "nan", "none", "null", "<na>", "nat", "missing")
_LISTED: Final = 3
#: A column of numbers, and how wide its groups are.
_WIDE: Final = re.compile(r"(?P<name>.+):(?P<width>\d+(\.\d+)?)")


def add_groups(
    table: pl.DataFrame,
    by: Sequence[str],
    cut: Mapping[str, Sequence[float]],
    widths: Mapping[str, float],
    where: str,
) -> pl.DataFrame:
    """Make the columns `attribute` and `group` of the columns `by`, below one another.

    Several columns are also crossed; a group that is missing in one of them is refused. Columns of
    numbers have the bounds between their groups in `cut`, or in `widths` how wide groups are.

    Raises DataError: a missing group, or more groups than `MOST_GROUPS` or `MOST_NUMBERS`.
    """
    bounds = {
        **cut,
        **{name: _bounds_of_width(table[name], widths[name], where) for name in widths},
    }
    groups = {
        name: _cut(table[name], bounds[name], where)
        if name in bounds
        else as_text(table[name], where=where)
        for name in dict.fromkeys(by)
    }
    for name, column in groups.items():
        _refuse_missing(column.alias(name), where)
        _refuse_many(column.alias(name), where)
    if len(groups) > 1:
        crossed = pl.select(pl.concat_str(groups.values(), separator=CROSSED)).to_series()
        name = CROSSED.join(groups)
        _refuse_many(crossed.alias(name), where)
        groups[name] = crossed

    rows = table.with_row_index("row")
    parts = []
    for attribute, group in groups.items():
        part = rows.with_columns(group.alias("group"), attribute=pl.lit(attribute))
        if "item_id" in table.columns:
            part = part.with_columns(item_id=pl.concat_str(pl.lit(f"{attribute}."), "item_id"))
        parts.append(part)
    return pl.concat(parts).sort("row", maintain_order=True).drop("row")


def split_widths(by: Sequence[str]) -> tuple[tuple[str, ...], dict[str, float]]:
    """Split columns of groups into their names and, of `NAME:WIDTH`, how wide its groups are.

    Raises ConfigError: a width that is not above 0.
    """
    names, widths = [], {}
    for text in by:
        found = _WIDE.fullmatch(text)
        names.append(found["name"] if found else text)
        if found and not 0 < (width := float(found["width"])) < math.inf:
            raise ConfigError(f"{text} has groups of no width", cure="such as age:10")
        if found:
            widths[found["name"]] = width
    return tuple(names), widths


def _bounds_of_width(column: pl.Series, width: float, where: str) -> tuple[float, ...]:
    """Return the multiples of a width between the numbers of a column, as bounds of groups."""
    places = np.floor(_numbers(column, where).to_numpy() / width)
    first, last = int(places.min()), int(places.max())
    if last - first >= MOST_GROUPS:
        raise DataError(
            f"{column.name} has {last - first + 1:,} groups of {width:g}, and at most {MOST_GROUPS}"
            " are compared",
            where=where,
            cure=f"make them wider: --by {column.name}:{(last - first) * width / 5:.2g}",
        )
    return tuple(place * width for place in range(first + 1, last + 1))


def check_cut(cut: Mapping[str, Sequence[float]], by: Sequence[str]) -> None:
    """Refuse bounds of a column that is no group column, and bounds that do not rise."""
    for name, bounds in cut.items():
        if name not in by:
            raise ConfigError(
                f"--cut names the column {name!r}, which --by does not",
                cure=f"add it: --by {','.join([*by, name])}",
            )
        if not bounds or any(not low < high for low, high in pairwise(bounds)):
            raise ConfigError(
                f"the bounds of {name} do not rise: {', '.join(f'{bound:g}' for bound in bounds)}",
                cure=f"such as --cut {name}=25,45",
            )


def _cut(column: pl.Series, bounds: Sequence[float], where: str) -> pl.Series:
    """Name the interval between `bounds` that each number is in; a bound is in the upper one."""
    numbers = _numbers(column, where)
    if not bounds:
        raise DataError(
            f"all numbers of {column.name} are in one group",
            where=where,
            cure=f"make groups smaller, such as --cut {column.name}={_bounds(numbers)}",
        )
    names = [
        f"below {bounds[0]:g}",
        *(f"{low:g} to below {high:g}" for low, high in pairwise(bounds)),
        f"{bounds[-1]:g} and above",
    ]
    return pl.Series(names).gather(np.digitize(numbers.to_numpy(), bounds))


def _numbers(column: pl.Series, where: str) -> pl.Series:
    """Read a column of numbers, which may be text; `DataError` of one that is none."""
    numbers = column.cast(pl.String).str.strip_chars().cast(pl.Float64, strict=False)
    bad = ~numbers.is_finite().fill_null(value=False)
    refuse(bad, column, "is not a number", where, "fill it in or leave the row out")
    return numbers


def _refuse_missing(column: pl.Series, where: str) -> None:
    missing = column.is_null() | (column.str.strip_chars() == "")
    refuse(missing, column, "is empty", where, "fill it in or leave the row out")


def _refuse_many(column: pl.Series, where: str) -> None:
    """Refuse a column of more groups than are compared, before any work on them."""
    count = column.n_unique()
    if count <= MOST_NUMBERS:
        return
    is_number = column.unique().cast(pl.Float64, strict=False).is_not_null().all()
    if is_number:
        raise DataError(
            f"{column.name} has {count:,} different numbers, and at most {MOST_NUMBERS} are groups",
            where=where,
            cure=f"cut it into groups, such as --cut {column.name}={_bounds(column)}, or"
            f" --by {column.name}:10 for groups of 10",
        )
    if count > MOST_GROUPS:
        raise DataError(
            f"{column.name} has {count:,} groups, and at most {MOST_GROUPS} are compared",
            where=where,
            cure="choose a column of fewer groups, or put rare ones together",
        )


def _bounds(column: pl.Series) -> str:
    """Suggest the terciles of a column of numbers as bounds."""
    numbers = column.cast(pl.Float64)
    terciles = (numbers.quantile(share, "nearest") for share in (1 / 3, 2 / 3))
    return ",".join(f"{bound:g}" for bound in sorted({*filter(None, terciles)} or {1.0}))


def check_names(table: pl.DataFrame, where: str) -> pl.DataFrame:
    """Warn of groups that may be one, or missing; give names that results reserve another name."""
    pairs = table.select("attribute", pl.col("group").cast(pl.String)).unique(maintain_order=True)
    by_attribute = pairs.group_by("attribute", maintain_order=True).agg("group")
    for attribute, groups in by_attribute.iter_rows():
        for alike in _alike(groups):
            warn(
                f"{where}: {', '.join(map(repr, alike))} of {attribute} count as {len(alike)} "
                "groups; write them alike if they are one"
            )
        if missing := [group for group in groups if group.strip().lower() in _MISSING]:
            one = f"{', '.join(map(repr, missing))} of {attribute}"
            warn(
                f"{where}: {one} may stand for a missing value, and counts as a group; leave these "
                "rows out if the group is not known"
            )
    return rename_reserved(table, POOLED, where, warn)


def _alike(groups: Sequence[str]) -> Iterator[list[str]]:
    """Yield the groups that differ in case or blanks alone, or are one number."""
    by_name: dict[str, list[str]] = {}
    for group in groups:
        number = number_of(group)
        name = " ".join(group.casefold().split()) if number is None else repr(number)
        by_name.setdefault(name, []).append(group)
    return (alike for alike in by_name.values() if len(alike) > 1)
