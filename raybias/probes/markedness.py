"""Make templates without their group term, and with a neutral word in its place.

Naming a group at all may move a classifier, whichever group it is. The *unmarked* form
leaves the term out and keeps the grammar; the *placeholder* form puts a word there that
says nothing of a group. Templates without an unmarked form are listed with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import polars as pl

from raybias.errors import ConfigError
from raybias.probes.published.amazon import NOUN_SLOTS
from raybias.probes.slots import Slotted, fill, items_frame, noun_phrase
from raybias.schema import PLACEHOLDER, UNMARKED

#: Slots that take "<adjective> person" or a noun for a person; without the term, "person".
_PERSON_SLOTS: Final = ("identity_np", "disability_np", "person")

NO_NOUN: Final = "the term stands alone, before no noun of its own"
NAME: Final = "the term is a whole phrase, such as the name of a country, a religion or a person"

#: Templates whose unmarked form the rule would make, and should not: a pattern of the
#: template, and why.
_EXCEPTIONS: Final = (
    (r"\bof \{\w+\} descent\b", "'of descent' needs an adjective"),
    (r"\bby \{\w+\} community house\b", "a count noun would stand without an article"),
    (r"\bhas \{a:\w+\} voice\b", "the sentence sets the term against an age"),
    (r"\bnon-practicing \{\w+\}", "'non-practicing' speaks of the term"),
    (r"\bas \{a:\w+\} but strayed from those beliefs\b", "'those beliefs' speaks of the term"),
)

FORMS: Final = pl.Schema(
    {
        "attribute": pl.String,
        "template_id": pl.String,
        "template": pl.String,
        "unmarked": pl.String,
        "left_out": pl.String,
    }
)


def with_unmarked(
    items: pl.DataFrame,
    templates: Mapping[str, Sequence[Slotted]],
    *,
    probe: str,
    placeholders: Sequence[str],
) -> pl.DataFrame:
    """Add unmarked and placeholder items behind the items of each attribute (schema.ITEMS).

    Parameters
    ----------
    items: the probe's own; their ids, texts and order stay.
    templates: of each attribute among them.
    probe: the kind of probe, which ids begin with.
    placeholders: neutral words, none empty or repeated (`ConfigError`); each is an item of every
        template where an adjective stands before a noun.
    """
    for word in placeholders:
        if not word.strip():
            raise ConfigError("a placeholder is empty", where="placeholders", cure="give a word")
        if placeholders.count(word) > 1:
            raise ConfigError(
                f"the placeholder {word!r} is given twice", where="placeholders", cure="keep one"
            )
    parts: list[pl.DataFrame] = []
    for (attribute,), own in items.group_by("attribute", maintain_order=True):
        extra = _extra_rows(str(attribute), templates[str(attribute)], probe, placeholders)
        parts += [own, items_frame(extra)]
    return pl.concat(parts)


def unmarked_forms(templates: Mapping[str, Sequence[Slotted]]) -> pl.DataFrame:
    """List every template with its unmarked form, or the reason why it has none (`left_out`).

    Columns are those of `FORMS`; one of the last two is null.
    """
    rows = [
        (attribute, each.template.id, each.template.text.strip(), text, reason)
        for attribute, slotted in templates.items()
        for each in slotted
        for text, reason in [_unmarked(each)]
    ]
    return pl.DataFrame(rows, schema=FORMS, orient="row")


def _extra_rows(
    attribute: str, templates: Iterable[Slotted], probe: str, placeholders: Sequence[str]
) -> list[tuple[object, ...]]:
    unmarked: list[tuple[object, ...]] = []
    neutral: list[tuple[object, ...]] = []
    for each in templates:
        own = each.template
        stem = f"{probe}/{attribute}"
        text, _ = _unmarked(each)
        if text is not None:
            item_id = f"{stem}/{UNMARKED}/{own.id}"
            unmarked.append((item_id, own.label, attribute, UNMARKED, text, own.id, None))
        noun = marked_noun(each)
        if noun is None:
            continue
        for word in placeholders:
            item_id = f"{stem}/{PLACEHOLDER}/{word}/{own.id}"
            phrase = word if _takes_adjective(each.slot) else f"{word} {noun}"
            filled = fill(own.text, each.slot, phrase)
            neutral.append((item_id, own.label, attribute, PLACEHOLDER, filled, own.id, word))
    return [*unmarked, *neutral]


def _unmarked(each: Slotted) -> tuple[str | None, str | None]:
    """Return the template without its term, or why it has no such form."""
    noun = marked_noun(each)
    if noun is None:
        return None, NO_NOUN if _takes_adjective(each.slot) else NAME
    text = each.template.text
    for pattern, reason in _EXCEPTIONS:
        if re.search(pattern, text):
            return None, reason
    if _takes_adjective(each.slot):
        # The next word takes the slot's place, so that article and capital come out as for a term.
        noun = noun.partition(" ")[0]
        text = re.sub(rf"\}}\s+{re.escape(noun)}", "}", text, count=1)
    return fill(text, each.slot, noun), None


def marked_noun(each: Slotted) -> str | None:
    """Return the nouns before which the term is an adjective in this template, or None."""
    if each.slot in _PERSON_SLOTS:
        return "person"
    if each.slot in NOUN_SLOTS:
        return NOUN_SLOTS[each.slot]
    if not _takes_adjective(each.slot):
        return None
    return noun_phrase(each.template.text.partition("}")[2]) or None


def _takes_adjective(slot: str) -> bool:
    return slot.endswith(("_adj", "_adj_or_pp"))
