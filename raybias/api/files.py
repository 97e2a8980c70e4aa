"""Judge files and items, wherever they come from: no model and no Ray."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import polars as pl

from raybias import seal
from raybias.api.given import Given, items_of, tables_of, warnings_of_caller
from raybias.config import Profile, Scope
from raybias.config.policy import Policy, load_policy
from raybias.config.study import Interval
from raybias.errors import ConfigError
from raybias.schema import LABELS
from raybias.storage import Draft, Store
from raybias.study_record import refuse_study, study_place

if TYPE_CHECKING:
    from raybias.measures.predictions_read import MeasuredPredictions
    from raybias.report.compare import Comparison
    from raybias.stats.foreign import Columns
    from raybias.stats.intervals import Rules

#: One file, folder or URI, or several.
Paths = str | Path | Iterable[str | Path]
#: A class by its number or word, or several that together are the class.
Class = int | float | str | Sequence[int | float | str]
#: What results can be written as for others.
Form = Literal["eee", "lm-eval", "latex"]


def measure(
    given: Given,
    *,
    kind: str | None = None,
    items: str | Path | None = None,
    metric: str | Sequence[str] = (),
    profile: Profile | None = None,
    scope: Scope | None = None,
    interval: Interval | None = None,
    margin: float | None = None,
    by: str | Sequence[str] = (),
    cut: Mapping[str, Sequence[float]] | None = None,
    cluster: str = "",
    label_column: str = "label",
    pred_column: str = "pred",
    positive: Class | Mapping[str, Class] | None = None,
    favourable: Class | None = None,
    threshold: float | None = None,
    reference_groups: Mapping[str, str | Sequence[str]] | None = None,
    background: str = "",
    out: str | Path | None = None,
    command: str = "",
    report_classes: Callable[[MeasuredPredictions], object] | None = None,
) -> pl.DataFrame:
    """Estimate every score of predictions and answers, with intervals (`schema.ESTIMATES`).

    Parameters
    ----------
    given: a study's output; Parquet or CSV files of predictions or answers, whose columns tell
        their kind; Kohankhaki2024's TSV; files that others published (BBQ's `preds_*.jsonl`,
        StereoSet's predictions, logs of lm-eval, inspect and HELM); folders of these; or a table
        in memory: a frame of Polars or pandas, or arrays by name.
    kind: measures no other: predictions, pairs, coreference, options, triples, decisions,
        sentences or associations.
    items: what published answers are to: StereoSet's dev.json; BBQ's additional_metadata.csv,
        which says which option the stereotype is about (by default the one whose `answer_info`
        names a stereotyped group); or BBQ's questions, a file or folder, which HELM's files need.
    profile: strict takes paired tests and a correction for many, paper neither; by default that of
        the study whose output is given, else strict.
    out: folder or URI for estimates.csv, estimates.parquet, figures and report.html. In CSV, text
        that a spreadsheet would take for a formula has an apostrophe before it.
    command: that this is, for the page.
    report_classes: called with what was read as the class in each column of predictions, such as
        `print`: its text is a sentence.

    The others are of predictions alone.

    metric: names of metrics (`raybias measure --list`), or `all` that the files allow; by default
        those of the study, else the two false positive rates of sentiment; of two classes the rates
        `selection_rate`, `tpr` and `fpr`; of more classes `tpr` and `fpr` of each class against the
        rest, `accuracy`, the root mean square and range of recall gaps over classes
        (`rms_tpr_gap`, `range_tpr_gap`), and what wrong answers are called (`error_share`). The
        column `condition` names the class.
    scope: what intervals cover, instead of the study's or profile's (see `Statistics`).
    interval: how they are made, instead of the study's or profile's: normal, t, or bootstrap (over
        runs and templates).
    margin: the largest gap that does not matter: those that are shown to be smaller are said to be
        equivalent, which takes 149 templates or more for 0.02 and 59 for 0.05.
    by: a column of groups, or several, each an attribute; several are also crossed. By default
        `group`. A column of more than 200 groups, or 20 numbers, is refused.
    cut: by column of numbers in `by`, the bounds between its groups: `{"age": [25, 45]}` makes
        three, and a bound is in the upper one.
    cluster: a column that says which rows belong together, such as those about one person.
        Intervals draw them anew together, in place of templates or single rows; without it rows
        count as independent where no templates are known.
    label_column: where tables of others have the labels.
    pred_column: where they have the predictions.
    positive: the class that metrics of one class are about: a number, a boolean or a word, or
        several that together are the class. Labels and predictions have words of their own:
        `["yes", 1]` is the class in either column, and `{"paid": "yes", "decided": 1}` by column.
        By default 1 of 0 and 1, else the larger of two numbers; two words are refused without it,
        and more than two are measured each.
    favourable: the prediction that is good for the person who gets it: a number, a boolean or a
        word, or several that together are the class, or all that is not of it. By default that of
        the study whose output is given, if it declares one. Without it nothing says who gains or
        loses by a gap.
    threshold: the number from which on a prediction, or a score if there are no predictions, is
        of the class; by default a score is from 0.5 on.
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
    from raybias.measures.kind import measure_all
    from raybias.measures.reading import parted, read
    from raybias.report.files import rules_of_files
    from raybias.report.page import write_estimate_page
    from raybias.stats.classes import positive_of
    from raybias.stats.foreign import Columns
    from raybias.stats.group_columns import check_cut

    columns = Columns(
        label_column,
        pred_column,
        by=_texts(by),
        cut={name: tuple(bounds) for name, bounds in (cut or {}).items()},
        cluster=cluster,
        positive=positive_of(positive, threshold, favourable),
    )
    check_cut(columns.cut, columns.by)
    tables = [
        each if isinstance(each, pl.DataFrame) else study_place(each) for each in tables_of(given)
    ]
    named = columns.are_named or columns.positive.is_named or bool(metric)
    predicted, others = parted(tables, kind, named=named)
    paths = [str(each) for each in tables if not isinstance(each, pl.DataFrame)]
    rules = rules_of_files(
        paths,
        profile=profile,
        reference_groups={name: _texts(g) for name, g in (reference_groups or {}).items()},
        options={"scope": scope, "interval": interval, "margin": margin},
    )
    strict = rules.strict if others else rules.adjust != "none"
    found: list[pl.DataFrame] = []
    measured: MeasuredPredictions | None = None
    with warnings_of_caller():
        if predicted:
            measured = _measure_predictions(predicted, columns, rules, _texts(metric), background)
            found.append(measured.estimates)
        if others:
            found.append(measure_all(read(others, kind, items_of(items)), rules))
    estimates = pl.concat(found)
    if measured is not None and report_classes is not None:
        report_classes(measured)
    if out is not None:
        with Draft(out) as store:
            write_estimate_page(
                store,
                estimates,
                paths,
                level=rules.level,
                strict=strict,
                scope=rules.scope,
                command=command,
                measured=measured,
            )
    return estimates


