"""Training sets: SST-5, SemEval-2018 valence, a user's own files, and the hub.

The published sets get the papers' three-way maps (Tian2023 section 3; spec of both
papers); sentence-level labels only. It does not know who trains on them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

import polars as pl

from raybias.config import TrainingSet
from raybias.errors import DataError
from raybias.probes.column_checks import column, filled, label_numbers
from raybias.probes.readers import list_files, polars_schema, read_frame, read_lines
from raybias.schema import SENTENCES, Label
from raybias.storage import Store, split_uri

Splits = dict[str, pl.DataFrame]

#: The tables that a user's own sentences may lie in.
_TABLES: Final = (".csv", ".tsv", ".parquet")

#: Our split names, and how SST-5 names its files.
SST_SPLITS: Final = {"train": "train", "validation": "dev", "test": "test"}
SST_LABELS: Final = (
    *(Label.NEGATIVE, Label.NEGATIVE),
    Label.NEUTRAL,
    *(Label.POSITIVE, Label.POSITIVE),
)

SEMEVAL_FILES: Final = {
    "train": "2018-Valence-oc-En-train.txt",
    "validation": "2018-Valence-oc-En-dev.txt",
    "test": "2018-Valence-oc-En-test-gold.txt",
}
SEMEVAL_HEADER: Final = ("ID", "Tweet", "Affect Dimension", "Intensity Class")
#: {-3, -2} negative, {-1, 0, 1} neutral, {2, 3} positive: the papers' map, wider in
#: the middle than the sign of the class.
SEMEVAL_LABELS: Final = {
    **dict.fromkeys((-3, -2), Label.NEGATIVE),
    **dict.fromkeys((-1, 0, 1), Label.NEUTRAL),
    **dict.fromkeys((2, 3), Label.POSITIVE),
}

_LEAF: Final = re.compile(r"\([0-4] ([^()]+)\)")
#: What Penn Treebank trees write for characters of their own notation, the blank in "2 1/2" too.
_ESCAPES: Final = (("-LRB-", "("), ("-RRB-", ")"), ("\\/", "/"), ("\\*", "*"), ("\xa0", " "))


def sst5(store: Store) -> Splits:
    """SST-5 from its tabular files, or from its trees where those are not there.

    Both give the same sentences and labels, in the same order.

    Raises
    ------
    DataError: neither form is in the folder, or a line cannot be read.
    """
    forms: tuple[tuple[str, Callable[[str], tuple[str, int] | None]], ...] = (
        ("sst_{}.txt", _tabular),
        ("trees/{}.txt", _tree),
    )
    for pattern, parse in forms:
        if store.exists(pattern.format("train")):
            return {
                split: _sentences(store, pattern.format(name), parse)
                for split, name in SST_SPLITS.items()
            }
    raise DataError(
        "holds neither sst_train.txt nor trees/train.txt",
        where=store.uri,
        cure="get them with `raybias data download sst5`",
    )


def semeval2018(store: Store) -> Splits:
    """SemEval-2018 Task 1 V-oc, English; the test file may be missing.

    Files may lie in folders of their own, as the published archives unpack.

    Raises
    ------
    DataError: no train or development file, another header, or a class outside -3..3.
    """
    there = {path.rpartition("/")[2]: path for path in list_files(store)}
    splits: Splits = {}
    for split, name in SEMEVAL_FILES.items():
        if name in there:
            splits[split] = _semeval_file(store, there[name])
        elif split != "test":
            raise DataError(
                f"no file {name}",
                where=store.uri,
                cure="see `raybias data list` for where it is published",
            )
    return splits


def own_files(training: TrainingSet, data: str) -> Splits:
    """A folder with train, validation and (where it is there) test, or one file.

    One file is a pool that demonstrations are drawn from: it gives `train` alone.
    """
    if data.endswith(_TABLES):
        store, name = split_uri(data)
        return {"train": _checked(training, read_frame(store, name), where=data)}
    store = Store(data)
    splits: Splits = {}
    for split in SST_SPLITS:
        found = [f"{split}{end}" for end in _TABLES if store.exists(split + end)]
        if len(found) > 1:
            raise DataError(f"holds {' and '.join(found)}", where=store.uri, cure="keep one")
        if found:
            frame = read_frame(store, found[0])
            splits[split] = _checked(training, frame, where=store.uri_of(found[0]))
        elif split != "test":
            raise DataError(
                f"no {split}.csv or {split}.parquet",
                where=store.uri,
                cure="a folder needs train and validation; test is optional; one file"
                " (.csv, .tsv, .parquet) is a pool of demonstrations",
            )
    return splits


def hub(training: TrainingSet) -> Splits:
    """A data set that `datasets.load_dataset` reads; code in its repository is never run.

    Raises
    ------
    DataError: it cannot be loaded, or lacks a split, column or known labels.
    """
    import datasets

    if not sys.stderr.isatty():
        datasets.disable_progress_bars()
    where = f"data set {training.data}"
    try:
        loaded: Any = datasets.load_dataset(training.data, revision=training.revision)
    # Loading touches the network, the disk and foreign files: whatever it says goes into one line.
    except Exception as error:
        raise DataError(
            f"cannot load ({error})", where=where, cure="check the id, revision and network"
        ) from error
    for split in ("train", "validation"):
        if split not in loaded:
            raise DataError(f"no split {split!r}", where=where, cure=f"it has {', '.join(loaded)}")
    return {
        split: _checked(training, _hub_frame(training, loaded[split]), where=f"{where} ({split})")
        for split in SST_SPLITS
        if split in loaded
    }


def _hub_frame(training: TrainingSet, split: Any) -> pl.DataFrame:
    """The split with class numbers written as names, unless the user's map speaks of numbers.

    A two-class set numbers positive 1: taken for the papers' numbers it would be neutral.
    """
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


def _checked(training: TrainingSet, frame: pl.DataFrame, *, where: str) -> pl.DataFrame:
    if frame.is_empty():
        raise DataError("holds no rows", where=where)
    text = column(frame, training.text_column, where=where)
    labels = column(frame, training.label_column, where=where)
    return pl.DataFrame(
        {
            "text": filled(text, where=where),
            "label": label_numbers(labels, where=where, labels=training.labels),
        }
    )


def _tabular(line: str) -> tuple[str, int] | None:
    label, _, text = line.partition("\t")
    stars = label.removeprefix("__label__")
    return (text, SST_LABELS[int(stars) - 1]) if stars in tuple("12345") and text else None


def _tree(line: str) -> tuple[str, int] | None:
    words = _LEAF.findall(line)
    if not words or line[1] not in "01234":
        return None
    text = " ".join(words)
    for escape, character in _ESCAPES:
        text = text.replace(escape, character)
    return text, SST_LABELS[int(line[1])]


def _semeval_file(store: Store, path: str) -> pl.DataFrame:
    header = tuple(read_lines(store, path)[0].split("\t"))
    if header != SEMEVAL_HEADER:
        raise DataError(
            f"the header is {', '.join(header)!r}",
            where=store.uri_of(path),
            cure=f"it should be {', '.join(SEMEVAL_HEADER)}, separated by tabs",
        )
    return _sentences(store, path, _tweet, header=1)


def _tweet(line: str) -> tuple[str, int] | None:
    fields = line.split("\t")
    if len(fields) != len(SEMEVAL_HEADER):
        return None
    number = re.match(r"\s*([+-]?[0-3])\s*(:|$)", fields[3])
    return (fields[1], SEMEVAL_LABELS[int(number[1])]) if number else None


def _sentences(
    store: Store, path: str, parse: Callable[[str], tuple[str, int] | None], *, header: int = 0
) -> pl.DataFrame:
    lines: Iterable[str] = read_lines(store, path)[header:]
    rows: list[tuple[str, int]] = []
    for number, line in enumerate(lines, start=1):
        parsed = parse(line)
        if parsed is None or not parsed[0].strip():
            raise DataError(
                f"cannot read a label and a sentence from {line[:60]!r}",
                where=f"{store.uri_of(path)} row {number}",
            )
        rows.append(parsed)
    if not rows:
        raise DataError("holds no rows", where=store.uri_of(path))
    return pl.DataFrame(rows, schema=polars_schema(SENTENCES), orient="row")
