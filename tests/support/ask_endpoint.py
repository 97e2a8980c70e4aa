"""Ask an imitated server, through the provider that asks real ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from raybias.engine.answers import Writing, Written
from raybias.providers.openai import OpenAI
from raybias.storage import Store
from support.endpoint import Endpoint, serving
from support.imitations import LABELS, Response

TEXTS = [f"The {who} is here" for who in ("cook", "old man", "elderly man", "young woman", "cat")]


def endpoint(url: str, **options: Any) -> OpenAI:
    chosen = {"key_variable": None, "retries": 1, "repeat": 0.0, "at_once": 4, **options}
    return OpenAI(endpoint=url, model="m", name="m", **chosen)


def ask(
    respond: Callable[[dict[str, Any], str], Response],
    out: Path,
    *,
    labels: bool = False,
    temperature: float = 0.0,
    texts: list[str] = TEXTS,
    **options: Any,
) -> tuple[list[Written], Endpoint]:
    """Answers of a server to chats, and what it was asked."""
    chats = [json.dumps([{"role": "user", "content": text}]) for text in texts]
    how = Writing(16, temperature, chat=True, labels=LABELS if labels else ())
    offers = ("chat", "first_tokens") if labels else ("chat",)
    with serving(Endpoint(key=None, respond=respond)) as server:
        answers = endpoint(server.url, offers=offers, **options).answers(Store(out))
        return answers.write(chats, [("a", n) for n in range(len(texts))], how), server
