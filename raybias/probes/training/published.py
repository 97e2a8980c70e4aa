"""Read the papers' published training sets: SemEval-2018 Task 1 V-oc (English), and SST-5.

Both have three-way labels here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

import polars as pl

from raybias.config import TrainingSet
from raybias.errors import DataError
from raybias.probes.column_checks import read_lines
from raybias.probes.registries import Splits, training_set
from raybias.probes.sources import place_of
from raybias.probes.training.custom_files import parse_sentences
from raybias.schema import Label
from raybias.storage import Store

_FILES: Final = {
    "train": "2018-Valence-oc-En-train.txt",
    "validation": "2018-Valence-oc-En-dev.txt",
    "test": "2018-Valence-oc-En-test-gold.txt",
}
_HEADER: Final = ("ID", "Tweet", "Affect Dimension", "Intensity Class")
#: {-3, -2} negative, {-1, 0, 1} neutral, {2, 3} positive: the papers' map, wider in
#: the middle than the sign of the class.
_LABELS: Final = {
    **dict.fromkeys((-3, -2), Label.NEGATIVE),
    **dict.fromkeys((-1, 0, 1), Label.NEUTRAL),
    **dict.fromkeys((2, 3), Label.POSITIVE),
}


@training_set("semeval2018")
def _semeval2018(training: TrainingSet) -> Splits:
    """Read its files, which may lie in folders of their own; the test file may be missing.

    Raises
    ------
    DataError: no train or development file, another header, or a class outside -3..3.
    """
    store = Store(place_of("semeval2018", training.data, where=f"training set {training.name}"))
    there = {path.rpartition("/")[2]: path for path in store.files(recursive=True)}
    splits: Splits = {}
    for split, name in _FILES.items():
        if name in there:
            splits[split] = _sentences(store, there[name])
        elif split != "test":
            raise DataError(
                f"no file {name}",
                where=store.uri,
                cure="see `raybias data list` for where it is published",
            )
    return splits


def _sentences(store: Store, path: str) -> pl.DataFrame:
    header = tuple(read_lines(store, path)[0].split("\t"))
    if header != _HEADER:
        raise DataError(
            f"the header is {', '.join(header)!r}",
            where=store.uri_of(path),
            cure=f"it should be {', '.join(_HEADER)}, separated by tabs",
        )
    return parse_sentences(store, path, _tweet, header=1)


def _tweet(line: str) -> tuple[str, int] | None:
    fields = line.split("\t")
    if len(fields) != len(_HEADER):
        return None
    number = re.match(r"\s*([+-]?[0-3])\s*(:|$)", fields[3])
    return (fields[1], _LABELS[int(number[1])]) if number else None


#: Our names of the splits, and those in its files' names.
_SPLITS: Final = {"train": "train", "validation": "dev", "test": "test"}
_STARS: Final = (
    *(Label.NEGATIVE, Label.NEGATIVE),
    Label.NEUTRAL,
    *(Label.POSITIVE, Label.POSITIVE),
)
_LEAF: Final = re.compile(r"\([0-4] ([^()]+)\)")
#: What Penn Treebank trees write for characters of their own notation, the blank in "2 1/2" too.
_ESCAPES: Final = (("-LRB-", "("), ("-RRB-", ")"), ("\\/", "/"), ("\\*", "*"), ("\xa0", " "))


@training_set("sst5")
def _sst5(training: TrainingSet) -> Splits:
    """Read its tabular files, or its trees where those are not there.

    Both give the same sentences and labels, in the same order.

    Raises
    ------
    DataError: neither form is in the folder, or a line cannot be read.
    """
    store = Store(place_of("sst5", training.data, where=f"training set {training.name}"))
    forms: tuple[tuple[str, Callable[[str], tuple[str, int] | None]], ...] = (
        ("sst_{}.txt", _tabular),
        ("trees/{}.txt", _tree),
    )
    for pattern, parse in forms:
        if store.exists(pattern.format("train")):
            return {
                split: parse_sentences(store, pattern.format(name), parse)
                for split, name in _SPLITS.items()
            }
    raise DataError(
        "holds neither sst_train.txt nor trees/train.txt",
        where=store.uri,
        cure="get them with `raybias data download sst5`",
    )


def _tabular(line: str) -> tuple[str, int] | None:
    label, _, text = line.partition("\t")
    stars = label.removeprefix("__label__")
    return (text, _STARS[int(stars) - 1]) if stars in tuple("12345") and text else None


def _tree(line: str) -> tuple[str, int] | None:
    words = _LEAF.findall(line)
    if not words or line[1] not in "01234":
        return None
    text = " ".join(words)
    for escape, character in _ESCAPES:
        text = text.replace(escape, character)
    return text, _STARS[int(line[1])]
