"""Fill in what a method's options leave to its backbones."""

from __future__ import annotations

from raybias.config import Method, Study


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
                fitted.setdefault(method.fit(backbone, study.profile), []).append(backbone.name)
        for each, names in fitted.items():
            chosen = tuple(names) if len(fitted) > 1 else method.backbones
            methods.append(each.model_copy(update={"backbones": chosen}))
    return study.model_copy(update={"methods": tuple(methods)})
