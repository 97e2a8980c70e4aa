"""Find the methods that a study can name: raybias's own, and those of installed packages.

A method is a subclass of `config.Method` under the decorator `method`. Modules of
`raybias.methods` are found by themselves; another package names its module as an entry point of
the group `raybias`:

    [project.entry-points.raybias]
    my_methods = "my_package.methods"
"""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Final, TypeVar

from raybias.errors import ConfigError

if TYPE_CHECKING:
    from raybias.config.method import Method

GROUP: Final = "raybias"
_OWN: Final = "raybias.methods"

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
    _load()
    return dict(_methods)


@cache
def _load() -> None:
    for module in pkgutil.iter_modules(import_module(_OWN).__path__, f"{_OWN}."):
        import_module(module.name)
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
