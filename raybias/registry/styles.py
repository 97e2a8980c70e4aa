"""Register styles: ways to word a pair whose content stays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from raybias.registry.mechanism import Registry
from raybias.seeding import generator

if TYPE_CHECKING:
    import numpy as np

    from raybias.config.styles import StyleOptions


@dataclass(frozen=True, kw_only=True)
class StyledPair:
    """The pair that a style's rule is applied to, and the study's options.

    Attributes
    ----------
    pair_id: of the pair.
    options: `styles.options` of the study.
    seed: `styles.seed` of the study.
    """

    pair_id: str
    options: StyleOptions
    seed: int

    def random(self, purpose: str) -> np.random.Generator:
        """Return random state that depends on the seed, the purpose and the pair alone."""
        return generator(self.seed, purpose, self.pair_id)


Rule = Callable[[Sequence[str], StyledPair], Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Style:
    """A way to word a pair whose content stays; tables list styles in the order of registration.

    Attributes
    ----------
    rule: rewrites all sides of one pair, in their order; None for a style that people or a model
        write.
    coreference: whether sentences with a pronoun can have it too.
    """

    rule: Rule | None = None
    coreference: bool = False


styles: Final[Registry[Style]] = Registry("style", "raybias.probes.styles")


def style(name: str, *, coreference: bool = False) -> Callable[[Rule], Rule]:
    """Register a rule that puts all sides of a pair into a style.

    Parameters
    ----------
    name: of the style, in a study file and in tables.
    coreference: whether sentences with a pronoun can have it too; the rule must then leave
        pronouns and referents in place.

    Raises
    ------
    ConfigError: another style has the name.
    """
    return styles.register(name, lambda rule: Style(rule=rule, coreference=coreference))
