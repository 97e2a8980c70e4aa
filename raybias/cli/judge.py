"""`raybias measure`, `compare` and `report`: what files, two arms, or a finished study show."""

from __future__ import annotations

import csv
import sys
from collections.abc import Collection, Iterable, Iterator
from typing import TYPE_CHECKING, Annotated, Final

import polars as pl
import typer

from raybias.api import files as api
from raybias.api import studies
from raybias.api.files import Form
from raybias.api.studies import Figures
from raybias.cli.options import (
    Output,
    ProfileOption,
    apart,
    command,
    command_line,
    parted,
)
from raybias.config import Profile, Scope
from raybias.config.study import Interval
from raybias.errors import ConfigError
from raybias.results import Results
from raybias.storage import Store
from raybias.study_record import study_place
from raybias.table_files import standard_input
from raybias.terminal import warn

if TYPE_CHECKING:
    from raybias.measures.predictions_read import MeasuredPredictions

ScopeOption = Annotated[
    Scope | None,
    typer.Option(
        help="What an interval covers as if drawn anew, instead of the profile's or study's: runs"
        " (other seeds), sentences (and other sentences), wording (and other words for the"
        " groups), or the widest of these that the data allow.",
        show_default="the study's, else widest; paper: runs",
    ),
]
#: Exit codes of --gate and --policy.
_CODES: Final = {"worse": 3, "cannot tell": 4, "unread": 5, "no-go": 3, "inconclusive": 4}
_CHOICE: Final = "KEY=VALUE,..."
_GROUPS: Final = "such as age=young,adult,old"
_BOUNDS: Final = "such as --cut age=25,45"


@command(api.measure)
def measure(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            help="A study's output; Parquet or CSV files of predictions or answers, whose columns"
            " tell their kind; Kohankhaki2024's TSV; BBQ's preds_*.jsonl; StereoSet's predictions;"
            " lm-eval's samples_bbq*.jsonl and samples_crows_pairs*.jsonl, in a folder named after"
            " the model; inspect's logs (.eval or JSON); HELM's scenario_state.json; folders; or"
            " `-` for a CSV on standard input. Tables of predictions have label, group, and pred or"
            " score (of class 1); and, as far as they are known, scores, model, attribute, run_id,"
            " template_id, term, source_id (the example that versions were made of)."
        ),
    ] = None,
    *,
    kind: str | None = None,
    items: str | None = None,
    metric: list[str] | None = None,
    listed: Annotated[bool, typer.Option("--list")] = False,
    profile: ProfileOption = None,
    scope: ScopeOption = None,
    interval: Interval | None = None,
    margin: Annotated[float | None, typer.Option(min=0, max=1)] = None,
    by: Annotated[str | None, typer.Option("--by", "--group-column")] = None,
    cut: Annotated[list[str] | None, typer.Option(metavar="COLUMN=NUMBER,...")] = None,
    cluster: Annotated[str, typer.Option(metavar="COLUMN", show_default=False)] = "",
    label_column: str = "label",
    pred_column: str = "pred",
    positive: Annotated[
        str | None,
        typer.Option(
            metavar="WORD,... or COLUMN=WORD,...",
            show_default="1 of 0 and 1, else the larger of two numbers; of more classes, each",
        ),
    ] = None,
    favourable: Annotated[str | None, typer.Option(metavar="VALUE,...")] = None,
    threshold: float | None = None,
    reference: list[str] | None = None,
    background: str | None = None,
    target: Annotated[float | None, typer.Option(min=0.0001, max=1)] = None,
    out: str | None = None,
) -> Output:
    """Measure bias in predictions and answers: every score of their kind, with its interval.

    Intervals resample what answers were made from: seeds, templates, words, pairs or items.

    Parameters
    ----------
    listed: list the metrics with formulas and sources.
    by: columns of groups, such as sex,race: each is an attribute, and several are also crossed. By
        default `group`. age:10 makes groups of ten years. A column of more than 200 groups, or 20
        numbers, is refused.
    cut: the bounds between the groups of a column of numbers, such as age=25,45; may be repeated. A
        bound is in the upper group.
    positive: the class that metrics of one class are about, against the rest: words or numbers of
        the labels and predictions. Several are one class, and each column takes those that it has:
        1,Medium,High. COLUMN=WORD names the class of one column: paid=2,decided=1. In "quotes" a
        word may hold a comma. Without it, each of more than two classes is measured.
    favourable: the prediction that is good for the person who gets it, such as approved; several
        are all words of the class, or all that are not of it. By default the study's, if it
        declares one; without it nothing says who gains or loses by a gap.
    reference: groups whose mean a gap is taken from, as attribute=group,group; may be repeated. By
        default the study's or the papers' lists, else all groups.
    target: say instead which seeds, templates or words to add for intervals of this half width, and
        what that costs: of a study that was tuned in device-hours, else in items read. It rests on
        the variance components of the gaps at hand.
    """
    from raybias.report.design import design_text
    from raybias.report.estimates import text
    from raybias.report.files import design_of_files
    from raybias.report.rendering import markdown
    from raybias.report.wording import describing_class
    from raybias.stats.intervals import Rules
    from raybias.stats.metric_table import listed_metrics
    from raybias.stats.rated_class import RatedClass

    if listed:
        metrics = listed_metrics()
        return Output([markdown(metrics).rstrip()], metrics)
    if not files:
        raise typer.BadParameter("no files are given", param_hint="FILES")
    given = [standard_input(sys.stdin.buffer) if file == "-" else file for file in files]
    if target is not None:
        designs, width, addition = design_of_files(
            [*map(study_place, files)], target=target, profile=profile, scope=scope
        )
        return Output([design_text(designs, width, addition)], designs)
    measured: list[MeasuredPredictions] = []
    references = parted("--reference", reference or (), "attribute=group,group", _GROUPS)
    groups = {attribute: _names(text) for attribute, text in references.items()}
    estimates = api.measure(
        given, kind=kind, items=items, metric=metric or (), profile=profile, scope=scope,
        interval=interval, margin=margin, by=_names(by or ""), cut=_bounds(cut or ()),
        cluster=cluster,
        label_column=label_column, pred_column=pred_column,
        positive=_classes(positive, (label_column, pred_column)),
        favourable=None if favourable is None else _words(favourable), threshold=threshold,
        reference_groups=groups, background=background or "", out=out, command=command_line(),
        report_classes=measured.append,
    )  # fmt: skip
    written = (
        f"estimates.csv, .parquet, figures and report.html are in {Store(out).uri}" if out else ""
    )
    rated = measured[0].rated if measured else RatedClass()
    # Answers of other kinds have one scope.
    rules = measured[0].rules if measured else Rules.under(profile or "strict")
    with describing_class(rated):
        shown = text(estimates, level=rules.level, scope=rules.scope)
        parts = [*map(str, measured), *shown]
    return Output(apart(parts, written), estimates)


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _bounds(texts: Iterable[str]) -> dict[str, list[float]]:
    """Parse bounds between groups, such as `age=25,45`."""
    named = parted("--cut", texts, "column=number,number", _BOUNDS)
    try:
        return {name: [float(number) for number in _names(text)] for name, text in named.items()}
    except ValueError as error:
        raise ConfigError(f"--cut has a bound that is no number ({error})", cure=_BOUNDS) from error


