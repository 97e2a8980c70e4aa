"""Sentences in other styles by rule (Zhao2025 section 3.2): the content stays, the wording changes.

Every rule acts on all sides of a pair alike: what is drawn or decided is drawn or decided per
pair. Formal and informal are no rules; see `styled` and `rewriting`. It knows no model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import polars as pl

from raybias.config import StyleOptions
from raybias.errors import ConfigError
from raybias.probes.pairs.crows_pairs import ORIGINAL, SIDES
from raybias.seeding import generator

PREFIXES: Final = {
    "prefix_1": "It's important to acknowledge that:",
    "prefix_2": "It's worth noting that:",
    "prefix_3": "With that in mind:",
}
QUESTIONS: Final = ("Know what?", "Want to hear something?")
#: Made by rule, for pairs.
RULE_STYLES: Final = (ORIGINAL, *PREFIXES, "punctuation", "evidential", "question_answer")
#: Made by rule, for sentences that a prompt asks about (Zhao2025 uses no others there).
COREFERENCE_STYLES: Final = (ORIGINAL, *PREFIXES, "evidential", "question_answer")
#: Made by people or a model.
REWRITTEN_STYLES: Final = ("formal", "informal")
STYLES: Final = (*RULE_STYLES, *REWRITTEN_STYLES)

#: A sentence, its last mark if it has one, and quotes or brackets that close behind the mark.
_ENDING: Final = re.compile(
    r"""(?P<body>.*?)(?P<mark>[.!?]?)(?P<close>["'\u201d\u2019)\]]*\s*)""", re.S
)
#: A beginning that has its capital from its place alone.
_COMMON: Final = re.compile(
    r"(?:an?|the|this|that|these|those|my|your|his|her|its|our|their|he|she|it|we|you|they|there"
    r"|all|any|both|each|every|many|most|no|some|when|while|if|because|since|after|before|as|at"
    r"|by|for|from|in|of|on|to|with|and|but|so|yet|not|do|don|did|men|women|people)(?!\w)",
    re.I,
)


def styled_pairs(
    pairs: pl.DataFrame, style: str, *, options: StyleOptions | None = None, seed: int = 0
) -> pl.DataFrame:
    """Original pairs (schema.PAIRS) in a style of RULE_STYLES, in their order.

    Parameters
    ----------
    seed: decides what an option leaves to a draw; the draw of a pair depends on its pair_id.

    Raises
    ------
    ConfigError: no such style, or one that is not made by rule.
    """
    check_style(style, RULE_STYLES)
    sides = [
        restyle(texts, style, pair_id=pair_id, options=options or StyleOptions(), seed=seed)
        for pair_id, *texts in pairs.select("pair_id", *SIDES).iter_rows()
    ]
    columns = [pl.Series(name, [each[n] for each in sides]) for n, name in enumerate(SIDES)]
    return pairs.with_columns(*columns, pl.lit(style).alias("style"))


def styled_coreferences(
    items: pl.DataFrame, style: str, *, options: StyleOptions | None = None, seed: int = 0
) -> pl.DataFrame:
    """Original sentences (schema.COREFERENCES) in a style of COREFERENCE_STYLES, in their order.

    Pronouns and referents stay: no rule of these changes a word of the sentence.

    Raises
    ------
    ConfigError: no such style, or one that these sentences have not.
    """
    check_style(style, COREFERENCE_STYLES)
    new: dict[str, str] = {}
    ids = ("item_id", "text")
    groups = items.group_by("pair_id", maintain_order=True).agg(*ids)
    for pair_id, item_ids, texts in groups.iter_rows():
        changed = restyle(
            texts, style, pair_id=pair_id, options=options or StyleOptions(), seed=seed
        )
        new |= dict(zip(item_ids, changed, strict=True))
    texts = pl.Series("text", [new[item_id] for item_id in items["item_id"]], pl.String)
    return items.with_columns(texts, pl.lit(style).alias("style"))


def check_style(style: str, known: Sequence[str]) -> None:
    """Refuse a style that is not among those known; `ConfigError` lists them."""
    if style not in known:
        if known == RULE_STYLES and style in REWRITTEN_STYLES:
            raise ConfigError(
                f"no rule makes the style {style!r}",
                cure="give a file of styled pairs, or a checkpoint that rewrites them",
            )
        raise ConfigError(f"no style {style!r} here", cure=f"choose from {', '.join(known)}")


def restyle(
    texts: Sequence[str], style: str, *, pair_id: str, options: StyleOptions, seed: int
) -> list[str]:
    """All sides of one pair in a style."""
    if style == ORIGINAL:
        return list(texts)
    if style == "punctuation":
        return [_exclaimed(text) for text in texts]
    if style == "evidential":
        if options.evidential_case == "lower" and all(map(_COMMON.match, texts)):
            texts = [text[:1].lower() + text[1:] for text in texts]
        opening = options.evidential + ("," if options.evidential_comma else "")
    elif style == "question_answer":
        which = int(options.question == "second")
        if options.question == "seeded":
            which = int(generator(seed, "question", pair_id).integers(len(QUESTIONS)))
        opening = QUESTIONS[which]
    else:
        opening = PREFIXES[style]
    return [f"{opening} {text}" for text in texts]


def _exclaimed(text: str) -> str:
    """A final period becomes "!", which is added where no mark is; "!" and "?" stay."""
    parts = _ENDING.fullmatch(text)
    if parts is None or parts["mark"] in ("!", "?"):
        return text
    if parts["mark"]:
        return f"{parts['body']}!{parts['close']}"
    # Without a mark, a closing quote belongs to the sentence: the mark comes last.
    return f"{text.rstrip()}!{text[len(text.rstrip()) :]}"
