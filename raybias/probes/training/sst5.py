"""Read SST-5 with the three-way labels of Tian2023 (section 3); whole sentences only."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from raybias.config import TrainingSet
from raybias.errors import DataError
from raybias.probes.registries import Splits, training_set
from raybias.probes.sources import place_of
from raybias.probes.training.lines import parse_sentences
from raybias.schema import Label
from raybias.storage import Store

#: Our names of the splits, and those in its files' names.
_SPLITS: Final = {"train": "train", "validation": "dev", "test": "test"}
_LABELS: Final = (
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
    return (text, _LABELS[int(stars) - 1]) if stars in tuple("12345") and text else None


def _tree(line: str) -> tuple[str, int] | None:
    words = _LEAF.findall(line)
    if not words or line[1] not in "01234":
        return None
    text = " ".join(words)
    for escape, character in _ESCAPES:
        text = text.replace(escape, character)
    return text, _LABELS[int(line[1])]
