"""Read SemEval-2018 Task 1 V-oc (English) with the papers' three-way labels."""

from __future__ import annotations

import re
from typing import Final

import polars as pl

from raybias.config import TrainingSet
from raybias.errors import DataError
from raybias.probes.readers import read_lines
from raybias.probes.registries import Splits, training_set
from raybias.probes.sources import place_of
from raybias.probes.training.lines import parse_sentences
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
