"""`raybias measure`, `compare` and `report`: what files, two arms, or a finished study show."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated, Final

import typer

from raybias.api import files as api
from raybias.api import studies
from raybias.cli.options import ProfileOption, command_line, documented_by, printed_warnings
from raybias.config import Profile, Scope
from raybias.config.study import Interval
from raybias.errors import ConfigError
from raybias.results import Results
from raybias.seal import ChangedWarning
from raybias.storage import Store
from raybias.table_files import standard_input

ScopeOption = Annotated[
    Scope | None,
    typer.Option(
        help="What an interval covers as if drawn anew, instead of the profile's or study's: runs"
        " (other seeds), sentences (and other sentences), wording (and other words for the"
        " groups), or the widest of these that the data allow.",
        show_default="the study's, else widest; paper: runs",
    ),
]
#: Exit codes of --gate.
_CODES: Final = {"worse": 3, "cannot tell": 4, "unread": 5}
_CHOICE: Final = "KEY=VALUE,..."
_GROUPS: Final = "such as age=young,adult,old"


@documented_by(api.measure)
def measure(
    files: Annotated[
        list[str] | None,
        typer.Argument(
            help="A study's output; Parquet or CSV files of predictions or answers, whose columns"
            " tell their kind; Kohankhaki2024's TSV; BBQ's preds_*.jsonl; StereoSet's predictions;"
            " lm-eval's samples_bbq*.jsonl and samples_crows_pairs*.jsonl, in a folder named after"
            " the model; inspect's JSON logs; HELM's scenario_state.json; folders; or `-` for a CSV"
            " on standard input. Tables of predictions have label, group, and pred or score (of"
            " class 1); and, as far as they are known, scores, model, attribute, run_id,"
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
    label_column: str = "label",
    pred_column: str = "pred",
    positive: Annotated[
        str | None, typer.Option(show_default="the last: 1 of two, 2 of three")
    ] = None,
    reference: list[str] | None = None,
    background: str | None = None,
    target: Annotated[float | None, typer.Option(min=0.0001, max=1)] = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
    quiet: Annotated[bool, typer.Option("--quiet")] = False,
    out: str | None = None,
) -> None:
    """Measure bias in predictions and answers: every score of their kind, with its interval.

    Intervals resample what answers were made from: seeds, templates, words, pairs or items.

    Parameters
    ----------
    listed: list the metrics with formulas and sources.
    by: columns of groups, such as sex,race: each is an attribute, and several are also crossed. By
        default `group`.
    positive: the class that metrics of one class are about, against the rest: a number, or a word
        of the labels.
    reference: groups whose mean a gap is taken from, as attribute=group,group; may be repeated. By
        default the study's or the papers' lists, else all groups.
    target: say instead which seeds, templates or words to add for intervals of this half width, and
        what that costs: of a study that was tuned in device-hours, else in items read. It rests on
        the variance components of the gaps at hand.
    as_json: print the estimates as JSON, a row a line.
    quiet: print nothing but warnings.
    """
    from raybias import stats
    from raybias.report.design import design_text
    from raybias.report.estimates import text
    from raybias.report.files import design_of_files
    from raybias.report.rendering import markdown
    from raybias.stats.metric_table import listed_metrics

    if listed:
        print(markdown(listed_metrics()), end="")
        return
    if not files:
        raise typer.BadParameter("no files are given", param_hint="FILES")
    given = [standard_input(sys.stdin.buffer) if file == "-" else file for file in files]
    if target is not None:
        with printed_warnings(stats.StatisticsWarning):
            designs, width = design_of_files(files, target=target, profile=profile, scope=scope)
        if as_json:
            print(designs.write_ndjson(), end="")
        elif not quiet:
            print(design_text(designs, width))
        return
    number = int(positive) if positive is not None and positive.isdigit() else positive
    references = _parted("--reference", reference or (), "attribute=group,group", _GROUPS)
    groups = {attribute: _names(text) for attribute, text in references.items()}
    with printed_warnings(stats.StatisticsWarning):
        estimates = api.measure(
            given, kind=kind, items=items, metric=metric or (), profile=profile, scope=scope,
            interval=interval, margin=margin, by=_names(by or ""), label_column=label_column,
            pred_column=pred_column, positive=number,
            reference_groups=groups, background=background or "", out=out, command=command_line(),
        )  # fmt: skip
    if as_json:
        print(estimates.write_ndjson(), end="")
    elif not quiet:
        print(*text(estimates, scope=scope or "widest"), sep="\n\n")
        if out is not None:
            print(f"\nestimates.csv, .parquet, figures and report.html are in {Store(out).uri}")


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _parted(option: str, texts: Iterable[str], form: str, cure: str) -> dict[str, str]:
    """Parse texts such as `model=opt-125m`."""
    found: dict[str, str] = {}
    for text in texts:
        key, _, value = (part.strip(" ,") for part in text.partition("="))
        if not (key and value):
            raise ConfigError(f"{option} {text!r} is not {form}", cure=cure)
        if key in found:
            raise ConfigError(f"{option} gives {key!r} twice")
        found[key] = value
    return found


@documented_by(api.compare)
def compare(
    base: Annotated[str, typer.Argument()],
    candidate: Annotated[str, typer.Argument()],
    *,
    base_is: Annotated[str | None, typer.Option("--base", metavar=_CHOICE)] = None,
    candidate_is: Annotated[str | None, typer.Option("--candidate", metavar=_CHOICE)] = None,
    scope: ScopeOption = None,
    gate: Annotated[str | None, typer.Option(metavar="margin=0.02")] = None,
    out: str | None = None,
) -> None:
    """Compare a candidate with its base: is any gap or score worse, better, or equivalent?

    Of model, method and training set, what is one in each arm is what is compared; by the rest, by
    probe, style and sentence, and by seed where both have the same seeds, arms are matched.

    Parameters
    ----------
    gate: exit with 3 where a gap is worse, with 4 where that cannot be told and with 5 where more
        answers of the candidate cannot be read; a gap that changed by less than the margin is
        equivalent.
    """
    from raybias import stats

    with printed_warnings(stats.StatisticsWarning):
        found = api.compare(
            base, candidate, base_is=_choice("--base", base_is),
            candidate_is=_choice("--candidate", candidate_is), scope=scope,
            margin=None if gate is None else _margin(gate), out=out,
        )  # fmt: skip
    print(found)
    if out is not None:
        print(f"\ncompare.csv, compare.md, compare.json and compare.html are in {Store(out).uri}")
    if gate is not None:
        raise typer.Exit(_CODES.get(found.verdict, 0))


def _choice(option: str, text: str | None) -> dict[str, str]:
    return _parted(option, text.split(",") if text else (), _CHOICE, "such as model=opt-125m")


def _margin(text: str) -> float:
    name, _, number = text.partition("=")
    try:
        if name.strip() == "margin":
            return float(number)
    except ValueError:
        pass
    raise ConfigError(f"--gate {text!r} is not margin=NUMBER", cure="such as margin=0.02")


@documented_by(studies.write_report)
def report(
    out: Annotated[str, typer.Argument(help="The OUT folder or URI of a study.")],
    profile: Annotated[Profile | None, typer.Option(show_default="the study's")] = None,
    *,
    verify: Annotated[bool, typer.Option("--verify")] = False,
    samples: Annotated[str | None, typer.Option(metavar="DIR")] = None,
) -> None:
    """Write a study's tables, figures and report.html again; needs no model and no cluster.

    Prints the gaps with their intervals. In CSV, text that a spreadsheet would take for a formula
    has an apostrophe before it.

    Parameters
    ----------
    samples: write instead the answers to questions with options, and scores of pairs, to a folder
        or URI as lm-eval's samples: MODEL/samples_TASK.jsonl, a JSON object a line, which `raybias
        measure` reads again.
    """
    if samples is not None:
        print(*api.samples(out, samples), sep="\n")
        return
    with printed_warnings(ChangedWarning):
        results = studies.write_report(out, profile=profile, verify=verify)
    show(results)


def show(results: Results) -> None:
    """Print the estimates of a study with their intervals, and where its page is."""
    from raybias.measures.prediction_rows import KIND, gap_rows
    from raybias.report.estimates import gaps_table, text
    from raybias.report.judges import judged_text
    from raybias.report.outs import as_reported
    from raybias.report.sentences import by_scope, verdict

    store = results.store
    study = as_reported(store, results.study)
    found = results.estimates.collect()
    if study.pairs or study.questions:
        asked = found.filter(found["kind"] != KIND)
        print(*text(asked, level=study.statistics.level), sep="\n\n")
    if study.probes:
        for note in results.table("notes").collect()["note"]:
            print(f"raybias: warning: {note}", file=sys.stderr)
        scope = study.statistics.scope
        components = results.table("components").collect()
        said = (
            verdict(gap_rows(found, scope)),
            by_scope(gap_rows(found), components),
        )
        print(gaps_table(found, scope), "", *filter(None, said), sep="\n")
        if "judged" in results.tables:
            print("", judged_text(results.table("judged").collect()), sep="\n")
    print(f"\nreport: {results.report}")
