"""Judge a comparison by the rules of a policy, whose verdict a CI job can act on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

import numpy as np
import numpy.typing as npt
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
#: Margins that rules may have: all changes are judged once for each.
_MOST_MARGINS: Final = 100


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
    margins = {*map(policy.margin_of, policy.rules)}
    if len(margins) > _MOST_MARGINS:
        raise ConfigError(
            f"its rules have {len(margins):,} margins, and at most {_MOST_MARGINS} are judged",
            where="the policy",
            cure="give rules the same margin where they can have it",
        )
    judged = {margin: _Changes(judge(margin), keys) for margin in margins}
    rows: list[dict[str, object]] = []
    free_N = np.ones(len(next(iter(judged.values())).names), bool)
    for rule in policy.rules:
        changes = judged[policy.margin_of(rule)]
        chosen_N = changes.selected(rule)
        free_N &= ~chosen_N
        verdicts = Counter(changes.verdicts_N[chosen_N].tolist())
        outcome = _OUTCOME[overall([*verdicts])]
        failing_N = chosen_N & (changes.outcomes_N == outcome) & (outcome != "go")
        rows.append(
            {
                "rule": rule.name,
                "tier": rule.tier,
                "margin": policy.margin_of(rule),
                "outcome": outcome,
                **{verdict: verdicts[verdict] for verdict in VERDICTS},
                "because": [changes.names[place] for place in np.flatnonzero(failing_N)],
            }
        )
    return Decision(pl.DataFrame(rows, _RULES), int(free_N.sum()))


class _Changes:
    """Changes at one margin (N), by what rules select and ask of them."""

    def __init__(self, changes: pl.DataFrame, keys: list[str]) -> None:
        self.names = [" ".join(filter(None, names)) for names in changes.select(keys).iter_rows()]
        self.verdicts_N = changes["verdict"].to_numpy()
        self.outcomes_N = changes["verdict"].replace_strict(_OUTCOME).to_numpy()
        self._changes = changes
        self._having: dict[str, dict[str, npt.NDArray[np.bool_]]] = {}

    def selected(self, rule: Rule) -> npt.NDArray[np.bool_]:
        """Return which changes a rule selects [N]; raises as `decided`."""
        where = f"rule {rule.name!r} of the policy"
        selected_N = np.ones(len(self.names), bool)
        for column, values in rule.selection.items():
            having = self._by_value(column)
            if unknown := [value for value in values if value not in having]:
                raise ConfigError(
                    f"no change has the {column} {unknown[0]!r}",
                    where=where,
                    cure=f"choose from {wording.listed([*map(repr, having)])}",
                )
            selected_N &= np.any([having[value] for value in values], axis=0)
        if not selected_N.any():
            cure = "no change has all these values together; write a rule for each"
            raise ConfigError("selects nothing", where=where, cure=cure)
        return selected_N

    def _by_value(self, column: str) -> dict[str, npt.NDArray[np.bool_]]:
        """Return which changes have each value of a column [N]."""
        if column not in self._having:
            there = self._changes[column]
            self._having[column] = {
                value: (there == value).fill_null(False).to_numpy()
                for value in there.unique(maintain_order=True).to_list()
            }
        return self._having[column]
