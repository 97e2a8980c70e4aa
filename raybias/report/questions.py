"""Estimate what a study's answers to questions show, and what to know before relying on it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import Final

import polars as pl

from raybias.config import Study
from raybias.errors import DataError
from raybias.measures import Rules, kinds, measure, read
from raybias.methods.likelihood import OptionLikelihood
from raybias.report import wording
from raybias.report.rules import out_of
from raybias.stats.conclusive import HELD, held
from raybias.stats.reference_groups import StatisticsWarning
from raybias.storage import Store
from raybias.study_record import read_record

#: Options differ in length where the longest has more than this times the characters of another.
_UNEVEN: Final = 1.5


def study_estimates(store: Store, study: Study) -> tuple[pl.DataFrame, list[str]]:
    """Estimate every score of an OUT's answers; nothing is written.

    Returns
    -------
    schema.ESTIMATES, and what a reader must know before relying on them.

    Raises
    ------
    DataError: there are none, or they are malformed.
    """
    if not any(store.exists(name) for name in kinds):
        raise DataError(
            "holds no answers to questions",
            where=store.uri,
            cure="finish the study with `raybias run`",
        )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", StatisticsWarning)
        answers = read([store.uri])
    cautions = list(dict.fromkeys(str(each.message) for each in caught))
    rules = Rules(study.statistics.level, frozenset(letter_methods(study)))
    for name, frame in answers.items():
        cautions += _unfinished(store, study, name, frame)
        if "scores" in frame.columns:
            cautions += _about_likelihoods(store, study, frame)
    found = pl.concat(measure(kinds[name], frame, rules) for name, frame in answers.items())
    return found, cautions


def letter_methods(study: Study) -> list[str]:
    """Name the methods that compare the likelihoods of letters."""
    return [m.name for m in study.methods if isinstance(m, OptionLikelihood) and m.letters]


def letters_of_files(paths: Iterable[str]) -> frozenset[str]:
    """Name those of the studies that files lie in."""
    outs = {out for path in paths for name in kinds if (out := out_of(path, name))}
    return frozenset(n for out in outs for n in letter_methods(read_record(Store(out)).study))


def _about_likelihoods(store: Store, study: Study, answers: pl.DataFrame) -> Iterator[str]:
    """Caution against likelihoods of words: how much they hold, and whether length decides."""
    words = [m for m in study.methods if isinstance(m, OptionLikelihood) and not m.letters]
    for method in words:
        for model, probe, part in _by_model(answers.filter(method=method.name)):
            share = held(part)
            if share is not None and share < HELD:
                yield (
                    f"{model}, {method.name} on {probe}: the options hold {share:.1%} of the "
                    "probability of what may follow; other words for the same answers hold more."
                )
            file = f"items/{probe}.parquet"
            if method.normalise != "none" or not store.exists(file):
                continue
            options = pl.DataFrame(store.read_table(file)).select("item_id", "options")
            both = part.join(options, on="item_id").with_columns(
                lengths=pl.col("options").list.eval(pl.element().str.len_chars())
            )
            lengths = pl.col("lengths").list
            uneven = both.filter(lengths.max() > _UNEVEN * lengths.min()).height
            other = both.filter(
                (pl.col("scores") / pl.col("lengths")).list.arg_max() != pl.col("pred")
            ).height
            if uneven > part.height / 2:
                yield (
                    f"{model}, {method.name} on {probe}: in {uneven / part.height:.0%} of the "
                    f"questions one option is more than {_UNEVEN:g} times as long as another, "
                    f"which makes it less likely; by likelihood per character (normalise: "
                    f"characters) {other / part.height:.0%} of the answers would be others."
                )


def _by_model(answers: pl.DataFrame) -> Iterator[tuple[str, str, pl.DataFrame]]:
    parts = answers.partition_by("model", "probe", as_dict=True, maintain_order=True)
    for (model, probe), part in parts.items():
        yield str(model), str(probe), part


def _unfinished(store: Store, study: Study, folder: str, answers: pl.DataFrame) -> Iterator[str]:
    """Report the questions that a model was not asked yet."""
    outputs = {m.name: m.output() for m in study.methods if m.output().folder == folder}
    keys = [name for name in ("model", "probe", "method") if name in answers.columns]
    counts = answers.group_by(keys, maintain_order=True).len()
    for model, probe, *method, count in counts.iter_rows():
        file = f"items/{probe}.parquet"
        if not store.exists(file):
            continue
        # Where a kind has no column of methods, one method made its answers.
        output = outputs.get("".join(method), next(iter(outputs.values())))
        asked = store.read_table(file).num_rows * output.per_item
        if count < asked:
            yield (
                f"{model} lacks {wording.counted(asked - count, 'answer')} to {probe}: the study "
                "is not finished."
            )
