"""Choose the rules by which gaps of files are judged: their study's, or a profile's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from raybias.config import Profile, Statistics
from raybias.errors import ConfigError
from raybias.report.load_results import restated
from raybias.report.tables import rules_of
from raybias.stats import GapRules, check_metrics
from raybias.storage import Store
from raybias.study_record import read_record


def rules_of_files(
    paths: Sequence[str | Path],
    *,
    profile: Profile | None = None,
    reference_groups: Mapping[str, Sequence[str]] | None = None,
    options: Mapping[str, Any] | None = None,
) -> GapRules:
    """Return the rules by which the gaps of prediction files are judged.

    Parameters
    ----------
    paths: of predictions. An OUT, and what lies in its folder `predictions`, brings the
        reference groups and statistics of its study.
    profile: states the statistics by this profile, as `raybias report` does.
    reference_groups: by attribute, instead of the study's or the papers'.
    options: fields of `Statistics` instead of the study's or profile's; None and what is empty
        leaves them.

    Raises
    ------
    ConfigError: studies that are judged by different rules, no such metric, or a scope that the
        interval cannot cover.
    OutputError: an OUT with a broken record.
    """
    chosen = reference_groups or {}
    stated = {name: value for name, value in (options or {}).items() if value}
    check_metrics(stated.get("metrics", ()))
    found: dict[str, GapRules] = {}
    for out in dict.fromkeys(filter(None, map(out_of, paths))):
        study = read_record(Store(out)).study
        found[out] = rules_of(restated(study, profile) if profile else study)
    if not found:
        rules = GapRules(Statistics.under(profile or "strict"))
    else:
        rules = _common({out: _stated(each, stated) for out, each in found.items()}, chosen)
    return replace(_stated(rules, stated), everywhere=chosen)


def out_of(path: str | Path, folder: str = "predictions") -> str | None:
    """Return the OUT that a path is, or whose `folder` it is or is in."""
    text = str(path)
    whole = text if "://" in text or text.startswith("/") else f"./{text}"
    for place in (whole, f"{whole}/".rpartition(f"/{folder}/")[0]):
        if place and Store(place).exists("study.yaml"):
            return place.rstrip("/")
    return None


def _stated(rules: GapRules, options: Mapping[str, Any]) -> GapRules:
    try:
        stated = type(rules.statistics)(**{**dict(rules.statistics), **options})
    except ValidationError as error:
        raise ConfigError(str(error.errors()[0]["msg"]).removeprefix("Value error, ")) from error
    return replace(rules, statistics=stated)


def _common(found: Mapping[str, GapRules], chosen: Mapping[str, Sequence[str]]) -> GapRules:
    """Join the rules of all OUTs where they agree."""
    (first, rules), *others = found.items()
    probes = {name: dict(groups) for name, groups in rules.probes.items()}
    for out, other in others:
        for name in type(other.statistics).model_fields:
            one, two = (getattr(each.statistics, name) for each in (rules, other))
            if one != two:
                raise ConfigError(
                    f"the studies are judged differently: {name} is {one} in {first}, {two} in "
                    f"{out}",
                    cure="give --profile, --scope or --interval, or ask for each alone",
                )
        for probe, groups in other.probes.items():
            own = probes.setdefault(probe, dict(groups))
            for attribute in sorted({*own, *groups} - {*chosen}):
                if set(own.get(attribute, ())) != set(groups.get(attribute, ())):
                    raise ConfigError(
                        f"{first} and {out} take the gaps of {attribute} in probe {probe} from "
                        "different groups",
                        cure=f"give --reference {attribute}=GROUP,..., or ask for each alone",
                    )
    return replace(rules, probes=probes)
