"""Estimate what a study's answers show, and what to know before relying on it."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import Final

import polars as pl

from raybias.config import Profile, Statistics, Study
from raybias.errors import DataError
from raybias.measures import Kind, Rules, kinds, measure_all, read
from raybias.methods.options import OptionLikelihood
from raybias.report import wording
from raybias.report.from_files import out_of
from raybias.report.load_results import restated
from raybias.stats.conclusive import HELD, held
from raybias.stats.reference_groups import StatisticsWarning
from raybias.storage import Store
from raybias.study_record import Record, read_record

#: Options differ in length where the longest has more than this times the characters of another.
_UNEVEN: Final = 1.5


def study_estimates(store: Store, study: Study, record: Record) -> tuple[pl.DataFrame, list[str]]:
    """Estimate every score of an OUT's answers; nothing is written.

    Parameters
    ----------
    study: as it is to be judged.
    record: of the OUT, with the sizes of its models.

    Returns
    -------
    schema.ESTIMATES, and what a reader must know before relying on them.

    Raises
    ------
    DataError: there are none, or they are malformed.
    """
    if not any(store.exists(each.folder) for each in kinds.values()):
        what = " or ".join(
            n
            for n, there in (
                ("scores of pairs", study.pairs),
                ("answers to questions", study.questions),
            )
            if there
        )
        raise DataError(
            f"holds no {what}", where=store.uri, cure="finish the study with `raybias run`"
        )
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", StatisticsWarning)
        answers = read([store.uri])
    cautions = list(dict.fromkeys(str(each.message) for each in caught))
    rules = rules_of_study(study, record)
    for name, frame in answers.items():
        cautions += _unfinished(store, study, kinds[name], frame)
        if "turned" in frame.columns:
            cautions += _turned(frame, record)
        if "scores" in frame.columns:
            cautions += _about_likelihoods(store, study, frame)
    return measure_all(answers, rules), cautions


def rules_of_study(study: Study, record: Record) -> Rules:
    """Return the rules by which a study's estimates are judged."""
    statistics = study.statistics
    return Rules(
        level=statistics.level,
        strict=study.profile == "strict",
        adjust=statistics.adjust,
        draws=statistics.bootstrap_draws,
        seed=statistics.bootstrap_seed,
        sizes=record.parameters,
        letters=frozenset(letter_methods(study)),
    )


def letter_methods(study: Study) -> list[str]:
    """Name the methods that compare the likelihoods of letters."""
    return [m.name for m in study.methods if isinstance(m, OptionLikelihood) and m.letters]


def rules_of_answers(paths: Iterable[str], profile: Profile | None = None) -> Rules:
    """Return the rules of the study that files lie in, or of a profile where there is none.

    Parameters
    ----------
    profile: states the rules anew; strict where no study decides.
    """
    outs = {out for path in paths for each in kinds.values() if (out := out_of(path, each.folder))}
    records = [read_record(Store(out)) for out in sorted(outs)]
    if len(records) == 1:
        (record,) = records
        return rules_of_study(restated(record.study, profile or record.study.profile), record)
    letters = frozenset(name for each in records for name in letter_methods(each.study))
    statistics = Statistics.under(profile or "strict")
    return Rules(statistics.level, profile != "paper", statistics.adjust, letters=letters)


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


def _turned(scores: pl.DataFrame, record: Record) -> Iterator[str]:
    """Report how many preferences turn with the other token that could begin sentences."""
    known = scores.filter(pl.col("turned").is_not_null())
    counts = known.group_by("model", "score", "probe", maintain_order=True).agg(
        pl.len(), pl.col("turned").sum()
    )
    for model, score, probe, n, turned in counts.iter_rows():
        first, other = record.begin_tokens.get(model, ("a token", "another"))
        verb = "turns" if turned == 1 else "turn"
        yield (
            f"{model}: {turned:,} of {wording.counted(n, 'preference')} of {probe} by {score} "
            f"{verb} where sentences begin with {other} instead of {first}, which was used here."
        )


def _unfinished(store: Store, study: Study, kind: Kind, answers: pl.DataFrame) -> Iterator[str]:
    """Report the items that a model was not asked yet, and pairs that a style left as they were."""
    outputs = {m.name: m.output() for m in study.methods if m.output().folder == kind.folder}
    keys = [name for name in ("model", "method", "score") if name in answers.columns]
    for (probe,), part in answers.group_by("probe", maintain_order=True):
        file = f"items/{probe}.parquet"
        if not store.exists(file):
            continue
        items = pl.DataFrame(store.read_table(file))
        if "kept" in items.columns:
            kept = items.filter(pl.col("kept").fill_null(value=False))
            for style, n in kept.group_by("style", maintain_order=True).len().iter_rows():
                yield (
                    f"{style} left {wording.counted(n, 'pair')} of {probe} as they were, for want "
                    "of an adequate rewording; they hold its effect down."
                )
        for names, own in part.group_by(keys, maintain_order=True):
            # Where a kind has no column of methods, one method made its answers.
            output = outputs.get("".join(map(str, names[1:])), next(iter(outputs.values())))
            missing = items.height * output.per_item - own.height
            if missing > 0:
                yield (
                    f"{' by '.join(filter(None, map(str, names)))} lacks "
                    f"{wording.counted(missing, 'answer')} to {probe}: the study is not finished."
                )
