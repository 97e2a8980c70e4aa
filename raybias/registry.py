"""Register methods, probes, pair probes, training sets, styles and metrics.

Each kind has a decorator and a mapping of what was registered, by name. Modules of raybias itself
are found in one package per kind. Another package lists its modules as entry points of the group
`raybias`, and may register anything in them (docs/extending.md):

    [project.entry-points.raybias]
    my_package = "my_package.extensions"
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

from raybias.errors import ConfigError
from raybias.schema import PAIRS
from raybias.seeding import generator

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
    import pyarrow as pa

    from raybias.config.data import TrainingSet
    from raybias.config.method import Method
    from raybias.config.styles import StyleOptions
    from raybias.probes.templates.slots import Slotted

GROUP: Final = "raybias"

Entry = TypeVar("Entry")
Code = TypeVar("Code", bound=Callable[..., Any])


class Registry(Mapping[str, Entry], Generic[Entry]):
    """Everything registered of one kind, by name: raybias's own first, then by module.

    Entries of one module keep the order in which it registers them. The first look imports the
    modules that register something; a `ConfigError` names an installed package whose module
    cannot be imported.

    Parameters
    ----------
    kind: what one entry is called in a message.
    package: its modules register raybias's own entries.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self._package = package
        self._entries: dict[str, Entry] = {}
        self._origins: dict[str, tuple[str, str]] = {}

    def add(self, name: str, entry: Entry, *, origin: tuple[str, str]) -> None:
        """Register an entry; `origin` is the module and the name of the code behind it.

        Raises
        ------
        ConfigError: other code has registered the name.
        """
        known = self._origins.setdefault(name, origin)
        if known != origin:
            raise ConfigError(
                f"two {self.kind}s have the name {name!r}: {'.'.join(known)} and"
                f" {'.'.join(origin)}",
                cure="rename one, or uninstall its package",
            )
        self._entries[name] = entry

    def register(self, name: str, make: Callable[[Code], Entry]) -> Callable[[Code], Code]:
        """Return a decorator that registers what `make` returns for the decorated code."""

        def decorate(code: Code) -> Code:
            self.add(name, make(code), origin=(code.__module__, code.__qualname__))
            return code

        return decorate

    def check(self, name: str) -> None:
        """Refuse a name that is not registered.

        Raises
        ------
        ConfigError: lists the registered names.
        """
        if name not in self:
            raise ConfigError(f"no {self.kind} {name!r}", cure=f"choose from {', '.join(self)}")

    def __getitem__(self, name: str) -> Entry:
        return self._loaded()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._loaded(), key=self._place))

    def __len__(self) -> int:
        return len(self._loaded())

    def _loaded(self) -> dict[str, Entry]:
        _import_modules_of(self._package)
        _import_entry_points()
        return self._entries

    def _place(self, name: str) -> tuple[bool, str]:
        module, _ = self._origins[name]
        return not module.startswith("raybias."), module


@cache
def _import_modules_of(package: str) -> None:
    for module in pkgutil.iter_modules(import_module(package).__path__, f"{package}."):
        import_module(module.name)


@cache
def _import_entry_points() -> None:
    for entry in entry_points(group=GROUP):
        try:
            entry.load()
        except Exception as error:
            package = entry.dist.name if entry.dist else "an installed package"
            raise ConfigError(
                f"its entry point {entry.name} = {entry.value} cannot be imported ({error!r})",
                where=package,
                cure="mend or uninstall the package",
            ) from error


methods: Final[Registry[type[Method]]] = Registry("method", "raybias.methods")
_AnyMethod = TypeVar("_AnyMethod", bound="Method")


def method(registered: type[_AnyMethod]) -> type[_AnyMethod]:
    """Register a subclass of `config.Method` under its `kind`.

    Raises
    ------
    ConfigError: another class has the kind.
    """
    kind = str(registered.model_fields["kind"].default)
    methods.add(kind, registered, origin=(registered.__module__, registered.__qualname__))
    return registered


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


probes: Final[Registry[ProbeSource]] = Registry("probe", "raybias.probes.templates")


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


pair_probes: Final[Registry[PairSource]] = Registry("pair probe", "raybias.probes.pairs")


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


Splits = dict[str, "pl.DataFrame"]
ReadSplits = Callable[["TrainingSet"], Splits]

training_sets: Final[Registry[ReadSplits]] = Registry("training set", "raybias.probes.training")


def training_set(name: str) -> Callable[[ReadSplits], ReadSplits]:
    """Register a function that reads the splits of a training set (schema.SENTENCES).

    It returns `train` and, except for a pool of demonstrations, `validation`; `test` is optional.

    Raises
    ------
    ConfigError: another training set has the name.
    """
    return training_sets.register(name, lambda read: read)


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


@dataclass(frozen=True, kw_only=True)
class Share:
    """A share of predictions, as expressions over the columns of counts.

    Attributes
    ----------
    among: which predictions count.
    holds: which of those are in the share.
    """

    among: pl.Expr
    holds: pl.Expr


#: Makes a share of the columns `label` and `pred` (null where no label could be read).
ShareOf = Callable[["pl.Expr", "pl.Expr"], Share]
#: Makes one row per run, attribute and group of schema.PREDICTIONS: the run keys, attribute,
#: group, value, and n_items, how many items the value rests on.
ValuesOf = Callable[["pl.DataFrame"], "pl.DataFrame"]


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number per run and group, whose differences between groups are gaps; see `metric`."""

    name: str
    title: str
    about: str
    words: str
    above: str
    below: str
    share: ShareOf | None
    values: ValuesOf | None

    def effect(self, gap: float) -> str:
        """Return what a gap of this sign means for a group, such as `harm`."""
        return self.above if gap > 0 else self.below


metrics: Final[Registry[Metric]] = Registry("metric", "raybias.stats.metrics")


def metric(
    *,
    of: Literal["counts", "predictions"],
    title: str,
    about: str,
    words: str,
    above: str = "",
    below: str = "",
) -> Callable[[Code], Code]:
    """Register a function as the metric of its name.

    Of counts, the function is given the columns `label` and `pred` and returns a `Share`; it has
    gaps by template and term, marking effects and bootstrap intervals too. Of predictions, it is
    given whole runs (schema.PREDICTIONS) and returns a row per run, attribute and group; its gaps
    have intervals over runs.

    Parameters
    ----------
    of: what the function reads.
    title: of its tables and figures, such as `wrongly called negative`.
    about: what it counts, such as `the share of the group's sentences that ...`.
    words: what happens to a group more or less often, such as `called negative`.
    above, below: what a gap above and below 0 means for a group: `harm`, `benefit` or nothing.

    Raises
    ------
    ConfigError: another metric has the name.
    """

    def make(function: Code) -> Metric:
        counts = of == "counts"
        return Metric(
            name=function.__name__,
            title=title,
            about=about,
            words=words,
            above=above,
            below=below,
            share=function if counts else None,
            values=None if counts else function,
        )

    def register(function: Code) -> Code:
        return metrics.register(function.__name__, make)(function)

    return register
