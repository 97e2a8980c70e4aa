"""Write a commented card for each kind of probe, from the fields of `config.card`."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import Any, Final, get_args

import yaml

from raybias.config.card import COLUMNS, Card, CardKind, Validity
from raybias.errors import ConfigError

_WIDTH: Final = 96
#: By kind, what an example says of it.
_EXAMPLES: Final[Mapping[CardKind, Mapping[str, Any]]] = {
    "label": {
        "about": "Whether sentences about older people are called negative more often.",
        "file": "sentences.csv",
        "values": {"attribute": "age"},
        "codes": {"label": {"-1": "negative", "0": "neutral", "1": "positive"}},
        "groups": {"young": "people below 30", "old": "people above 65"},
        "units": "templates",
        "gold": "the sentiment of the sentence, which naming an age does not change",
        "harm": "a group whose neutral or positive sentences are called negative is disfavoured",
        "metric": "gap of the negative false positive rate; 0 without bias",
    },
    "pair": {
        "about": "Which of two sentences, alike but for the group, a model finds likelier.",
        "file": "pairs.csv",
        "columns": {"sent_more": "stereotype", "sent_less": "other"},
        "values": {"bias_type": "age"},
        "units": "pairs; templates where `cluster` names them",
        "harm": "sent_more is the stereotype of the group; preferring it repeats the stereotype",
        "metric": "preference; 50 without bias",
    },
    "triple": {
        "about": "Whether a model prefers a stereotype of a term to its opposite.",
        "file": "triples.csv",
        "values": {"domain": "age"},
        "units": "target terms",
        "harm": "preferring the stereotype repeats it",
        "metric": "ss, 50 without bias, beside lms, which says whether the model makes sense",
    },
    "options": {
        "about": "Whether a model takes older people for forgetful where nothing says so.",
        "file": "questions.csv",
        "columns": {"options": ["ans0", "ans1", "ans2"]},
        "values": {"category": "age"},
        "codes": {
            "context": {"ambiguous": "ambig", "disambiguated": "disambig"},
            "polarity": {"negative": "neg", "non_negative": "nonneg"},
        },
        "units": "question templates",
        "gold": "the right option: the unknown one where the text does not say",
        "harm": "the stereotyped group is named in negative questions without a reason",
        "metric": "bbq in ambiguous contexts; 0 without bias",
    },
    "decision": {
        "about": "Whether decisions depend on the age and gender of who is decided about.",
        "file": "decisions.csv",
        "people": ["age", "gender"],
        "reference": {"age": "40"},
        "units": "decisions",
        "harm": "a group for which the favourable answer is less likely is discriminated against",
        "metric": "logits more favourable than the reference; 0 without bias",
    },
}
#: Written, though they are empty, so that they are filled in.
_ASKED: Final = ("facets",)
#: Not of a file that lies beside the card.
_OF_HUB: Final = ("hub", "revision", "subset", "split")


def commented_card(kind: str) -> str:
    """Write the card of an example, with a comment on each key.

    Raises
    ------
    ConfigError: no such kind.
    """
    kinds = {str(each): each for each in get_args(CardKind)}
    if kind not in kinds:
        raise ConfigError(f"no kind of probe {kind!r}", cure=f"choose from {', '.join(kinds)}")
    needed, others = COLUMNS[kinds[kind]]
    parts = [
        _comment(
            f"A probe of one's own. Its file needs the columns {', '.join(needed)}; it may have"
            f" {', '.join(others)}."
        )
    ]
    example = {"kind": kind, **_EXAMPLES[kinds[kind]]}
    for name, field in Card.model_fields.items():
        about = " ".join(str(field.description).split())
        if name == "validity":
            parts.append(_comment(about) + _validity())
        elif name in example or name in _ASKED:
            parts.append(_comment(about) + _written({name: example.get(name, [])}))
        elif name in _OF_HUB:
            parts.append(_comment(f"{about} ({name}: ..)"))
    return "\n".join(parts)


def _validity() -> str:
    lines = ["validity:\n"]
    for name, field in Validity.model_fields.items():
        comment = _comment(" ".join(str(field.description).split()))
        lines.append(textwrap.indent(comment + _written({name: ""}), "  "))
    return "".join(lines)


def _comment(text: str) -> str:
    return "".join(f"# {line}\n" for line in textwrap.wrap(text, _WIDTH))


def _written(content: Mapping[str, Any]) -> str:
    return str(yaml.safe_dump(dict(content), sort_keys=False, allow_unicode=True, width=_WIDTH))
