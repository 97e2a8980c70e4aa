"""Build the prompts of a method for a text, and read the label that an answer names.

Text only: templates are filled, demonstrations drawn, answers searched for label words. It does
not know a tokenizer, and adds no chat template.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

import polars as pl

from raybias.config import ChainOfThought, FewShot, Prompted
from raybias.config.prompted import PLACEHOLDER
from raybias.errors import ConfigError, DataError
from raybias.schema import LABELS
from raybias.seeding import generator


def first_prompt(
    method: Prompted, text: str, words: Sequence[str], shots: Sequence[tuple[str, int]] = ()
) -> str:
    """Fill a method's template for one text, behind its demonstrations where it shows any.

    Parameters
    ----------
    words: the label words in label order.
    shots: text and label (0, 1, 2) of each demonstration of a few-shot method, in the order shown.
    """
    choices = _choices(words)
    shown = ""
    if isinstance(method, FewShot):
        for shot, label in shots:
            word = words[label].strip()
            shown += _filled(
                method.demonstration, text=shot, choices=choices, label=word, Label=capital(word)
            )
    return shown + _filled(method.template, text=text, choices=choices)


def answered_prompt(
    method: Prompted,
    text: str,
    words: Sequence[str],
    shots: Sequence[tuple[str, int]] = (),
    *,
    reasoning: str = "",
) -> str:
    """The prompt that the answer follows: of a chain of thought the second one, else the first.

    Parameters
    ----------
    reasoning: what a chain of thought generated, with the blank that it may begin with.
    """
    first = first_prompt(method, text, words, shots)
    if not isinstance(method, ChainOfThought):
        return first
    values = {"text": text, "choices": _choices(words), "reasoning": reasoning}
    return first + _filled(method.conclusion, **values)


def prompt_record(
    method: Prompted, words: Sequence[str], shots: Sequence[tuple[str, int]]
) -> dict[str, str]:
    """The prompts of one run for the record, with `{text}` and `{reasoning}` where these stand."""
    record = {"prompt": first_prompt(method, "{text}", words, shots)}
    if isinstance(method, ChainOfThought):
        record["second_prompt"] = answered_prompt(method, "{text}", words, reasoning="{reasoning}")
    return record


def answer_words(method: Prompted, words: Sequence[str]) -> list[str]:
    """Return the label words as a method's demonstrations write them, for their tokens."""
    capitals = isinstance(method, FewShot) and "{Label}" in method.demonstration
    return [capital(word) if capitals else word for word in words]


def capital(word: str) -> str:
    """Return the word with its first letter as a capital."""
    return word[:1].upper() + word[1:]


def _choices(words: Sequence[str]) -> str:
    """`negative, neutral, or positive`."""
    *others, last = (word.strip() for word in words)
    return f"{', '.join(others)}, or {last}"


def _filled(template: str, **values: str) -> str:
    # One pass: braces in a value are text, whatever stands between them.
    return PLACEHOLDER.sub(lambda match: values[match[1]], template)


def draw_shots(
    pool: pl.DataFrame,
    *,
    seed: int,
    shots_per_label: int,
    order: Literal["pool", "shuffled"],
    where: str,
) -> list[tuple[str, int]]:
    """Demonstrations of one run: so many of each label, without replacement.

    Which rows are drawn depends on the seed, the label and the pool alone; `order` only
    arranges them.

    Parameters
    ----------
    pool: the sentences (schema.SENTENCES).
    order: by row of the pool (the paper), or shuffled by the seed.
    where: names the pool in a message.

    Raises
    ------
    DataError: the pool has too few sentences of a label.
    """
    drawn: list[int] = []
    for label, name in enumerate(LABELS):
        rows = (pool["label"] == label).arg_true().to_numpy()
        if len(rows) < shots_per_label:
            raise DataError(
                f"has {len(rows)} {name} sentences, not the {shots_per_label} that a run shows",
                where=where,
                cure="take a larger pool or fewer shots_per_label",
            )
        chosen = generator(seed, "shots", label).choice(rows, shots_per_label, replace=False)
        drawn += chosen.tolist()
    drawn.sort()
    if order == "shuffled":
        generator(seed, "shots", "order").shuffle(drawn)
    return [(str(pool["text"][row]), int(pool["label"][row])) for row in drawn]


def read_answer(answer: str, words: Sequence[str]) -> int | None:
    """The label whose word stands first in the answer, capitals aside; None if none does.

    A word inside another one counts ("negatively"), as in the paper's code.
    """
    match = re.search("|".join(f"({re.escape(word.strip())})" for word in words), answer, re.I)
    return match.lastindex - 1 if match and match.lastindex else None


def check_answer_words(words: Sequence[str]) -> None:
    """Refuse label words that an answer could not be read by.

    Raises
    ------
    ConfigError: a word is empty, given twice, or part of another one.
    """
    plain = [word.strip().lower() for word in words]
    for label, word in zip(LABELS, plain, strict=True):
        if not word:
            raise ConfigError(
                f"the word for {label} is empty", where="verbalizer", cure="give a word"
            )
        if plain.count(word) > 1:
            raise ConfigError(
                f"{word!r} stands for two labels", where="verbalizer", cure="give each its own"
            )
        for other in plain:
            if word != other and word in other:
                raise ConfigError(
                    f"{word!r} is part of {other!r}, so an answer with it could mean either",
                    where="verbalizer",
                    cure="choose words of which none holds another",
                )
