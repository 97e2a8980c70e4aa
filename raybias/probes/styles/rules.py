"""Put pairs into other styles by rule (Zhao2025 section 3.2), in the order of registration here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

import polars as pl

from raybias.config import StyleOptions
from raybias.errors import ConfigError
from raybias.probes.published.crows_pairs import ORIGINAL, SIDES
from raybias.probes.registries import Rule, Style, StyledPair, style, styles

QUESTIONS: Final = ("Know what?", "Want to hear something?")

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
#: Contractions, longer ones first. None changes the meaning.
_SHORT: Final = {
    "can not": "can't", "cannot": "can't", "will not": "won't", "shall not": "shan't",
    **{
        f"{verb} not": f"{verb}n't"
        for verb in (
            "is", "are", "was", "were", "do", "does", "did", "has", "have", "had", "could",
            "should", "would", "must",
        )
    },
    "i am": "i'm", "you are": "you're", "we are": "we're", "they are": "they're",
    "he is": "he's", "she is": "she's", "it is": "it's", "that is": "that's",
    **{f"{who} will": f"{who}'ll" for who in ("i", "you", "he", "she", "it", "we", "they")},
}  # fmt: skip
_LONG: Final = re.compile(rf"\b(?:{'|'.join(map(re.escape, _SHORT))})\b(?! not\b)", re.I)
#: Shorter words would become other words too easily.
_TYPED: Final = re.compile(r"\b[a-z]{4,}\b")


def _each(change: Callable[[str], str]) -> Rule:
    def rule(texts: Sequence[str], pair: StyledPair) -> list[str]:
        return [change(text) for text in texts]

    return rule


def _exclaimed(text: str) -> str:
    parts = _ENDING.fullmatch(text)
    if parts is None or parts["mark"] in ("!", "?"):
        return text
    if parts["mark"]:
        return f"{parts['body']}!{parts['close']}"
    # Without a mark, a closing quote belongs to the sentence: the mark comes last.
    return f"{text.rstrip()}!{text[len(text.rstrip()) :]}"


def _short(match: re.Match[str]) -> str:
    # The first letter stays as it was.
    return match[0][0] + _SHORT[match[0].lower()][1:]


style(ORIGINAL, coreference=True)(_each(str))
for _name in ("formal", "informal"):
    styles.add(_name, Style(), origin=(__name__, _name))
style("prefix_1", coreference=True)(_each("It's important to acknowledge that: {}".format))
style("prefix_2", coreference=True)(_each("It's worth noting that: {}".format))
style("prefix_3", coreference=True)(_each("With that in mind: {}".format))
style("punctuation")(_each(_exclaimed))


@style("evidential", coreference=True)
def _evidential(texts: Sequence[str], pair: StyledPair) -> list[str]:
    if pair.options.evidential_case == "lower" and all(map(_COMMON.match, texts)):
        texts = [text[:1].lower() + text[1:] for text in texts]
    comma = "," if pair.options.evidential_comma else ""
    return [f"{pair.options.evidential}{comma} {text}" for text in texts]


@style("question_answer", coreference=True)
def _question_answer(texts: Sequence[str], pair: StyledPair) -> list[str]:
    which = int(pair.options.question == "second")
    if pair.options.question == "seeded":
        which = int(pair.random("question").integers(len(QUESTIONS)))
    return [f"{QUESTIONS[which]} {text}" for text in texts]


style("lowercase")(_each(str.lower))
style("contractions")(_each(partial(_LONG.sub, _short)))


@style("typos")
def _typos(texts: Sequence[str], pair: StyledPair) -> list[str]:
    """Misspell one word that all sides share, alike; without such a word leave them."""
    shared = set.intersection(*(set(_TYPED.findall(text)) for text in texts))
    # The first letter stays, and equal letters would change nothing.
    slips = [
        (word, word[:n] + word[n + 1] + word[n] + word[n + 2 :])
        for word in sorted(shared)
        for n in range(1, len(word) - 1)
        if word[n] != word[n + 1]
    ]
    if not slips:
        return list(texts)
    word, slip = slips[int(pair.random("typo").integers(len(slips)))]
    return [re.sub(rf"\b{word}\b", slip, text, count=1) for text in texts]


def styled(
    items: pl.DataFrame, style: str, *, options: StyleOptions | None = None, seed: int = 0
) -> pl.DataFrame:
    """Put pairs (schema.PAIRS or COREFERENCES) into a style by its rule; `ConfigError` without."""
    pairs = "text" not in items.columns
    check_style(style, [name for name, each in styles.items() if pairs or each.coreference])
    rule = styles[style].rule
    if rule is None:
        raise ConfigError(
            f"no rule makes the style {style!r}",
            cure="give a file of styled pairs, or a checkpoint that rewrites them",
        )
    sides = pl.concat_list(SIDES) if pairs else "text"
    numbered = items.select("pair_id", row=pl.int_range(pl.len()), texts=sides)
    if not pairs:
        numbered = numbered.group_by("pair_id", maintain_order=True).agg("row", "texts")
    made: list[Sequence[str]] = []
    for pair_id, texts in numbered.select("pair_id", "texts").iter_rows():
        pair = StyledPair(pair_id=pair_id, options=options or StyleOptions(), seed=seed)
        made.append(rule(texts, pair))
        if len(made[-1]) != len(texts):
            raise ConfigError(
                f"the rule of style {style!r} made {len(made[-1])} of {len(texts)} sides",
                cure="return one text per side",
            )
    if pairs:
        new = pl.DataFrame(made, schema=dict.fromkeys(SIDES, pl.String), orient="row")
    else:
        rows = numbered["row"].explode()
        texts = pl.Series("text", [text for sides in made for text in sides], pl.String)
        new = pl.DataFrame([rows, texts]).sort("row").select("text")
    return items.with_columns(new, style=pl.lit(style))


def check_style(style: str, known: Iterable[str]) -> None:
    """Refuse a style that is not among those known; `ConfigError` lists them."""
    if style not in known:
        raise ConfigError(f"no style {style!r} here", cure=f"choose from {', '.join(known)}")
