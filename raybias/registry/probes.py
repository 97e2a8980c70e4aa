"""Register what reads text: probes, pair probes, question probes and training sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from raybias.registry.mechanism import Registry
from raybias.registry.styles import styles
from raybias.schema import PAIRS

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from raybias.config.data import TrainingSet
    from raybias.probes.templates.slots import Slotted

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


ReadPairs = Callable[[str], "pl.DataFrame"]


@dataclass(frozen=True, kw_only=True)
class PairSource:
    """One source of sentences in pairs; see `pair_probe`."""

    items: ReadPairs
    about: str
    data: str
    kinds: tuple[str, ...]
    schema: pa.Schema

    @property
    def kind(self) -> str:
        """The column that names the kind of a pair."""
        return "bias_type" if self.schema == PAIRS else "wino_type"

    @property
    def styles(self) -> tuple[str, ...]:
        """The styles that its pairs can be put into."""
        return tuple(n for n, each in styles.items() if each.coreference or self.schema == PAIRS)


pair_probes: Final[Registry[PairSource]] = Registry(
    "pair probe", "raybias.probes.pairs", "raybias.probes.own"
)


def pair_probe(
    name: str,
    *,
    about: str,
    data: str = "",
    kinds: tuple[str, ...] = (),
    schema: pa.Schema = PAIRS,
) -> Callable[[ReadPairs], ReadPairs]:
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
        lambda items: PairSource(items=items, about=about, data=data, kinds=kinds, schema=schema),
    )


ReadQuestions = Callable[[str], "pl.DataFrame"]


@dataclass(frozen=True, kw_only=True)
class QuestionSource:
    """One source of questions, triples or decisions; see `question_probe`."""

    items: ReadQuestions
    about: str
    data: str
    schema: pa.Schema


question_probes: Final[Registry[QuestionSource]] = Registry(
    "question probe", "raybias.probes.questions", "raybias.probes.own"
)


def question_probe(
    name: str, *, about: str, data: str, schema: pa.Schema
) -> Callable[[ReadQuestions], ReadQuestions]:
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
        name, lambda items: QuestionSource(items=items, about=about, data=data, schema=schema)
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
