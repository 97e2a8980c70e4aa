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

    from raybias.config import Profile
    from raybias.results import Results


def measure(
    given: Paths | pl.DataFrame,
    *,
    kind: str | None = None,
    items: str | Path | None = None,
    profile: Profile | None = None,
    out: str | Path | None = None,
    command: str = "",
) -> pl.DataFrame:
    """Estimate every score of answers, with intervals (`schema.ESTIMATES`).

    Parameters
    ----------
    given: a study's output; Parquet or CSV files of answers, whose columns tell their kind; files
        that others published (BBQ's `preds_*.jsonl`, StereoSet's predictions, logs of lm-eval,
        inspect and HELM); folders of these; or a table of answers.
    kind: measures no other: pairs, coreference, options, triples, decisions or sentences.
    items: what published answers are to: StereoSet's dev.json; BBQ's additional_metadata.csv,
        which says which option the stereotype is about (by default the one whose `answer_info`
        names a stereotyped group); or BBQ's questions, a file or folder, which HELM's files need.
    profile: strict takes paired tests and a correction for many, paper neither; by default that of
        the study whose output is given, else strict.
    out: folder or URI for estimates.csv, estimates.parquet, figures and report.html.
    command: that this is, for the page.

    Raises
    ------
    DataError: a file is missing or malformed, an answer is given twice, or what it is to cannot
        be told.
    ConfigError: no such kind.
    OutputError: `out` holds a study, or cannot be written.
    """
    import polars as pl

    from raybias.config import QuestionProbe
    from raybias.measures import measure_all, read
    from raybias.probes.questions.own import question_items
    from raybias.report.page import write_estimate_page
    from raybias.report.study_estimates import rules_of_files

    tables: list[pl.DataFrame] = []
    paths: list[str] = []
    if isinstance(given, pl.DataFrame):
        tables = [given]
    else:
        paths = [str(each) for each in listed(given)]
    asked: pl.DataFrame | str | None = None if items is None else str(items)
    if isinstance(asked, str) and not asked.endswith((".csv", ".json", ".json.gz")):
        asked = question_items(QuestionProbe(source="bbq", data=asked))
    answers = read(tables or paths, kind, asked)
    rules = rules_of_files(paths, profile)
    found = measure_all(answers, rules)
    if out is not None:
        write_estimate_page(Store(out), found, paths, rules, command=command)
    return found


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
