"""Find what answers for a backbone: a provider or an engine, with a memory or without."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raybias.config import Provider
from raybias.config.provider import Engine
from raybias.storage import Store

if TYPE_CHECKING:
    from raybias.config.provider import Answers
    from raybias.engine.context import ModelContext


def answers_of(context: ModelContext, store: Store) -> Answers:
    """Return what answers for a backbone.

    Parameters
    ----------
    store: the study's OUT.

    Raises
    ------
    ModelError: weights that cannot be loaded.
    ConfigError: an engine that is not installed here as it was where the study began.
    """
    from raybias.engine.answering import EngineAnswers
    from raybias.providers.memory import RememberedAnswers

    spec, found = context.spec, None
    match spec:
        case Provider():
            found = spec.answers(store)
        case Engine():
            found = spec.answers(context)
        case _:
            found = EngineAnswers(context.backbone())
    if not context.memory:
        return found
    return RememberedAnswers(found, Store(context.memory), spec)
