"""Fill in what a method's options leave to its backbones."""

from __future__ import annotations

from typing import Final

from raybias.config import Backbone, Method, Study
from raybias.config.data import Ability
from raybias.errors import ConfigError
from raybias.registry import methods as registered

#: What backbones can do, in words.
_WORDS: Final[dict[Ability, str]] = {
    "weights": "a model's weights",
    "chat": "answers to chats",
    "text": "completions of plain text",
    "first_tokens": "the log-probabilities of an answer's first tokens",
    "likelihoods": "the log-probabilities of a prompt's tokens",
}


def fit_methods(study: Study) -> Study:
    """Return the study with each method fitted to its backbones; no weights are read.

    A method that is not the same on all of its backbones becomes several of its name, each with
    the backbones that it is for.

    Raises
    ------
    ConfigError, ModelError: options that a backbone cannot have.
    """
    methods: list[Method] = []
    for method in study.methods:
        fitted: dict[Method, list[str]] = {}
        for backbone in study.backbones:
            if method in study.methods_of(backbone):
                check_abilities(method, backbone)
                fitted.setdefault(method.fit(backbone, study.profile), []).append(backbone.name)
        for each, names in fitted.items():
            chosen = tuple(names) if len(fitted) > 1 else method.backbones
            methods.append(each.model_copy(update={"backbones": chosen}))
    return study.model_copy(update={"methods": tuple(methods)})


def check_abilities(method: Method, backbone: Backbone) -> None:
    """Refuse a method that needs what a backbone cannot do.

    Raises
    ------
    ConfigError: says what is lacking, and names the option or the methods that do without it.
    """
    offered = backbone.abilities
    lacking = {each: way for each, way in method.needs(offered).items() if each not in offered}
    if not lacking:
        return
    ways = [way for way in lacking.values() if way]
    able = [
        kind
        for kind, each in registered.items()
        if {n for n, way in each.model_construct().needs(offered).items() if not way} <= offered
    ]
    raise ConfigError(
        f"method {method.name!r} needs {' and '.join(_WORDS[each] for each in lacking)}, which"
        f" {backbone.name} does not offer",
        where=f"backbones, {backbone.name}",
        cure=" and ".join(ways)
        if len(ways) == len(lacking)
        else f"use {', '.join(able)}, name what it offers in `offers`, or give a backbone with"
        " weights",
    )
