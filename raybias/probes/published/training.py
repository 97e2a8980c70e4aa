"""Read training sets: SST-5 and SemEval-2018 of sentiment, own files and the hub of any labels."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import polars as pl

from raybias.config import TrainingSet
from raybias.config.card import Column
from raybias.errors import DataError, said_by
from raybias.probes.checks import checked, column, label_codes, needed, read_lines
from raybias.probes.registries import Splits, training_set
from raybias.probes.sources import place_of
from raybias.schema import LABELS, SENTENCES, Label
from raybias.storage import Store, split_uri
from raybias.table_files import as_text, match_columns, read_frame

#: Text and label of a line, or None where it cannot be read.
Parse = Callable[[str], tuple[str, int] | None]

#: Our names of the splits, and those in its files' names.
_SST_SPLITS: Final = {"train": "train", "validation": "dev", "test": "test"}
_SST_LABELS: Final = (
    *(Label.NEGATIVE, Label.NEGATIVE),
    Label.NEUTRAL,
    *(Label.POSITIVE, Label.POSITIVE),
)
_LEAF: Final = re.compile(r"\([0-4] ([^()]+)\)")
#: Escapes of Penn Treebank trees for their own notation, and for the blank in "2 1/2".
_ESCAPES: Final = (("-LRB-", "("), ("-RRB-", ")"), ("\\/", "/"), ("\\*", "*"), ("\xa0", " "))

_VOC_FILES: Final = {
    "train": "2018-Valence-oc-En-train.txt",
    "validation": "2018-Valence-oc-En-dev.txt",
    "test": "2018-Valence-oc-En-test-gold.txt",
}
_VOC_HEADER: Final = ["ID", "Tweet", "Affect Dimension", "Intensity Class"]
#: {-3, -2} negative, {-1, 0, 1} neutral, {2, 3} positive: the papers' map, wider in
#: the middle than the sign of the class.
_VOC_LABELS: Final = {
    **dict.fromkeys((-3, -2), Label.NEGATIVE),
    **dict.fromkeys((-1, 0, 1), Label.NEUTRAL),
    **dict.fromkeys((2, 3), Label.POSITIVE),
}

_TABLES: Final = (".csv", ".tsv", ".parquet")


@training_set("sst5")
def _sst5(training: TrainingSet) -> Splits:
    """Read its tabular files, or its trees, which give the same sentences in the same order."""
    store = Store(place_of("sst5", training.data, where=f"training set {training.name}"))
    forms: dict[str, Parse] = {"sst_{}.txt": _tabular, "trees/{}.txt": _tree}
    for pattern, parse in forms.items():
        if store.exists(pattern.format("train")):
            return {
                split: parse_sentences(store, pattern.format(name), parse)
                for split, name in _SST_SPLITS.items()
            }
    raise DataError(
        "holds neither sst_train.txt nor trees/train.txt",
        where=store.uri,
        cure="get them with `raybias data download sst5`",
    )


def _tabular(line: str) -> tuple[str, int] | None:
    label, _, text = line.partition("\t")
    stars = label.removeprefix("__label__")
    return (text, _SST_LABELS[int(stars) - 1]) if stars in tuple("12345") and text else None


def _tree(line: str) -> tuple[str, int] | None:
    words = _LEAF.findall(line)
    if not words or line[1] not in "01234":
        return None
    text = " ".join(words)
    for escape, character in _ESCAPES:
        text = text.replace(escape, character)
    return text, _SST_LABELS[int(line[1])]


@training_set("semeval2018")
def _semeval2018(training: TrainingSet) -> Splits:
    """Read its files, which may lie in folders of their own; the test file may be missing."""
    store = Store(place_of("semeval2018", training.data, where=f"training set {training.name}"))
    there = {path.rpartition("/")[2]: path for path in store.files(recursive=True)}
    splits: Splits = {}
    for split, name in _VOC_FILES.items():
        if path := there.get(name):
            header = read_lines(store, path)[0].split("\t")
            if header != _VOC_HEADER:
                raise DataError(
                    f"the header is {', '.join(header)!r}",
                    where=store.uri_of(path),
                    cure=f"it should be {', '.join(_VOC_HEADER)}, separated by tabs",
                )
            splits[split] = parse_sentences(store, path, _tweet, header=1)
        elif split != "test":
            raise DataError(
                f"no file {name}",
                where=store.uri,
                cure="see `raybias data list` for where it is published",
            )
    return splits


def _tweet(line: str) -> tuple[str, int] | None:
    fields = line.split("\t")
    if len(fields) != len(_VOC_HEADER):
        return None
    number = re.match(r"\s*([+-]?[0-3])\s*(:|$)", fields[3])
    return (fields[1], _VOC_LABELS[int(number[1])]) if number else None


def parse_sentences(store: Store, path: str, parse: Parse, *, header: int = 0) -> pl.DataFrame:
    """Read sentences (schema.SENTENCES) behind `header` lines; what `parse` cannot is refused."""
    rows: list[tuple[str, int]] = []
    for number, line in enumerate(read_lines(store, path)[header:], start=1):
        parsed = parse(line)
        if parsed is None or not parsed[0].strip():
            raise DataError(
                f"cannot read a label and a sentence from {line[:60]!r}",
                where=f"{store.uri_of(path)} row {number}",
            )
        rows.append(parsed)
    if not rows:
        raise DataError("holds no rows", where=store.uri_of(path))
    return pl.DataFrame(rows, schema=pl.Schema(SENTENCES), orient="row")


@training_set("file", labels=None)
def _own_files(training: TrainingSet, *, labels: Sequence[str] = LABELS) -> Splits:
    """Read train, validation and perhaps test of a folder; of one file, `train` alone."""
    data = needed(training.data, where=f"training set {training.name}")
    if data.endswith(_TABLES):
        store, name = split_uri(data)
        return own_splits(training, {"train": (data, read_frame(store, name))}, labels)
    store, found_splits = Store(data), dict[str, tuple[str, pl.DataFrame]]()
    for split in ("train", "validation", "test"):
        found = [f"{split}{end}" for end in _TABLES if store.exists(split + end)]
        if len(found) > 1:
            raise DataError(f"holds {' and '.join(found)}", where=store.uri, cure="keep one")
        if found:
            found_splits[split] = store.uri_of(found[0]), read_frame(store, found[0])
        elif split != "test":
            raise DataError(
                f"no {split}.csv or {split}.parquet",
                where=store.uri,
                cure="a folder needs train and validation; test is optional; one file"
                " (.csv, .tsv, .parquet) is a pool of demonstrations",
            )
    return own_splits(training, found_splits, labels)


def own_splits(
    training: TrainingSet, found: Mapping[str, tuple[str, pl.DataFrame]], labels: Sequence[str]
) -> Splits:
    """Take the text and label columns of each split (schema.SENTENCES), with the study's labels.

    found: by split, the place and the table; what numbers mean is decided over all of them.
    """
    name, codes = training.label_column, training.labels
    columns = (Column(training.text_column), Column(name, labels=True))
    if codes is None:
        texts = [_labels_of(frame, training, where=where) for where, frame in found.values()]
        where = " and ".join(where for where, _ in found.values())
        codes = label_codes(pl.concat(texts), where=where, labels=labels)
    splits: Splits = {}
    for split, (where, frame) in found.items():
        splits[split] = checked(frame, columns, where=where, labels=labels, codes=codes)
        splits[split].columns = SENTENCES.names
    return splits


def _labels_of(frame: pl.DataFrame, training: TrainingSet, *, where: str) -> pl.Series:
    """Return the column of labels as text, whatever the capitals of its name."""
    names = [training.text_column, training.label_column]
    frame = frame.rename(match_columns(frame.columns, names, where))
    return as_text(column(frame, training.label_column, where=where), where=where)


@training_set("hub", labels=None)
def _hub(training: TrainingSet, *, labels: Sequence[str] = LABELS) -> Splits:
    """Read what `datasets.load_dataset` finds; code in its repository is never run."""
    data = needed(training.data, where=f"training set {training.name}")
    loaded = load_splits(data, ("train", "validation"), revision=training.revision)
    where = f"data set {data}"
    found = {
        split: (f"{where} ({split})", _hub_frame(training, loaded[split]))
        for split in ("train", "validation", "test")
        if split in loaded
    }
    return own_splits(training, found, labels)


def load_splits(
    name: str, splits: Sequence[str], *, config: str | None = None, revision: str | None = None
) -> Any:
    """Load a data set of the hub or a folder; `DataError` where that fails or a split lacks."""
    import datasets

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    where = f"data set {name}"
    try:
        loaded = datasets.load_dataset(name, config, revision=revision)
    # Loading touches the network, the disk and foreign files: whatever it says goes into one line.
    except Exception as error:
        cure = "check the id, its configuration and revision, and the network"
        raise DataError(f"cannot load ({said_by(error)})", where=where, cure=cure) from error
    for split in splits:
        if split not in loaded:
            raise DataError(f"no split {split!r}", where=where, cure=f"it has {', '.join(loaded)}")
    return loaded


def _hub_frame(training: TrainingSet, split: Any) -> pl.DataFrame:
    """Replace class numbers by names, since a two-class set numbers positive 1, our neutral."""
    frame = pl.DataFrame(split.with_format("arrow")[:])
    names = getattr(split.features.get(training.label_column), "names", None)
    numbers = {str(number) for number in range(len(names or ()))}
    if not names or (training.labels and numbers.issuperset(training.labels)):
        return frame
    return frame.with_columns(
        pl.col(training.label_column).replace_strict(
            dict(enumerate(names)), default=None, return_dtype=pl.String
        )
    )
