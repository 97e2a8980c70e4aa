"""Register code by name, and find it in raybias's own modules and in installed packages.

Each kind of thing that a study names has a registry beside the type of its entries, and a decorator
there. Another package lists its modules as entry points of the group `raybias`, and may register
anything in them (docs/extending.md):

    [project.entry-points.raybias]
    my_package = "my_package.extensions"
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Final, Generic, TypeVar

from raybias.errors import ConfigError

GROUP: Final = "raybias"
#: The module of each kind's registry, and its name there.
_PLACES: Final = {
    "method": ("raybias.methods.base", "methods"),
    "api": ("raybias.providers.base", "providers"),
    "probe": ("raybias.probes.registries", "probes"),
    "pair probe": ("raybias.probes.registries", "pair_probes"),
    "question probe": ("raybias.probes.registries", "question_probes"),
    "training set": ("raybias.probes.registries", "training_sets"),
    "style": ("raybias.probes.registries", "styles"),
}

Entry = TypeVar("Entry")
Code = TypeVar("Code", bound=Callable[..., Any])


class Registry(Mapping[str, Entry], Generic[Entry]):
    """The entries of one kind by name, raybias's own first, by place and module.

    The first look imports the modules that register something; a `ConfigError` names an installed
    package whose module cannot be imported.

    Parameters
    ----------
    kind: of an entry, for messages.
    places: modules, and packages of modules, that register raybias's own entries.
    """

    def __init__(self, kind: str, *places: str) -> None:
        self.kind = kind
        self._places = places
        self._entries: dict[str, Entry] = {}
        self._origins: dict[str, tuple[str, str]] = {}

    def add(self, name: str, entry: Entry, *, origin: tuple[str, str]) -> None:
        """Register an entry of the code at `origin`, a module and a name in it.

        Raises ConfigError: other code has registered the name.
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
        """Refuse a name that is not registered with a `ConfigError` that lists those that are."""
        if name not in self:
            raise ConfigError(f"no {self.kind} {name!r}", cure=f"choose from {', '.join(self)}")

    def __getitem__(self, name: str) -> Entry:
        return self._loaded()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._loaded(), key=self._place))

    def __len__(self) -> int:
        return len(self._loaded())

    def _loaded(self) -> dict[str, Entry]:
        for place in self._places:
            _import_modules_of(place)
        _import_entry_points()
        return self._entries

    def _place(self, name: str) -> tuple[int, str]:
        module, _ = self._origins[name]
        own = (n for n, place in enumerate(self._places) if f"{module}.".startswith(f"{place}."))
        return next(own, len(self._places)), module


def registry_of(kind: str) -> Registry[Any]:
    """Return the registry of a kind, such as "style", for rooms below that of its entries."""
    module, name = _PLACES[kind]
    found: Registry[Any] = getattr(import_module(module), name)
    return found


@cache
def _import_modules_of(place: str) -> None:
    for module in pkgutil.iter_modules(getattr(import_module(place), "__path__", ()), f"{place}."):
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
