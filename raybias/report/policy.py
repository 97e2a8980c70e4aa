"""Judge a comparison by the rules of a policy, whose verdict a CI job can act on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

import polars as pl

from raybias.config.policy import Policy, Rule, Tier
from raybias.errors import ConfigError
from raybias.measures.compare import VERDICTS, Verdict, overall
from raybias.report import wording
from raybias.report.rendering import Cell, TextTable, same, table, worded

Outcome = Literal["no-go", "inconclusive", "go"]
#: The gravest first.
_OUTCOMES: Final[tuple[Outcome, ...]] = get_args(Outcome)
_OUTCOME: Final[Mapping[Verdict, Outcome]] = {
    "worse": "no-go",
    "unread": "inconclusive",
    "cannot tell": "inconclusive",
    "better": "go",
    "equivalent": "go",
}
#: A row per rule: its changes by verdict, and those for which its outcome is not `go`.
_RULES: Final = pl.Schema(
    {
        **dict.fromkeys(("rule", "tier"), pl.String()),
        "margin": pl.Float64(),
        "outcome": pl.String(),
        **dict.fromkeys(map(str, VERDICTS), pl.Int64()),
        "because": pl.List(pl.String()),
    }
)
_SHOWN: Final = 3


@dataclass(frozen=True)
class Decision:
    """What a policy says of a comparison."""

    rules: pl.DataFrame
    """A row per rule: rule, tier, margin, outcome, changes by verdict, and because."""
    unselected: int
    """Changes that no rule selects."""

    @property
    def verdict(self) -> Outcome:
        """Return the gravest outcome of a critical rule: no-go, inconclusive or go."""
        critical = {*self.rules.filter(tier="critical")["outcome"]}
        return next(outcome for outcome in _OUTCOMES if outcome in critical)

    @property
    def headline(self) -> str:
        """Return the verdict in a sentence that names the rules by tier and outcome."""
        parts = [
            f"{tier} rules {wording.listed([*_by_outcome(rules)])}"
            for tier in get_args(Tier)
            if not (rules := self.rules.filter(tier=tier)).is_empty()
        ]
        return f"{self.verdict.capitalize()} by the policy: {'; '.join(parts)}."

    def notes(self, level: float) -> list[str]:
        """Say what no rule selects, and how often the verdict errs."""
        return [
            f"Changes that no rule of the policy selects: {self.unselected}.",
            f"Where no gap or score got worse, a policy says no-go in {1 - level:.0%} of"
            " comparisons at most, however many rules and margins it has.",
        ]

    @property
    def table(self) -> TextTable:
        """Return a table with a row per rule."""
        columns: dict[str, Cell] = {
            **same("rule", "tier"),
            "margin": worded("{:g}".format, "margin"),
            **same("outcome", *VERDICTS),
            "because": _because,
        }
        return table("Rules of the policy", self.rules, columns)


def _by_outcome(rules: pl.DataFrame) -> Iterator[str]:
    for outcome in _OUTCOMES:
        if names := rules.filter(outcome=outcome)["rule"].to_list():
            yield f"{outcome} ({', '.join(names)})"


def _because(row: Mapping[str, list[str]]) -> str:
    first, more = row["because"][:_SHOWN], len(row["because"]) - _SHOWN
    return wording.listed([*first, *([f"{more} more"] if more > 0 else [])])


def decided(policy: Policy, judge: Callable[[float], pl.DataFrame], keys: list[str]) -> Decision:
    """Apply every rule to the changes (`COMPARED`) that `judge` finds at the rule's margin.

    `keys` are the columns that name a change. Bands are the same at every margin. A rule that
    selects nothing, or by a value that no change has, is a ConfigError.
    """
    judged = {margin: judge(margin) for margin in {*map(policy.margin_of, policy.rules)}}
    rows: list[dict[str, object]] = []
    free = pl.repeat(True, len(next(iter(judged.values()))), eager=True)
    for rule in policy.rules:
        margin = policy.margin_of(rule)
        chosen = _selected(rule, judged[margin])
        free &= ~chosen
        changes = judged[margin].filter(chosen)
        outcomes = changes["verdict"].replace_strict(_OUTCOME)
        outcome = _OUTCOME[overall(changes["verdict"].to_list())]
        failing = changes.filter((outcomes == outcome) & (outcomes != "go")).select(keys)
        counts: dict[str, int] = dict(changes["verdict"].value_counts().iter_rows())
        rows.append({
            **{"rule": rule.name, "tier": rule.tier, "margin": margin, "outcome": outcome},
            **{verdict: counts.get(verdict, 0) for verdict in VERDICTS},
            "because": [" ".join(filter(None, names)) for names in failing.iter_rows()],
        })  # fmt: skip
    return Decision(pl.DataFrame(rows, _RULES), int(free.sum()))


def _selected(rule: Rule, changes: pl.DataFrame) -> pl.Series:
    where = f"rule {rule.name!r} of the policy"
    selected = pl.repeat(True, changes.height, eager=True)
    for column, values in rule.selection.items():
        there = changes[column].unique(maintain_order=True).to_list()
        if unknown := [value for value in values if value not in there]:
            cure = f"choose from {wording.listed([*map(repr, there)])}"
            raise ConfigError(f"no change has the {column} {unknown[0]!r}", where=where, cure=cure)
        selected &= changes[column].is_in(values)
    if not selected.any():
        cure = "no change has all these values together; write a rule for each"
        raise ConfigError("selects nothing", where=where, cure=cure)
    return selected