def _words(text: str) -> list[str]:
    """Parse words such as `Medium,High`; in "quotes" one may hold a comma."""
    (words,) = csv.reader([text], skipinitialspace=True)
    return words


def _classes(text: str | None, columns: Collection[str]) -> list[str] | dict[str, list[str]] | None:
    """Parse the words of a class: `yes,1`, or by column `paid=yes,decided=1`."""
    if text is None:
        return None
    words = _words(text)
    by_column: dict[str, list[str]] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if equals and name.strip() in columns:
            by_column.setdefault(name.strip(), []).append(value.strip())
    named = sum(map(len, by_column.values()))
    if by_column and named < len(words):
        raise ConfigError(
            f"--positive {text!r} names a column for some of its words",
            cure="name one for each of them, or for none",
        )
    return by_column or words


@command(api.compare)
def compare(
    base: Annotated[str, typer.Argument()],
    candidate: Annotated[str, typer.Argument()],
    *,
    base_is: Annotated[str | None, typer.Option("--base", metavar=_CHOICE)] = None,
    candidate_is: Annotated[str | None, typer.Option("--candidate", metavar=_CHOICE)] = None,
    scope: ScopeOption = None,
    gate: Annotated[str | None, typer.Option(metavar="margin=0.02")] = None,
    policy: Annotated[str | None, typer.Option(metavar="FILE.yaml")] = None,
    accept: Annotated[str | None, typer.Option(metavar="KIND,...")] = None,
    verify: Annotated[bool, typer.Option("--verify")] = False,
    items: str | None = None,
    out: str | None = None,
) -> Output:
    """Compare a candidate with its base: is any gap or score worse, better, or equivalent?

    Of model, method and training set, what is one in each arm is what is compared; by the rest, by
    probe, style and item, and by seed where both have the same seeds, arms are matched.

    Parameters
    ----------
    gate: exit with 3 where a gap or score is worse, with 4 where that cannot be told and with 5
        where more answers of the candidate cannot be read; a gap that is shown to have changed by
        less than the margin is equivalent, which takes 149 templates or more for 0.02 and 59 for
        0.05.
    policy: judge by the rules of this file instead, each for some changes and with its own margin:
        exit with 3 where a critical rule has a change that is worse, and with 4 where it has one
        that cannot be told or read; docs/comparing.md has an example.
    accept: what else may differ than the model for --gate and --policy, which refuse any other
        difference: prompts, decoding, settings, training, models (judges and rewriters), versions.
    """

    if gate is not None and policy is not None:
        raise typer.BadParameter("give one of them", param_hint="--gate and --policy")
    gated = gate is not None or policy is not None
    accepted = _names(accept or "") if gated or accept is not None else None
    found = api.compare(
        base, candidate, base_is=_choice("--base", base_is),
        candidate_is=_choice("--candidate", candidate_is), scope=scope,
        margin=None if gate is None else _margin(gate), policy=policy,
        accept=accepted, verify=verify, items=items, out=out,
    )  # fmt: skip
    written = f"compare.csv, .md, .json and .html are in {Store(out).uri}" if out else ""
    judged = found.verdict if found.decision is None else found.decision.verdict
    code = 0 if gate is None and policy is None else _CODES.get(judged, 0)
    return Output(apart([str(found)], written), found.rows, code)


