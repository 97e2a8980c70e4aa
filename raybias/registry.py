"""Find the methods and metrics that a study can name: raybias's own and installed packages'.

A method is a subclass of `config.Method` under the decorator `method`. Modules of
`raybias.methods` are found by themselves; another package names its module as an entry point of
the group `raybias`:

    [project.entry-points.raybias]
    my_methods = "my_package.methods"
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar

from raybias.errors import ConfigError

if TYPE_CHECKING:
    import polars as pl

    from raybias.config.method import Method

GROUP: Final = "raybias"
Entry = TypeVar("Entry")
_OWN: Final = "raybias.methods"


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


def _origin(code: Any) -> tuple[str, str]:
    return code.__module__, code.__qualname__


_methods: Final[dict[str, type[Method]]] = {}
_AnyMethod = TypeVar("_AnyMethod", bound="Method")


def method(registered: type[_AnyMethod]) -> type[_AnyMethod]:
    """Register a method under its `kind`, which a study file names it by.

    Raises
    ------
    ConfigError: another class has the kind.
    """
    kind = str(registered.model_fields["kind"].default)
    known = _methods.setdefault(kind, registered)
    if known.__qualname__ != registered.__qualname__ or known.__module__ != registered.__module__:
        raise ConfigError(
            f"two methods have the kind {kind!r}: {known.__module__} and {registered.__module__}",
            cure="rename one, or uninstall its package",
        )
    return registered


def methods() -> dict[str, type[Method]]:
    """Return every registered method by its kind.

    Raises
    ------
    ConfigError: an installed package's module cannot be imported, or a kind is taken.
    """
    _import_modules_of(_OWN)
    _import_entry_points()
    return dict(_methods)


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
_Function = TypeVar("_Function", bound=Callable[..., Any])


def metric(
    *,
    of: Literal["counts", "predictions"],
    title: str,
    about: str,
    words: str,
    above: str = "",
    below: str = "",
) -> Callable[[_Function], _Function]:
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

    def register(function: _Function) -> _Function:
        name, counts = function.__name__, of == "counts"
        found = Metric(
            name=name,
            title=title,
            about=about,
            words=words,
            above=above,
            below=below,
            share=function if counts else None,
            values=None if counts else function,
        )
        metrics.add(name, found, origin=_origin(function))
        return function

    return register
