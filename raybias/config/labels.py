"""Check the labels of a study, and the word that a model says for each.

A study is about one task, so it has one ordered list of labels. A label's number in every table is
its index in that list.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator

from raybias.config.section import Profile
from raybias.errors import ConfigError
from raybias.schema import LABELS

#: Numbers of labels have 16 bits in tables.
_MOST: Final = 1 << 15


def refuse_paper(profile: Profile | None, labels: Sequence[str]) -> None:
    """Refuse the profile `paper` for labels that are not those of sentiment, by a ConfigError."""
    if profile == "paper" and tuple(labels) != LABELS:
        raise ConfigError(
            f"the profile paper reproduces studies of {', '.join(LABELS)}, and this study has the"
            f" labels {', '.join(labels)}",
            where="profile",
            cure="use the profile strict",
        )


def _pair_words(value: Any) -> Any:
    """Read a list of words as labels that are their own label words."""
    if not isinstance(value, list | tuple):
        return value
    for word in value:
        if not isinstance(word, str):
            raise ValueError(f"the label {word!r} is not text; write it in quotes")
        if value.count(word) > 1:
            raise ValueError(f"the label {word!r} is there twice; give each label once")
    return {word: word for word in value}


def _check_label_words(words: dict[str, str]) -> dict[str, str]:
    """Refuse labels that cannot be told apart; return those of sentiment in their usual order."""
    labels = check_labels(tuple(words))
    for label, word in words.items():
        if not word.strip():
            raise ValueError(f"the word for {label} is empty; give a word")
    return {label: words[label] for label in labels}


def _check_keys(value: Any) -> Any:
    """Refuse keys that YAML does not read as text."""
    if isinstance(value, dict):
        for label, word in value.items():
            wrong = [text for text in (label, word) if not isinstance(text, str)]
            if wrong:
                raise ValueError(
                    f"the label or label word {wrong[0]!r} is not text; write it in quotes"
                )
    return value


def check_labels(labels: tuple[str, ...]) -> tuple[str, ...]:
    """Return the labels, those of sentiment in their usual order.

    Raises ValueError: fewer than two, or an empty or repeated one.
    """
    if len(labels) < 2:
        listed = ", ".join(labels) or "none"
        raise ValueError(f"a classifier has at least 2 labels, and this names {listed}")
    if len(labels) > _MOST:
        raise ValueError(f"{len(labels):,} labels; there can be at most {_MOST:,}")
    seen: dict[str, str] = {}
    for label in labels:
        if label != label.strip() or not label.isprintable() or not label:
            raise ValueError(
                f"the label {label!r} is empty, or has a blank at an end or a character that cannot"
                " be printed; give it a plain name"
            )
        other = seen.setdefault(label.lower(), label)
        if other is not label:
            raise ValueError(
                f"the labels {other!r} and {label!r} are the same but for capitals; give each label"
                " a name of its own"
            )
    return LABELS if {*labels} == {*LABELS} else labels


def _check_codes(codes: dict[str, str]) -> dict[str, str]:
    """Refuse values that a file could write for two labels; capitals and blanks do not count."""
    seen: dict[str, str] = {}
    for value, label in codes.items():
        if (other := seen.setdefault(value.strip().lower(), label)) != label:
            raise ValueError(
                f"{value!r} is mapped to {other!r} and to {label!r}; capitals and blanks around a"
                " value do not count, so map it once"
            )
    return codes


#: The label of each value of a file.
LabelCodes = Annotated[dict[str, str], AfterValidator(_check_codes)]
#: The word for each label, in label order. A list has words that are labels too.
LabelWords = Annotated[
    dict[str, str],
    BeforeValidator(_check_keys),
    BeforeValidator(_pair_words, json_schema_input_type=dict[str, str] | list[str]),
    AfterValidator(_check_label_words),
]