def _choice(option: str, text: str | None) -> dict[str, str]:
    return parted(option, text.split(",") if text else (), _CHOICE, "such as model=opt-125m")


def _margin(text: str) -> float:
    name, _, number = text.partition("=")
    try:
        if name.strip() == "margin":
            return float(number)
    except ValueError:
        pass
    raise ConfigError(f"--gate {text!r} is not margin=NUMBER", cure="such as margin=0.02")


@command(studies.write_report)
def report(
    out: Annotated[str, typer.Argument(help="The OUT folder or URI of a study.")],
    profile: Annotated[Profile | None, typer.Option(show_default="the study's")] = None,
    *,
    figures: Figures | None = None,
    verify: Annotated[bool, typer.Option("--verify")] = False,
    form: Annotated[Form | None, typer.Option("--to")] = None,
    target: Annotated[str | None, typer.Option("--out", metavar="DIR")] = None,
) -> Output:
    """Write a study's tables, figures and report.html again; needs no model and no cluster.

    Prints the gaps with their intervals; with --figures the files that it drew. In CSV, text that a
    spreadsheet would take for a formula has an apostrophe before it.

    Parameters
    ----------
    form: write instead, for others: `eee`, the estimates of each model in the schema of Every Eval
        Ever; `lm-eval`, the answers to questions with options, and scores of pairs, as lm-eval's
        samples MODEL/samples_TASK.jsonl, which `raybias measure` reads again; `latex`, the tables
        of the page's answer.
    target: folder or URI for the files of --to, not in the folder of a study.
    """
    from raybias.report.figure_files import written_files
    from raybias.report.paper_files import FOLDER

    if (form is None) != (target is None):
        raise typer.BadParameter("one needs the other", param_hint="--to and --out")
    if form is not None and figures is not None:
        raise typer.BadParameter("give one of them", param_hint="--to and --figures")
    if form is not None and target is not None:
        written = api.export(out, form, target, verify=verify)
        return Output(written, ({"file": name} for name in written))
    results = studies.write_report(out, profile=profile, figures=figures, verify=verify)
    if figures is None:
        return shown(results)
    drawn = [name for name in written_files(results.store) if name.startswith(FOLDER)]
    return Output(map(results.store.uri_of, drawn), ({"file": name} for name in drawn))


def shown(results: Results) -> Output:
    """Show the estimates of a study with their intervals, and where its page is."""
    found = results.estimates.collect()
    return Output(apart(_parts(results, found), f"report: {results.report}"), found)


def _parts(results: Results, found: pl.DataFrame) -> Iterator[str]:
    from raybias.measures.prediction_rows import KIND
    from raybias.report.doubts import few_events
    from raybias.report.estimates import gaps_table, text
    from raybias.report.headline import by_scope, verdict
    from raybias.report.judged import Judged
    from raybias.report.judges import judged_text
    from raybias.report.outs import as_reported
    from raybias.report.wording import declared, describing
    from raybias.stats.redrawn import have_seeds

    study = as_reported(results.store, results.study)
    yield from text(found.filter(pl.col("kind") != KIND), level=study.statistics.level)
    if study.probes:
        for note in results.table("notes").collect()["note"]:
            warn(f"raybias: warning: {note}")
        scope = study.statistics.scope
        judged = Judged.of(found, scope, has_seeds=have_seeds(results.runs.collect()))
        with describing(study):
            said = (verdict(judged), by_scope(judged), *few_events(judged), declared())
            shown = str(gaps_table(found, judged))
        yield "\n".join([shown, "", *filter(None, said)])
        if "judged" in results.tables:
            yield judged_text(results.table("judged").collect(), judged.redrawn)
