"""By which rules the gaps of files are judged: those of the study that wrote them, or a profile's.

A study's OUT says in its record what its gaps are taken from and how they are judged, and
its report follows that; so does everything else that reads its predictions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from raybias.config import Interval, Profile, Statistics
from raybias.errors import ConfigError
from raybias.report.load_results import restated
from raybias.report.tables import rules_of
from raybias.stats import GapRules
from raybias.storage import Store
from raybias.study_record import read_record

_FOLDER = "/predictions/"


def rules_of_files(
    paths: Sequence[str | Path],
    *,
    profile: Profile | None = None,
    interval: Interval | None = None,
    reference_groups: Mapping[str, Sequence[str]] | None = None,
) -> GapRules:
    """The rules by which the gaps of prediction files are judged.

    Parameters
    ----------
    paths: of predictions. An OUT, and what lies in its folder `predictions`, brings the
        reference groups and statistics of its study.
    profile: states the statistics by this profile, as `raybias report` does.
    interval: instead of the study's or profile's.
    reference_groups: by attribute, instead of the study's or the papers'.

    Raises
    ------
    ConfigError: studies that are judged by different rules.
    OutputError: an OUT with a broken record.
    """
    chosen = reference_groups or {}
    found: dict[str, GapRules] = {}
    for out in dict.fromkeys(filter(None, map(_out_of, paths))):
        study = read_record(Store(out)).study
        found[out] = rules_of(restated(study, profile) if profile else study)
    if not found:
        rules = GapRules(Statistics.under(profile or "strict"))
    else:
        stated = {out: _stated(rules, interval) for out, rules in found.items()}
        rules = _common(stated, chosen)
    return replace(_stated(rules, interval), everywhere=chosen)


def _out_of(path: str | Path) -> str | None:
    """The OUT that a path is, or that it is a part of."""
    text = str(path)
    whole = text if "://" in text or text.startswith("/") else f"./{text}"
    for place in (whole, f"{whole}/".rpartition(_FOLDER)[0]):
        if place and Store(place).exists("study.yaml"):
            return place.rstrip("/")
    return None


def _stated(rules: GapRules, interval: Interval | None) -> GapRules:
    options = rules.statistics
    if interval is None:
        return rules
    return replace(rules, statistics=options.model_copy(update={"interval": interval}))


def _common(found: Mapping[str, GapRules], chosen: Mapping[str, Sequence[str]]) -> GapRules:
    """The rules of all OUTs as one, where they agree."""
    (first, rules), *others = found.items()
    probes = {name: dict(groups) for name, groups in rules.probes.items()}
    for out, other in others:
        for name in type(other.statistics).model_fields:
            one, two = (getattr(each.statistics, name) for each in (rules, other))
            if one != two:
                raise ConfigError(
                    f"the studies are judged differently: {name} is {one} in {first}, {two} in "
                    f"{out}",
                    cure="give --profile or --interval, or ask for each alone",
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
