"""Register methods: what a study can ask of a backbone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from raybias.registry.mechanism import Registry

if TYPE_CHECKING:
    from raybias.config.method import Method

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
