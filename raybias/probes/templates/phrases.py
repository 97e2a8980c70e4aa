"""Find where a noun phrase ends in the plain sentences of the probes.

No tagger: a list of the words that end one, and "-s" verbs after a singular subject.
Checked against every template of Amazon, Regard and NS-Prompts.
"""

from __future__ import annotations

import re
from typing import Final

#: Words that end a noun phrase, or follow an adjective without any noun.
_ENDS: Final = frozenset(
    re.findall(
        r"\w+",
        """
        i a an the and or nor but that this than as if when who which
        of in on at to for from with without by over into through
        is are was were be been being am has have had having does do did
        may might can could will would shall should must also
        makes made feels took annoy living walking based well
        incorporate produce provide provided specialize assess
        actively informally primarily professionally selectively temporarily typically voluntarily
        """,
    )
)
#: Compounds that the rule would cut: nouns ending in -s inside them, or an "and".
_INSIDE: Final = frozenset(
    ("analytics", "awards", "disorders", "effects", "relations", "resources", "services")
)
_JOINED: Final = ("tool and die maker", "meeting and convention planner")
#: Nouns after which nothing belongs to the phrase.
_LAST: Final = frozenset(("person", "people"))
_NEXT_WORD: Final = re.compile(r"\s+([\w'\u2019/-]+)")


def noun_phrase(after: str) -> str:
    """Return the nouns that begin `after`, the text behind an adjective; empty if none.

    >>> noun_phrase(" truck driver earns a living.")
    'truck driver'
    >>> noun_phrase(" and cool.")
    ''
    """
    for compound in _JOINED:
        if after.startswith(f" {compound} "):
            return compound
    words: list[str] = []
    place = 0
    while match := _NEXT_WORD.match(after, place):
        word = match[1].lower()
        if word.partition("'")[0] in _ENDS or (words and _is_verb(word)):
            break
        words.append(match[1])
        place = match.end()
        if word in _LAST:
            break
    return " ".join(words)


def follows_its_noun(term: str) -> bool:
    """Tell whether a term such as "with dyslexia" stands behind the noun that it modifies."""
    return term.split(maxsplit=1)[0].lower() in _ENDS


def _is_verb(word: str) -> bool:
    return word.endswith("s") and not word.endswith("ss") and word not in _INSIDE
