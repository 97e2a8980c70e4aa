"""The class that rates are about, in the words of a table, and which outcome is favourable.

Nothing in a table says which outcome is good for a person. Only a declared one (`--favourable`,
`statistics.favourable` of a study, a card or a source) lets a reader be told who gains by a gap.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

from raybias.config import Study
from raybias.errors import ConfigError
from raybias.stats import sentiment

#: Stands for the class in the texts of metrics; `RatedClass` has the word of a table.
PLACEHOLDER = "the class"


@dataclass(frozen=True)
class RatedClass:
    """The class that rates are about.

    Attributes
    ----------
    name: its word among predictions, such as `approved`; several are joined by `or`. Empty if each
        class is measured on its own, or none is.
    label: its word among right labels.
    favourable: the prediction that is declared to be favourable for a person; empty if none is.
    is_favourable: whether that is the class (True) or all that is not of the class (False); None
        if none is declared, or if it is only a part of what is not of the class.
    """

    name: str = ""
    label: str = ""
    favourable: str = ""
    is_favourable: bool | None = None

    @property
    def declared(self) -> str:
        """Say which outcome counts as favourable, or that none is declared."""
        if self.favourable:
            return f"Being predicted {self.favourable} counts as favourable here, as declared."
        return (
            "Which outcome is good for a person was not declared, so it is not said who gains or "
            "loses by a gap."
        )


def title_of(words: str, among: str) -> str:
    """Name a rate by what happens (`predicted approved`), and to whom (`whose label is paid`)."""
    return f"{words}, of those {among}" if among else words


def about_of(words: str, among: str) -> str:
    """Define a rate by what happens, and to whom."""
    return f"the share of the group's examples {f'{among} ' if among else ''}that are {words}"


def rated_class_of(study: Study) -> RatedClass:
    """Return the class that a study's rates are about."""
    favourable = study.statistics.favourable or ""
    if study.positive is None:
        return RatedClass(favourable=favourable)
    name = study.labels[study.positive]
    return RatedClass(name, name, favourable, _is_favourable(favourable, name, study.labels))


def rated_label(number: int, labels: Sequence[str], favourable: Sequence[str]) -> RatedClass:
    """Return one label as the class, in files that have the numbers of `labels`.

    Raises ConfigError: the favourable one is none of them.
    """
    name = labels[number]
    declared = favourable_label(favourable, labels)
    return RatedClass(name, name, declared, _is_favourable(declared, name, labels))


def favourable_label(named: Sequence[str], labels: Sequence[str]) -> str:
    """Return the favourable one of labels, by its name or number; empty if none is named.

    Raises ConfigError: it is none of them, or several are named.
    """
    if not named:
        return ""
    by_name = {label.lower(): label for label in reversed(labels)}
    by_number = {str(number): label for number, label in enumerate(labels)}
    (text, *others) = named
    found = text if text in labels else by_name.get(text.lower(), by_number.get(text))
    if others or found is None:
        raise ConfigError(
            f"--favourable {','.join(named)} is no label of these files",
            cure=f"choose one of {', '.join(labels)}",
        )
    return found


def _is_favourable(favourable: str, name: str, labels: Sequence[str]) -> bool | None:
    if favourable == name:
        return True
    is_the_rest = bool(favourable) and len(labels) == 2
    return False if is_the_rest else None


def favours_class(named: Set[str], inside: Set[str], outside: Set[str]) -> bool | None:
    """Return whether favourable predictions are the class (True) or the rest (False).

    named: the favourable words; none for None.
    inside, outside: the words of predictions that are of the class, and the others.

    Raises ConfigError: they are neither, so what a rate counts is partly favourable.
    """
    if not named:
        return None
    if named == inside:
        return True
    if named == outside:
        return False
    of_class, others = (", ".join(sorted(words)) for words in (inside, outside))
    raise ConfigError(
        f"--favourable {','.join(sorted(named))} is neither the class nor all that is not of it",
        cure=f"rates are of {of_class}, against {others or 'nothing else'}: name all of one side",
    )


def sentiment_class(code: int | None, favourable: Sequence[str]) -> RatedClass:
    """Return the class of labels of sentiment; by default it is `positive`."""
    number = sentiment.POSITIVE if code is None else code
    return rated_label(number, sentiment.NAMES, favourable)
