"""Fill prompt templates, draw demonstrations, and read the label that an answer names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

import polars as pl

from raybias.errors import ConfigError, DataError
from raybias.schema import LABELS
from raybias.seeding import generator

#: A placeholder of a template; its name is the first group.
PLACEHOLDER: Final = re.compile(r"\{(\w+)\}")
#: A negation right before a word, with an article or adverb between them or without.
_NEGATED: Final = re.compile(
    r"(?<!\w)(?:not|no|non|nor|neither|never|without|cannot|\w+n['\u2019]t)\W+"
    r"(?:(?:an?|the|so|very|really|quite|entirely|clearly|particularly|necessarily)\W+)?\Z",
    re.IGNORECASE,
)
_THOUGHTS: Final = re.compile(r"<think>.*?(</think>|\Z)", re.DOTALL)


def filled(template: str, **values: str) -> str:
    """Replace each `{name}` of a template; braces in a value are text."""
    return PLACEHOLDER.sub(lambda match: values[match[1]], template)


def check_placeholders(
    field: str, template: str, *, needed: tuple[str, ...], others: tuple[str, ...]
) -> None:
    """Refuse a template without a needed placeholder or with an unknown one, by a ValueError."""
    found = PLACEHOLDER.findall(template)
    for name in needed:
        if name not in found:
            raise ValueError(f"{field} {template!r} has no {{{name}}}")
    known = dict.fromkeys((*needed, *others))
    for name in found:
        if name not in known:
            listed = ", ".join(f"{{{each}}}" for each in known)
            raise ValueError(f"{field} has {{{name}}}, which stands for nothing; use {listed}")


def about(template: str, text: str, words: Sequence[str], **values: str) -> str:
    """Fill a template with a text, `values`, and as choices `negative, neutral, or positive`."""
    *others, last = (word.strip() for word in words)
    return filled(template, text=text, choices=f"{', '.join(others)}, or {last}", **values)


def draw_shots(
    pool: pl.DataFrame,
    *,
    seed: int,
    shots_per_label: int,
    order: Literal["pool", "shuffled"],
    where: str,
) -> list[tuple[str, int]]:
    """Draw one run's demonstrations: the same number per label, without replacement.

    The draw depends on the seed, the label and the pool (schema.SENTENCES) alone; `order` is by row
    of the pool (the paper), or shuffled by the seed. DataError, which names the pool by `where`:
    too few sentences of a label.
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


def draw_texts(pool: pl.DataFrame, count: int, *, seed: int, by: tuple[str, ...] = ()) -> list[str]:
    """Draw texts without replacement, as many of each group of `by`; all where there are fewer."""
    groups = pool.partition_by(by, maintain_order=True) if by else [pool]
    each = min(-(-count // len(groups)), *map(len, groups), len(pool))
    texts = [
        group["text"][int(row)]
        for n, group in enumerate(groups)
        for row in generator(seed, "calibration", n).choice(len(group), each, replace=False)
    ]
    return [str(text) for text in texts]


class Reading(NamedTuple):
    """The label of an answer, or the reason for none (`none`, `several`, `negated`)."""

    label: int | None
    unread: str | None = None


def read_answer(
    answer: str, words: Sequence[str], rule: Literal["first", "only"] = "only"
) -> Reading:
    """Read the label that an answer names, without its thoughts in <think> and </think>.

    `rule`: the first label word, also inside another one ("negatively"), as in the paper's code; or
    the only one: whole, and not negated ("not negative", "neither positive").
    """
    answer = without_thoughts(answer)
    either = "|".join(f"({re.escape(word.strip())})" for word in words)
    if rule == "first":
        found = re.search(either, answer, re.IGNORECASE)
        return Reading(found.lastindex - 1) if found and found.lastindex else Reading(None, "none")
    matches = [*re.finditer(rf"(?<!\w)(?:{either})(?!\w)", answer, re.IGNORECASE)]
    labels = {match.lastindex - 1 for match in matches if match.lastindex}
    if len(labels) != 1:
        return Reading(None, "several" if labels else "none")
    if any(_NEGATED.search(answer, 0, match.start()) for match in matches):
        return Reading(None, "negated")
    return Reading(labels.pop())


def without_thoughts(answer: str) -> str:
    """Leave out the text between <think> and </think> before an answer."""
    return _THOUGHTS.sub("", answer)


def check_answer_words(words: Sequence[str]) -> None:
    """Refuse label words that are empty, equal, or part of another one, by a ConfigError."""
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
