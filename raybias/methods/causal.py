"""Refuse encoders where a method reads the next token of a causal model."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raybias.errors import ModelError

if TYPE_CHECKING:
    from raybias.config import Backbone
    from raybias.config.method import Method


def check_causal(backbone: Backbone, method: Method) -> None:
    """Refuse an encoder.

    Raises
    ------
    ModelError: says that the method needs a causal language model.
    """
    from raybias.engine.backbone import is_encoder

    if is_encoder(backbone):
        raise ModelError(
            f"is an encoder, and method {method.name} needs a causal language model",
            where=backbone.id,
            cure="use full or lora on it, or another backbone",
        )
