"""Register what reads text: probes of all kinds, training sets, and styles of pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from raybias.config.labels import check_labels
from raybias.errors import ConfigError
from raybias.registry import Registry
from raybias.schema import COREFERENCES, ITEMS, LABELS, PAIRS
from raybias.seeding import generator

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    import pyarrow as pa

    from raybias.config.parts import StyleOptions
    from raybias.probes.templates import Template


@dataclass(frozen=True, kw_only=True)
class StyledPair:
    """The pair that a style's rule is applied to, and `styles.options` and `.seed` of the study."""

    pair_id: str
    options: StyleOptions
    seed: int

    def random(self, purpose: str) -> np.random.Generator:
        """Return random state that depends on the seed, the purpose and the pair alone."""
        return generator(self.seed, purpose, self.pair_id)


Rule = Callable[[Sequence[str], StyledPair], Sequence[str]]


@dataclass(frozen=True, kw_only=True)
class Style:
    """A wording of pairs; tables list styles in the order of registration."""

    rule: Rule | None = None
    """Rewrites all sides of one pair in order; None where people or a model write the style."""
    coreference: bool = False
    """Whether sentences with a pronoun can have it."""


#: Modules that register raybias's own: public data sets, one file each, and a user's own tables.
_SOURCES: Final = (
    "raybias.probes.published",
    "raybias.probes.own",
    "raybias.probes.own_options",
)

styles: Final[Registry[Style]] = Registry("style", "raybias.probes.styles")


def style(name: str, *, coreference: bool = False) -> Callable[[Rule], Rule]:
    """Register a rule that puts all sides of a pair into a style; `ConfigError` for a name twice.

    If sentences with a pronoun can have it too (`coreference`), the rule must keep pronouns and
    referents.
    """
    return styles.register(name, lambda rule: Style(rule=rule, coreference=coreference))


ReadTemplates = Callable[[str, Sequence[str]], "Mapping[str, Sequence[Template]]"]


@dataclass(frozen=True, kw_only=True)
class Source:
    """One source of sentences about groups, pairs or questions; see `probe`."""

    items: Callable[..., pl.DataFrame]
    about: str
    data: str
    schema: pa.Schema
    kinds: tuple[str, ...]
    templates: ReadTemplates | None
    labels: tuple[str, ...] | None = LABELS
    favourable: str = ""

    @property
    def kind(self) -> str:
        """The column that names the kind of a pair."""
        return "bias_type" if self.schema == PAIRS else "wino_type"

    @property
    def styles(self) -> tuple[str, ...]:
        """The styles that its pairs can be put into."""
        return tuple(n for n, each in styles.items() if each.coreference or self.schema == PAIRS)


#: Any entry of a study's `probes`, `pairs` or `questions`.
probes: Final[Registry[Source]] = Registry("probe", *_SOURCES)
pair_probes: Final[Registry[Source]] = Registry("pair probe", *_SOURCES)
question_probes: Final[Registry[Source]] = Registry("question probe", *_SOURCES)

ReadTable = TypeVar("ReadTable", bound=Callable[..., "pl.DataFrame"])


def probe(
    name: str,
    *,
    about: str,
    data: str = "",
    schema: pa.Schema = ITEMS,
    kinds: tuple[str, ...] = (),
    templates: ReadTemplates | None = None,
    labels: tuple[str, ...] | None = LABELS,
    favourable: str = "",
) -> Callable[[ReadTable], ReadTable]:
    """Register a function that reads the items of a probe; `ConfigError` for a name twice.

    It receives the study's `data`, and for sentences about groups also the wanted attributes (None
    for all; it may return more). Pairs have style "original". It raises `DataError` for missing or
    malformed data.

    Parameters
    ----------
    name: `source` in a study file.
    about: one line for `raybias probes list`.
    data: what `data` must point at; empty where the probe needs none.
    schema: of the items: schema.ITEMS, sentences about groups; PAIRS or COREFERENCES, which a study
        names under `pairs`; OPTION_ITEMS, TRIPLES, DECISIONS or SENTENCE_ITEMS, under `questions`.
    kinds: its attributes, bias types or types of pairs; none where only the data says.
    templates: reads the templates by attribute, with their slots; needed for `unmarked`.
    labels: of sentences, in order, such as `("harmless", "toxic")`: the column `label` has their
        index. None if they are the study's, which the function then takes as `labels`.
    favourable: the label that is good for a group to be given; empty if none is.
    """
    _check_labels(name, labels, favourable)
    pairs = schema in (PAIRS, COREFERENCES)
    registry = probes if schema == ITEMS else pair_probes if pairs else question_probes
    return registry.register(
        name,
        lambda items: Source(
            items=items,
            about=about,
            data=data,
            schema=schema,
            kinds=kinds,
            templates=templates,
            labels=labels,
            favourable=favourable,
        ),
    )


def _check_labels(name: str, labels: tuple[str, ...] | None, favourable: str = "") -> None:
    """Refuse labels that no study can have, those of sentiment in another order, and others."""
    if favourable and favourable not in (labels or ()):
        raise ConfigError(
            f"{favourable!r} is favourable, and is none of the labels {', '.join(labels or ())}",
            where=f"source {name}",
            cure="name one of its labels",
        )
    if labels is None:
        return
    try:
        ordered = check_labels(labels)
    except ValueError as error:
        raise ConfigError(str(error), where=f"labels of the source {name}") from error
    if ordered != labels:
        raise ConfigError(
            f"has the labels {', '.join(labels)}",
            where=f"source {name}",
            cure=f"number them in the order {', '.join(ordered)}",
        )


Splits = dict[str, "pl.DataFrame"]
ReadSplits = TypeVar("ReadSplits", bound=Callable[..., "Splits"])


@dataclass(frozen=True, kw_only=True)
class TrainingSource:
    """One source of labelled sentences; see `training_set`."""

    splits: Callable[..., Splits]
    labels: tuple[str, ...] | None


training_sets: Final[Registry[TrainingSource]] = Registry("training set", *_SOURCES)


def training_set(
    name: str, *, labels: tuple[str, ...] | None = LABELS
) -> Callable[[ReadSplits], ReadSplits]:
    """Register a function that reads the splits of a training set (schema.SENTENCES).

    It takes the study's `TrainingSet` and returns `train`, `validation` (not for a pool of
    demonstrations) and optionally `test`, or raises `DataError` for missing or malformed data.
    `ConfigError` for a name twice.

    labels: as of `probe`.
    """
    _check_labels(name, labels)
    return training_sets.register(name, lambda splits: TrainingSource(splits=splits, labels=labels))
