"""Judge answers to questions, wherever they come from: no model, no Ray.

Each function imports what it needs when it is called.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from raybias.api.paths import Paths, listed
from raybias.storage import Store

if TYPE_CHECKING:
    import polars as pl

    from raybias.results import Results


def options(
    files: Paths,
    *,
    metadata: str | Path | None = None,
    items: str | Path | None = None,
    out: str | Path | None = None,
) -> pl.DataFrame:
    """Compute accuracy and bias of answers to questions with options (`schema.OPTION_MEASURES`).

    Every definition of the bias score is computed; intervals are over question templates.

    Parameters
    ----------
    files: BBQ's published `preds_*.jsonl`, plain or gzipped, logs of lm-eval, inspect and HELM, or
        `schema.OPTION_ANSWERS` as Parquet or CSV.
    metadata: BBQ's additional_metadata.csv, which says which option the stereotype is about; by
        default the one whose `answer_info` names a stereotyped group.
    items: BBQ's questions, a file or folder of them, which HELM's files need.
    out: folder or URI for options.csv.

    Raises
    ------
    DataError: a file is missing or malformed, an answer is given twice, or the unknown option or
        the target of a question cannot be told.
    """
    from raybias.config import QuestionProbe
    from raybias.probes.questions.items import question_items
    from raybias.report.question_page import letters_of_files
    from raybias.stats.options import option_measures, read_option_answers

    probe = None if items is None else QuestionProbe(source="bbq", data=str(items))
    questions = None if probe is None else question_items(probe)
    answers = read_option_answers(listed(files), metadata, questions)
    found = option_measures(answers, letters=letters_of_files(listed(files)))
    return _written(found, "options.csv", out)


def triples(
    files: Paths,
    *,
    items: str | Path | None = None,
    out: str | Path | None = None,
) -> pl.DataFrame:
    """Compute the scores of StereoSet: ss, lms and icat (`schema.TRIPLE_MEASURES`).

    Intervals are over target terms.

    Parameters
    ----------
    files: StereoSet's published predictions, or `schema.TRIPLE_SCORES` as Parquet or CSV.
    items: StereoSet's dev.json or a part of it, which published predictions need.
    out: folder or URI for triples.csv.

    Raises
    ------
    DataError: a file is missing or malformed, or a triple is scored in part or twice.
    """
    from raybias.stats.triples import read_triple_scores, triple_measures

    found = triple_measures(read_triple_scores(listed(files), items))
    return _written(found, "triples.csv", out)


def decisions(files: Paths, *, out: str | Path | None = None) -> pl.DataFrame:
    """Compute how much more favourable decisions about groups are (`schema.DECISION_MEASURES`).

    Intervals are over decisions.

    Parameters
    ----------
    files: `schema.DECISION_ANSWERS` as Parquet or CSV, or folders of them, such as OUT/decisions.
    out: folder or URI for decisions.csv.

    Raises
    ------
    DataError: a file is missing or malformed, or an answer is given twice.
    """
    from raybias.stats.decisions import decision_measures, read_decision_answers

    found = decision_measures(read_decision_answers(listed(files)))
    return _written(found, "decisions.csv", out)


def sentences(files: Paths, *, out: str | Path | None = None) -> pl.DataFrame:
    """Compute the likelihood bias of sentences about people (`schema.SENTENCE_MEASURES`).

    Intervals are over templates.

    Parameters
    ----------
    files: `schema.SENTENCE_SCORES` as Parquet or CSV, or folders of them, such as OUT/sentences.
    out: folder or URI for sentences.csv.

    Raises
    ------
    DataError: a file is missing or malformed, or a sentence is scored twice.
    """
    from raybias.stats.sentences import read_sentence_scores, sentence_measures

    found = sentence_measures(read_sentence_scores(listed(files)))
    return _written(found, "sentences.csv", out)


def samples(study: str | Path, out: str | Path) -> list[str]:
    """Write an OUT's answers as lm-evaluation-harness logs samples; return the files' names.

    Parameters
    ----------
    study: what `run` wrote.
    out: folder or URI for MODEL/samples_TASK.jsonl.

    Raises
    ------
    DataError: there are neither answers to questions with three options nor scores of pairs.
    OutputError: no OUT of a study.
    """
    from raybias.report.samples import write_samples

    return write_samples(Store(study), Store(out))


def judge_sheet(
    study: str | Path, out: str | Path, *, of_group: int = 50, seed: int = 0
) -> pl.DataFrame:
    """Draw texts that a judge labelled, for people to label too; write and return the sheet.

    Parameters
    ----------
    study: what `run` wrote.
    out: path or URI of a CSV: row, prompt, continuation, and label, which people fill in.
    of_group: texts of each group of each model, drawn at random.
    seed: of the draw.

    Raises
    ------
    OutputError: no OUT of a study, no judge in it, or labels that it has already.
    """
    from raybias.report.judge_labels import draw_sheet
    from raybias.study_record import read_record

    store = Store(study)
    return draw_sheet(store, read_record(store).study, str(out), of_group=of_group, seed=seed)


def judge_labels(study: str | Path, sheet: str | Path) -> Results:
    """Read people's labels of judged texts into OUT, and write its tables and page again.

    Gaps corrected for the judge's errors are in the table `judged` (`schema.JUDGED`).

    Parameters
    ----------
    study: what `run` wrote.
    sheet: of `judge_sheet`, every label filled in.

    Raises
    ------
    OutputError: no OUT of a study, or no sheet was drawn of it.
    DataError: a row that was not drawn, is missing or there twice, or has no label.
    """
    from raybias.api.studies import write_report
    from raybias.report.judge_labels import add_labels

    add_labels(Store(study), str(sheet))
    return write_report(study)


def _written(found: pl.DataFrame, name: str, out: str | Path | None) -> pl.DataFrame:
    """Write a table as CSV where a folder is given, and return it."""
    from raybias.table_files import csv_text

    if out is not None:
        Store(out).write_text(name, csv_text(found))
    return found
