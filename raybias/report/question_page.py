"""Questions with options, triples and decisions for people: tables of OUT's answers, and the page.

The numbers are those of `raybias options`, `raybias triples` and `raybias decisions`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from raybias.config import Study
from raybias.errors import DataError
from raybias.report import score_tables, wording
from raybias.report.summary_tables import SummaryTable
from raybias.report.tables import write_frame
from raybias.stats.decisions import decision_measures, read_decision_answers
from raybias.stats.options import option_measures, read_option_answers
from raybias.stats.reference_groups import StatisticsWarning
from raybias.stats.sentences import read_sentence_scores, sentence_measures
from raybias.stats.triples import read_triple_scores, triple_measures
from raybias.storage import Store


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
        tables[name] = kind.measures(answers, level=study.statistics.level)
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
            {"table": kind.shown(frame), "cover": kind.cover, "definitions": kind.definitions()}
        )
    return parts


def questions_text(tables: Mapping[str, pl.DataFrame]) -> Iterator[str]:
    """Yield each table as plain text, and what its intervals cover."""
    for name, frame in tables.items():
        yield f"{_KINDS[name].shown(frame)}\n\n{_KINDS[name].cover}"


def read_question_tables(store: Store) -> dict[str, pl.DataFrame]:
    """Read the tables that `write_questions` wrote, by name."""
    there = {name: f"tables/{name}.parquet" for name in _KINDS}
    return {
        name: pl.DataFrame(store.read_table(file))
        for name, file in there.items()
        if store.exists(file)
    }


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
