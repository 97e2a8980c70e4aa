"""Define the policy of `raybias compare`: rules, each for some changes and with its own margin."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, model_validator

from raybias.config.reading import parse_section, read_mapping
from raybias.config.section import Name, Section

#: The largest change of a gap or score that does not matter, where nothing else says.
MARGIN: Final = 0.02
Tier = Literal["critical", "advisory"]
Margin = Annotated[float, Field(gt=0, lt=1)]
Values = Annotated[tuple[str, ...], Field(min_length=1)]


class Rule(Section):
    """Changes that may not be worse; without a selection, all changes of the comparison."""

    name: Name
    tier: Tier
    """Critical rules decide the verdict; advisory ones are reported."""
    margin: Margin | None = None
    """The largest change that does not matter; by default the policy's."""
    probe: Values = ()
    attribute: Values = ()
    condition: Values = ()
    group: Values = ()
    score: Values = ()
    model: Values = ()
    method: Values = ()
    dataset: Values = ()
    style: Values = ()

    @property
    def selection(self) -> dict[str, tuple[str, ...]]:
        """Return the values that are selected, by column."""
        columns = self.model_dump(exclude={"name", "tier", "margin"})
        return {column: values for column, values in columns.items() if values}


class Policy(Section):
    """Rules for a candidate, at least one of them critical."""

    margin: Margin = MARGIN
    """The largest change that does not matter, for rules without a margin."""
    rules: tuple[Rule, ...]

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [rule.name for rule in self.rules]
        if twice := [name for name in names if names.count(name) > 1]:
            raise ValueError(f"two rules have the name {twice[0]!r}; give each its own")
        if not any(rule.tier == "critical" for rule in self.rules):
            raise ValueError("no rule is critical, so nothing could fail; set a rule's tier")
        return self

    def margin_of(self, rule: Rule) -> float:
        """Return the margin of a rule."""
        return self.margin if rule.margin is None else rule.margin


def load_policy(given: str | Path | Mapping[str, Any]) -> Policy:
    """Check a policy, a YAML file or its content; `ConfigError` names what is wrong."""
    if isinstance(given, Mapping):
        return parse_section(Policy, dict(given), where="policy")
    data = read_mapping(given, cure="docs/comparing.md has a policy")
    return parse_section(Policy, data, where=str(given))
