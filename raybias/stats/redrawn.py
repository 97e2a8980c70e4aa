"""Say in words what intervals resample: never seeds of which there is one run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

import polars as pl

from raybias import schema
from raybias.stats.gaps import FAMILIES
from raybias.stats.units import UNITS

#: What is known of seeds: they are resampled; they are for some classifiers, and others have one
#: run; nobody knows what another would change; there are none.
Seeds = Literal["drawn", "some", "one", "none"]

#: What intervals of each scope resample beside seeds, and what else is not known.
_UNITS: Final[Mapping[str, str]] = {
    "sentences": "sentences",
    "wording": "sentences and words for the groups",
    "items": "items",
    "clusters": "clusters of rows",
    FAMILIES: "families of templates",
    f"{FAMILIES}, words": "families of templates and words for the groups",
}
_SEEDS_ALONE: Final = "seeds are redrawn, on these very sentences"
_NO_TEMPLATES: Final = "no templates are known"
_OF_MODELS: Final[Mapping[str, str]] = {
    "models": "models and sentences are redrawn, with these words",
    "models, words": "models, sentences and words for the groups are redrawn",
}


def have_seeds(runs: pl.DataFrame) -> bool:
    """Return whether any of a study's runs (schema.RUNS) has a seed; not if all are published."""
    return runs.is_empty() or bool(runs["seed"].is_not_null().any())


def seeds_drawn(estimates: pl.DataFrame, *, has_seeds: bool = True) -> Seeds:
    """Return whether intervals of rates and gaps (schema.ESTIMATES) resample seeds.

    Those of a classifier do if one of them has an interval over `runs`; with one run none has.

    has_seeds: whether there are any (`have_seeds`).
    """
    if not has_seeds:
        return "none"
    known = estimates.filter(
        pl.col("low").is_not_null(), pl.col("statistic").is_in(["gap", "rate"])
    )
    by_run = known.group_by(schema.KEYS).agg((pl.col("scope") == "runs").any())["scope"]
    if by_run.all():
        return "drawn"
    return "some" if by_run.any() else "one"


def redrawn_by(seeds: Seeds) -> dict[str, str]:
    """Return what intervals of each scope resample, in words that go behind `if` or `as if`."""
    words = {"runs": "nothing is redrawn" if seeds == "none" else _SEEDS_ALONE}
    for scope, units in _UNITS.items():
        unknown = [_NO_TEMPLATES] if scope == "items" else []
        if seeds == "drawn":
            joined = f"seeds, {units}" if " and " in units else f"seeds and {units}"
            said = f"{joined} are redrawn"
        elif seeds == "some":
            said = f"{units} are redrawn, and the seeds of classifiers with several runs"
        elif seeds == "one" and scope in UNITS:
            said = f"{units} are redrawn, in this one run"
        else:
            said = f"{units} are redrawn"
            unknown += ["other seeds are not known"] if seeds == "one" else []
        words[scope] = f"{said} ({' and '.join(unknown)})" if unknown else said
    return {**words, **_OF_MODELS}
