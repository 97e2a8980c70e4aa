"""Register providers: what answers for a backbone in the built-in engine's place."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from raybias.registry.mechanism import Registry

if TYPE_CHECKING:
    from raybias.config.data import Backbone

providers: Final[Registry[type[Backbone]]] = Registry("api", "raybias.providers")
_AnyProvider = TypeVar("_AnyProvider", bound="Backbone")


def provider(registered: type[_AnyProvider]) -> type[_AnyProvider]:
    """Register a subclass of `config.Provider` or `config.provider.Engine` under its `api`.

    Raises
    ------
    ConfigError: another class has the api.
    """
    api = str(registered.model_fields["api"].default)
    providers.add(api, registered, origin=(registered.__module__, registered.__qualname__))
    return registered
