"""Register what reads text: probes of all kinds, training sets, and styles of pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from raybias.registry import Registry
from raybias.schema import PAIRS
from raybias.seeding import generator

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    import pyarrow as pa

    from raybias.config.data import TrainingSet
    from raybias.config.styles import StyleOptions
    from raybias.probes.templates.slots import Slotted


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


ReadItems = Callable[[str, Sequence[str] | None], "pl.DataFrame"]
ReadTemplates = Callable[[str, Sequence[str]], "Mapping[str, Sequence[Slotted]]"]


@dataclass(frozen=True, kw_only=True)
class ProbeSource:
    """One source of labelled sentences about groups; see `probe`."""

    items: ReadItems
    about: str
    attributes: tuple[str, ...]
    data: str
    templates: ReadTemplates | None


probes: Final[Registry[ProbeSource]] = Registry(
    "probe", "raybias.probes.templates", "raybias.probes.planted", "raybias.probes.own"
)


def probe(
    name: str,
    *,
    about: str,
    attributes: tuple[str, ...] = (),
    data: str = "",
    templates: ReadTemplates | None = None,
) -> Callable[[ReadItems], ReadItems]:
    """Register a function that reads the items of a probe (schema.ITEMS).

    The function is given `data` of the study's probe and the wanted attributes, or None for all;
    it may return more attributes than those.

    Parameters
    ----------
    name: `source` in a study file.
    about: one line for `raybias probes list`.
    attributes: those it has; none where only the data says.
    data: what `data` must point at; empty where the probe needs none.
    templates: reads the templates of attributes with their slots, by attribute; needed for
        `unmarked`.

    Raises
    ------
    ConfigError: another probe has the name.
    """
    return probes.register(
        name,
        lambda items: ProbeSource(
            items=items, about=about, attributes=attributes, data=data, templates=templates
        ),
    )


ReadTable = Callable[[str], "pl.DataFrame"]


@dataclass(frozen=True, kw_only=True)
class TableSource:
    """One source of pairs, questions, triples or decisions; see `pair_probe`, `question_probe`."""

    items: ReadTable
    about: str
    data: str
    schema: pa.Schema
    kinds: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The column that names the kind of a pair."""
        return "bias_type" if self.schema == PAIRS else "wino_type"

    @property
    def styles(self) -> tuple[str, ...]:
        """The styles that its pairs can be put into."""
        return tuple(n for n, each in styles.items() if each.coreference or self.schema == PAIRS)


pair_probes: Final[Registry[TableSource]] = Registry(
    "pair probe", "raybias.probes.pairs", "raybias.probes.own"
)


def pair_probe(
    name: str,
    *,
    about: str,
    data: str = "",
    kinds: tuple[str, ...] = (),
    schema: pa.Schema = PAIRS,
) -> Callable[[ReadTable], ReadTable]:
    """Register a function that reads pairs in style "original", given `data` of the study.

    Parameters
    ----------
    name: `source` in a study file.
    about: one line for `raybias probes list`.
    data: what `data` must point at; empty where the probe needs none.
    kinds: the bias types (or types of WinoBias) it has; none where only the data says.
    schema: schema.PAIRS, read by pair scores, or schema.COREFERENCES, read by coreference.

    Raises
    ------
    ConfigError: another pair probe has the name.
    """
    return pair_probes.register(
        name,
        lambda items: TableSource(items=items, about=about, data=data, kinds=kinds, schema=schema),
    )


question_probes: Final[Registry[TableSource]] = Registry(
    "question probe", "raybias.probes.questions", "raybias.probes.own"
)


def question_probe(
    name: str, *, about: str, data: str, schema: pa.Schema
) -> Callable[[ReadTable], ReadTable]:
    """Register a function that reads what one of several texts is chosen of, given `data`.

    Parameters
    ----------
    name: `source` in a study file.
    about: one line for `raybias probes list`.
    data: what `data` must point at.
    schema: schema.OPTION_ITEMS, TRIPLES or DECISIONS, which one method each reads.

    Raises
    ------
    ConfigError: another question probe has the name.
    """
    return question_probes.register(
        name, lambda items: TableSource(items=items, about=about, data=data, schema=schema)
    )


Splits = dict[str, "pl.DataFrame"]
ReadSplits = Callable[["TrainingSet"], Splits]

training_sets: Final[Registry[ReadSplits]] = Registry(
    "training set", "raybias.probes.training", "raybias.probes.planted"
)


def training_set(name: str) -> Callable[[ReadSplits], ReadSplits]:
    """Register a function that reads the splits of a training set (schema.SENTENCES).

    It returns `train` and, except for a pool of demonstrations, `validation`; `test` is optional.

    Raises
    ------
    ConfigError: another training set has the name.
    """
    return training_sets.register(name, lambda read: read)
