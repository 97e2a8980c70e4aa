"""Find the templates and group terms of sentences again that are published without them.

Sentences of one template differ in one run of words, the term. So a template is what is left and
right of a term, and its sentences, which have one label, name every group of the attribute. Of the
spans of a sentence for which that is so, the shortest is its term.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from typing import Final

import polars as pl

#: The most words of a term.
_LONGEST: Final = 6
#: Parts a term's last word from what does not belong to it: `Mary's`, `asian.`
_END: Final = re.compile(r"(.*?)((?:'s)?\W*)$")
#: Terms must stand in this share of the templates on average, else they are phrases, not words.
_SHARED: Final = 0.5

#: group, label, text
_Sentence = tuple[str, int, str]
#: The template and its term.
_Parts = tuple[str, str | None]


def recovered_templates(sentences: pl.DataFrame) -> pl.DataFrame:
    """Find the template and the term of each sentence.

    Parameters
    ----------
    sentences: attribute, group, label, text.

    Returns
    -------
    template_id (the sentence with {term} in its place) and term (lower case), a row for each;
    null for attributes that have a sentence without a template, one group or one template.
    """
    columns = ["attribute", "group", "label", "text"]
    distinct = sentences.select(columns).unique(maintain_order=True)
    rows = []
    for (attribute,), part in distinct.group_by(["attribute"], maintain_order=True):
        found = _recovered(tuple(part.select(columns[1:]).sort(columns[1:]).iter_rows()))
        rows += [(attribute, *sentence, *parts) for sentence, parts in found.items()]
    types = {**{name: sentences.schema[name] for name in columns},
             "template_id": pl.String(), "term": pl.String()}  # fmt: skip
    table = pl.DataFrame(rows, types, orient="row")
    joined = sentences.join(table, on=columns, how="left", maintain_order="left")
    return joined.select("template_id", "term")


# Each model's file holds the same sentences.
@lru_cache(maxsize=32)
def _recovered(sentences: tuple[_Sentence, ...]) -> dict[_Sentence, _Parts]:
    every = {group for group, _, _ in sentences}
    groups: dict[tuple[int, str], set[str]] = defaultdict(set)
    for group, label, text in sentences:
        for template, _ in _spans(text):
            groups[label, template].add(group)
    found: dict[_Sentence, _Parts] = {}
    for sentence in sentences:
        _, label, text = sentence
        named = (parts for parts in _spans(text) if groups[label, parts[0]] == every)
        parts = next(named, None)
        if parts is None:
            return {}
        found[sentence] = parts
    templates, terms = ({parts[side] for parts in found.values()} for side in (0, 1))
    if len(every) < 2 or len(templates) < 2:
        return {}
    share = len(set(found.values())) / len(templates) / len(terms)
    return found if share >= _SHARED else {key: (t, None) for key, (t, _) in found.items()}


def _spans(text: str) -> Iterator[tuple[str, str]]:
    """Yield what is around a span and the span, without an article before it, short ones first."""
    words = text.split(" ")
    for size in range(1, _LONGEST + 1):
        for start in range(len(words) - size + 1):
            end = start + size
            left = words[:start]
            if left and left[-1].lower() in ("a", "an"):
                left = left[:-1]
            last, rest = _END.fullmatch(words[end - 1]).groups()  # type: ignore[union-attr]
            term = " ".join([*words[start : end - 1], last])
            yield " ".join([*left, f"{{term}}{rest}", *words[end:]]), term.lower()