def _measure_predictions(
    predicted: Sequence[str | Path | pl.DataFrame],
    columns: Columns,
    rules: Rules,
    metrics: Sequence[str],
    background: str,
) -> MeasuredPredictions:
    """Estimate every score of predictions; a user, else a study, says what is favourable."""
    from raybias.measures.entries.predictions import Asked, measure_predictions
    from raybias.report.files import out_of
    from raybias.stats.checks import StatisticsWarning
    from raybias.stats.file_classes import classes_of, with_classes
    from raybias.stats.predictions import sources
    from raybias.stats.rated_class import rated_label

    paths = [str(each) for each in predicted if not isinstance(each, pl.DataFrame)]
    outs = [*dict.fromkeys(filter(None, map(out_of, paths)))]
    for changed in filter(None, (seal.changes(Store(study)) for study in outs)):
        warnings.warn(seal.in_words(changed), StatisticsWarning, stacklevel=2)
    positive = columns.positive
    if rules.favourable is not None and not positive.favourable:
        positive = replace(positive, favourable=(rules.favourable,))
    files = sources(predicted, replace(columns, positive=positive))
    classes = classes_of(files, positive)
    files = with_classes(files, classes.names)
    published = any(file.is_paper_tsv for file in files)
    # The class that a user names goes before that of the study.
    number = None if positive.is_named else rules.number_of_class
    rated, sentence = classes.rated, classes.sentence
    if number is not None:
        rated = rated_label(number, rules.labels, positive.favourable)
        sentence = f"Rates of one class are those of the label {rules.positive}."
    wanted = Asked(
        rules=rules,
        metrics=metrics,
        background=background,
        positive=number if number is not None else classes.positive,
        sentiment=classes.is_sentiment or published or (bool(outs) and rules.labels == LABELS),
        classes=classes.names if number is None else (),
        rated=rated,
        favourable=positive.favourable,
        sentence=sentence,
    )
    return measure_predictions(files, wanted)


def _texts(texts: str | Sequence[str]) -> tuple[str, ...]:
    """Return several texts; one is no sequence of its letters."""
    return (texts,) if isinstance(texts, str) else tuple(texts)


