"""Judge predictions and answers, wherever they come from: no model, no Ray.

Each function imports what it needs when it is called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from raybias.api.paths import Given, given_tables
from raybias.config import Interval, Profile, Scope
from raybias.storage import Store

if TYPE_CHECKING:
    import polars as pl

    from raybias.results import Results


def measure(
    given: Given,
    *,
    kind: str | None = None,
    items: str | Path | None = None,
    metric: Sequence[str] = (),
    profile: Profile | None = None,
    scope: Scope | None = None,
    interval: Interval | None = None,
    margin: float | None = None,
    by: Sequence[str] = (),
    label_column: str = "label",
    pred_column: str = "pred",
    positive: int | str | None = None,
    reference_groups: Mapping[str, Sequence[str]] | None = None,
    background: str = "",
    out: str | Path | None = None,
    command: str = "",
) -> pl.DataFrame:
    """Estimate every score of predictions and answers, with intervals (`schema.ESTIMATES`).

    Parameters
    ----------
    given: a study's output; Parquet or CSV files of predictions or answers, whose columns tell
        their kind; Kohankhaki2024's TSV; files that others published (BBQ's `preds_*.jsonl`,
        StereoSet's predictions, logs of lm-eval, inspect and HELM); folders of these; or a table
        in memory: a frame of Polars or pandas, or arrays by name.
    kind: measures no other: predictions, pairs, coreference, options, triples, decisions or
        sentences.
    items: what published answers are to: StereoSet's dev.json; BBQ's additional_metadata.csv,
        which says which option the stereotype is about (by default the one whose `answer_info`
        names a stereotyped group); or BBQ's questions, a file or folder, which HELM's files need.
    profile: strict takes paired tests and a correction for many, paper neither; by default that of
        the study whose output is given, else strict.
    out: folder or URI for estimates.csv, estimates.parquet, figures and report.html.
    command: that this is, for the page.

    The others are of predictions alone.

    metric: names of metrics (`raybias measure --list`), or `all` that the files allow; by default
        those of the study, else the two false positive rates, or of two classes the rates
        `selection_rate`, `tpr` and `fpr`.
    scope, interval, margin: replace the study's or profile's (see `Statistics`).
    by: columns of groups, each an attribute; several are also crossed. By default `group`.
    label_column, pred_column: where tables of others have the labels and the predictions.
    positive: the class that metrics of one class are about, a number or a word; by default the
        last.
    reference_groups: by attribute, the groups whose mean a gap is taken from; by default the
        study's, else the papers'.
    background: what groups are compared with instead: `mean_of_groups`, `pooled`, `pooled_others`
        or `reference:GROUP`.

    Raises
    ------
    DataError: a file is missing or malformed, an answer is given twice, or what it is to cannot
        be told; or a metric of scores or source examples where there are none.
    ConfigError: no such kind, metric, class, background or group, or studies that are judged
        differently.
    OutputError: `out` holds a study, or cannot be written.
    """
    import polars as pl

    from raybias.config import QuestionProbe
    from raybias.measures import measure_all, read
    from raybias.measures.reading import parted
    from raybias.probes import question_items
    from raybias.report.files import measure_files, rules_of_answers
    from raybias.report.page import write_estimate_page
    from raybias.stats.plain_predictions import Columns

    columns = None
    if by or isinstance(positive, str) or (label_column, pred_column) != ("label", "pred"):
        word = positive if isinstance(positive, str) else ""
        columns = Columns(label_column, pred_column, tuple(by), word)
    tables = given_tables(given)
    predicted, others = parted(tables, kind, named=columns is not None or bool(metric))
    paths = [str(each) for each in tables if not isinstance(each, pl.DataFrame)]
    found = []
    level, strict = 0.95, profile != "paper"
    if predicted:
        measured, statistics = measure_files(
            predicted,
            columns=columns,
            metrics=metric,
            positive=positive if isinstance(positive, int) else None,
            background=background,
            profile=profile,
            reference_groups=reference_groups,
            options={"scope": scope, "interval": interval, "margin": margin},
        )
        found.append(measured)
        level, strict = statistics.level, statistics.adjust != "none"
    if others:
        asked: pl.DataFrame | str | None = None if items is None else str(items)
        if isinstance(asked, str) and not asked.endswith((".csv", ".json", ".json.gz")):
            asked = question_items(QuestionProbe(source="bbq", data=asked))
        rules = rules_of_answers(paths, profile)
        found.append(measure_all(read(others, kind, asked), rules))
        level, strict = rules.level, rules.strict
    estimates = pl.concat(found)
    if out is not None:
        write_estimate_page(
            Store(out), estimates, paths, level=level, strict=strict, scope=scope or "widest",
            command=command,
        )  # fmt: skip
    return estimates


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
    from raybias.report.export import write_samples

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
    from raybias.report.judges import draw_sheet
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
    from raybias.report.judges import add_labels

    add_labels(Store(study), str(sheet))
    return write_report(study)
