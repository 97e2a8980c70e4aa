"""Questions with options, triples and decisions for people: tables of OUT's answers, and the page.

The numbers are those of `raybias options`, `raybias triples` and `raybias decisions`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import polars as pl

from raybias.config import Study
from raybias.errors import DataError
from raybias.methods.likelihood import OptionLikelihood
from raybias.report import score_tables, wording
from raybias.report.rules import out_of
from raybias.report.summary_tables import SummaryTable
from raybias.report.tables import write_frame
from raybias.stats.conclusive import HELD, held
from raybias.stats.decisions import decision_measures, read_decision_answers
from raybias.stats.options import option_measures, read_option_answers
from raybias.stats.reference_groups import StatisticsWarning
from raybias.stats.sentences import read_sentence_scores, sentence_measures
from raybias.stats.triples import read_triple_scores, triple_measures
from raybias.storage import Store
from raybias.study_record import read_record

#: Options differ in length where the longest has more than this times the characters of another.
_UNEVEN: Final = 1.5


@dataclass(frozen=True)
class _Kind:
    """A folder of OUT with answers, and what becomes of them."""

    read: Callable[[list[str]], pl.DataFrame]
    measures: Callable[..., pl.DataFrame]
    shown: Callable[[pl.DataFrame], SummaryTable]
    cover: str
    definitions: Callable[[], list[str]]


_KINDS: Final[Mapping[str, _Kind]] = {
    "options": _Kind(
        read_option_answers,
        option_measures,
        score_tables.options_table,
        score_tables.OPTIONS_COVER,
        score_tables.option_definitions,
    ),
    "triples": _Kind(
        read_triple_scores,
        triple_measures,
        score_tables.triples_table,
        score_tables.TRIPLES_COVER,
        score_tables.triple_definitions,
    ),
    "decisions": _Kind(
        read_decision_answers,
        decision_measures,
        score_tables.decisions_table,
        score_tables.DECISIONS_COVER,
        list,
    ),
    "sentences": _Kind(
        read_sentence_scores,
        sentence_measures,
        score_tables.sentences_table,
        score_tables.SENTENCES_COVER,
        list,
    ),
}


def question_tables(store: Store, study: Study) -> tuple[dict[str, pl.DataFrame], list[str]]:
    """Compute the tables of an OUT's answers to questions, by name; nothing is written.

    Returns
    -------
    `options`, `triples`, `decisions` and `sentences` as far as they were asked, and what a reader
    must know before relying on them.

    Raises
    ------
    DataError: there are none, or they are malformed.
    """
    tables, cautions = {}, []
    for name, kind in _KINDS.items():
        if not store.exists(name):
            continue
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", StatisticsWarning)
            answers = kind.read([store.uri_of(name)])
        cautions += list(dict.fromkeys(str(each.message) for each in caught))
        cautions += _unread(store, study, name, answers)
        letters = {"letters": letter_methods(study)} if name == "options" else {}
        tables[name] = kind.measures(answers, level=study.statistics.level, **letters)
        if name == "options":
            cautions += _about_options(store, study, answers)
    if not tables:
        raise DataError(
            "holds no answers to questions",
            where=store.uri,
            cure="finish the study with `raybias run`",
        )
    return tables, cautions


def write_questions(store: Store, tables: Mapping[str, pl.DataFrame]) -> list[dict[str, Any]]:
    """Write each table to OUT/tables; return what report.html.j2 shows of each."""
    parts = []
    for name, frame in tables.items():
        write_frame(store, f"tables/{name}", frame)
        kind = _KINDS[name]
        parts.append(
            {
                "unable": score_tables.refusals(frame),
                "table": kind.shown(frame),
                "cover": kind.cover,
                "definitions": kind.definitions(),
            }
        )
    return parts


def questions_text(tables: Mapping[str, pl.DataFrame]) -> Iterator[str]:
    """Yield each table as plain text, and what its intervals cover."""
    for name, frame in tables.items():
        parts = (*score_tables.refusals(frame), str(_KINDS[name].shown(frame)), _KINDS[name].cover)
        yield "\n\n".join(parts)


def read_question_tables(store: Store) -> dict[str, pl.DataFrame]:
    """Read the tables that `write_questions` wrote, by name."""
    there = {name: f"tables/{name}.parquet" for name in _KINDS}
    return {
        name: pl.DataFrame(store.read_table(file))
        for name, file in there.items()
        if store.exists(file)
    }


def letter_methods(study: Study) -> list[str]:
    """Name the methods that compare the likelihoods of letters."""
    return [m.name for m in study.methods if isinstance(m, OptionLikelihood) and m.letters]


def letters_of_files(paths: Sequence[str | Path]) -> list[str]:
    """Name those of the studies that files lie in."""
    outs = {out for path in paths if (out := out_of(path, "options"))}
    return [name for out in outs for name in letter_methods(read_record(Store(out)).study)]


def _about_options(store: Store, study: Study, answers: pl.DataFrame) -> Iterator[str]:
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


def _unread(store: Store, study: Study, folder: str, answers: pl.DataFrame) -> Iterator[str]:
    """Report the questions that a model was not asked yet."""
    outputs = {m.name: m.output() for m in study.methods if m.output().folder == folder}
    keys = [name for name in ("model", "probe", "method") if name in answers.columns]
    counts = answers.group_by(keys, maintain_order=True).len()
    for model, probe, *method, count in counts.iter_rows():
        file = f"items/{probe}.parquet"
        if not store.exists(file):
            continue
        # An OUT of an earlier version names none.
        output = outputs.get("".join(method), next(iter(outputs.values())))
        asked = store.read_table(file).num_rows * output.per_item
        if count < asked:
            yield (
                f"{model} lacks {wording.counted(asked - count, 'answer')} to {probe}: the study "
                "is not finished."
            )