def compare(
    base: Paths,
    candidate: Paths,
    *,
    base_is: Mapping[str, str] | None = None,
    candidate_is: Mapping[str, str] | None = None,
    scope: Scope | None = None,
    margin: float | None = None,
    policy: str | Path | Mapping[str, Any] | None = None,
    accept: Sequence[str] | None = None,
    verify: bool = False,
    items: str | Path | None = None,
    out: str | Path | None = None,
) -> Comparison:
    """Compare a candidate with its base: is any gap or score worse, better, or equivalent?

    Of model, method and training set, what is one in each arm is what is compared; by the rest,
    by probe, style and item, and by seed where both have the same seeds, arms are matched.

    Parameters
    ----------
    base, candidate: an OUT, files or folders of predictions or answers of any kind (`measure`).
    base_is, candidate_is: which of an arm's rows are meant, by model, method, dataset, probe, style
        or prompt, so that two arms of one OUT or file can be compared.
    scope: what intervals cover (`Statistics.scope`); by default the study's, else the widest.
    margin: the largest change that does not matter, as a share; the study's, else 0.02.
    policy: rules with margins of their own instead, a YAML file or its content; the verdict of
        all is `decision.verdict` of what is returned: no-go, inconclusive or go.
    accept: kinds of differences that are meant, of prompts, decoding, settings, training, models
        and versions; if it or a policy is given, others are refused.
    verify: refuse arms that changed by OUT/seal.json, or have none; else a note names what changed.
    items: what the published answers of both arms are to, as for `measure`.
    out: folder or URI for compare.csv, compare.md, compare.json and compare.html.

    Raises
    ------
    DataError: a file is missing or malformed, an arm lacks what the other has, or was changed.
    ConfigError: studies with other profiles, templates, label words or rules; a policy with unknown
        keys or names, or with a rule that selects nothing; a difference that is not accepted.
    """
    from raybias.report.compare import compare

    arms = [[*map(study_place, _paths(arm))] for arm in (base, candidate)]
    chosen: dict[str, Any] = {"base_is": base_is, "candidate_is": candidate_is, "scope": scope}
    chosen |= {"policy": _policy_alone(policy, margin), "items": items_of(items)}
    found = compare(*arms, **chosen, margin=margin, accept=accept, verify=verify)
    if out is not None:
        with Draft(out) as store:
            found.write(store)
    return found


def _policy_alone(
    policy: str | Path | Mapping[str, Any] | None, margin: float | None
) -> Policy | None:
    """Load a policy, if there is one; `ConfigError` if a margin is given with it."""
    if policy is not None and margin is not None:
        raise ConfigError("margin and policy are both given", cure="set margins in the policy")
    return None if policy is None else load_policy(policy)


def design(
    files: Paths,
    *,
    target: float | None = None,
    profile: Profile | None = None,
    scope: Scope | None = None,
) -> pl.DataFrame:
    """Predict which seeds, templates and words to add for narrow intervals (`schema.DESIGN`).

    Parameters
    ----------
    files: as for `measure`; a tuned study is priced in device-hours, others in items read.
    target: the half width that is wanted; by default the study's margin, else 0.02.
    profile, scope: as for `measure`.

    Raises
    ------
    DataError: as for `measure`, or predictions without template ids.
    ConfigError: as for `measure`.
    """
    from raybias.report.files import design_of_files

    paths = [*map(study_place, _paths(files))]
    return design_of_files(paths, target=target, profile=profile, scope=scope)[0]


def _paths(given: Paths) -> list[str | Path]:
    """Return several paths; a text is one, and not a sequence of letters."""
    return [given] if isinstance(given, str | Path) else [*given]


def export(study: str | Path, form: Form, out: str | Path, *, verify: bool = False) -> list[str]:
    """Write an OUT's results for others; return the files' names.

    Parameters
    ----------
    study: OUT of `run`.
    form: eee, the estimates of each model in the schema of Every Eval Ever; lm-eval, the answers to
        questions with options, and scores of pairs, as lm-evaluation-harness logs samples; latex,
        the tables of the page's answer.
    out: folder or URI for MODEL.json, MODEL/samples_TASK.jsonl, or summary_NUMBER.tex.
    verify: refuse results that changed by OUT/seal.json, which otherwise a warning names.

    Raises
    ------
    OutputError: no OUT of a study that was run, or `out` is in the folder of a study.
    DataError: a wrong table; with `verify`, a change or no seal; for lm-eval, there are neither
        answers to questions with three options nor scores of pairs.
    """
    from raybias.report.every_eval import write_evaluations
    from raybias.report.export import write_latex, write_samples

    write = {"eee": write_evaluations, "lm-eval": write_samples, "latex": write_latex}[form]
    store = Store(study_place(study))
    if verify:
        seal.verify(store)
    elif found := seal.changes(store, tables=True):
        warnings.warn(seal.in_words(found), seal.ChangedWarning, stacklevel=2)
    with Draft(out) as target:
        refuse_study(target)
        return write(store, target)
