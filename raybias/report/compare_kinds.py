"""Read and judge the arms of a comparison by kind: predictions, pairs, and other answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import polars as pl

from raybias.errors import BadInput, ConfigError, DataError
from raybias.measures.compare import COMPARED, compare_pairs, named_alike
from raybias.measures.compare_answers import Matched, read_arm
from raybias.measures.compare_gaps import ANSWERS, compare_predictions
from raybias.measures.compare_scores import compare_scores
from raybias.measures.kind import Items, kinds
from raybias.measures.reading import PREDICTIONS, held, read
from raybias.report.compare_arms import Classifier
from raybias.report.files import out_of
from raybias.stats.classes import Classes, Positive
from raybias.stats.file_classes import classes_of
from raybias.stats.intervals import Rules
from raybias.stats.predictions import sources
from raybias.stats.rated_class import sentiment_class

#: What pairs and coreference answers are together, since both are compared as outcomes of pairs.
SCORES: Final = "scores of pairs"
#: Columns of answers, and of outcomes of pairs, by which rows of an arm can be chosen.
_CHOICES: Final = ("model", "method", "probe", "style", "prompt")
#: The kinds that each path holds.
Held = Mapping[str, list[str]]


def held_kinds(paths: Sequence[str], items: Items) -> dict[str, list[str]]:
    """Name the kinds of answers in each path; predictions if a path tells of no kind.

    items: of published answers, as `raybias.measures.reading.read` takes them.
    """
    return {path: held(path, items=items) or [PREDICTIONS] for path in dict.fromkeys(paths)}


def classes_of_arms(paths: Held) -> Classes:
    """Return what the labels of both arms stand for."""
    files = [file for path, names in paths.items() if PREDICTIONS in names
             for file in sources([path])]  # fmt: skip
    distinct = [*{file.uri: file for file in files}.values()]
    if not distinct:
        return Classes({}, is_sentiment=False, positive=None, sentence="")
    classes = classes_of(distinct, Positive())
    of_study = any(map(out_of, paths)) and not classes.sentence
    known = of_study or any(file.is_paper_tsv for file in distinct)
    rated = sentiment_class(None, ()) if known and classes.rated is None else classes.rated
    return replace(classes, is_sentiment=classes.is_sentiment or known, rated=rated)


def read_arm_by_kind(
    paths: Held, chosen: Mapping[str, str], classes: Classes, items: Items
) -> tuple[dict[str, pl.DataFrame], list[str]]:
    """Read what an arm holds, and of it the rows whose columns have the values chosen.

    Returns predictions (`read_arm`), the outcomes of all pairs as `SCORES`, and other answers by
    the name of their kind; and the kinds of an arm of several that have no such columns or values.

    Raises
    ------
    ConfigError: a column that does not tell the answers of any kind apart.
    DataError: files as of `read`, or a value that no row has.
    """
    by_kind = {name: [path for path, names in paths.items() if name in names] for name in kinds}
    predicted = by_kind.pop(PREDICTIONS)
    answers = {name: read(files, name, items)[name] for name, files in by_kind.items() if files}
    of_pairs = {name: of for name in answers if (of := kinds[name].outcomes) is not None}
    if of_pairs:
        outcomes = [of(answers.pop(name)) for name, of in of_pairs.items()]
        answers[SCORES] = pl.concat(outcomes, how="diagonal_relaxed")
    found = {PREDICTIONS: read_arm(predicted, chosen, classes.names)} if predicted else {}
    refused: dict[str, BadInput] = {}
    for name, frame in answers.items():
        choices = [column for column in _CHOICES if column in frame.columns]
        try:
            found[name] = _chosen(frame, chosen, choices, name, [*paths])
        except BadInput as error:
            refused[name] = error
    if not found:
        raise next(iter(refused.values()))
    return found, [*refused]


def _chosen(
    answers: pl.DataFrame, chosen: Mapping[str, str], choices: Sequence[str], what: str,
    files: Sequence[str],
) -> pl.DataFrame:  # fmt: skip
    """Keep the rows with the chosen values."""
    if answers.is_empty():
        raise DataError(
            f"has no {what} that can be compared",
            where=", ".join(files),
            cure="give answers to both sides of a pair",
        )
    for name, value in chosen.items():
        if name not in choices:
            raise ConfigError(
                f"{name!r} does not tell {what} apart", cure=f"choose by {', '.join(choices)}"
            )
        there = answers[name].unique().sort().to_list()
        answers = answers.filter(pl.col(name) == value)
        if answers.is_empty():
            raise DataError(
                f"has no {what} with the {name} {value!r}",
                where=", ".join(files),
                cure=f"it has {', '.join(map(repr, there))}",
            )
    return answers


def check_kinds(arms: Sequence[Mapping[str, pl.DataFrame]], names: Sequence[str]) -> None:
    """Refuse arms of which one holds a kind of answers that the other lacks (`DataError`)."""
    if {*arms[0]} != {*arms[1]}:
        holds = [" and ".join(arm) or "nothing" for arm in arms]
        raise DataError(
            f"the base has {holds[0]}, and the candidate {holds[1]}",
            where=" and ".join(names),
            cure="choose arms that answer the same, or give the folders of an OUT that both have",
        )


class Judged(NamedTuple):
    """What is found at a margin."""

    changes: pl.DataFrame
    others: pl.DataFrame
    answers: pl.DataFrame


def judge_kinds(
    base: Mapping[str, pl.DataFrame],
    candidate: Mapping[str, pl.DataFrame],
    arms: tuple[Sequence[Matched], Sequence[Matched]],
    rules: Rules,
    margin: float,
) -> Judged:
    """Judge the changes of all kinds, whose bands hold together.

    base, candidate: as of `read_arm_by_kind`.
    arms: the matched predictions, and these by class.
    """
    found: list[pl.DataFrame] = []
    others: list[pl.DataFrame] = []
    answers = pl.DataFrame(schema=ANSWERS)
    matches, by_class = arms
    for name, own in base.items():
        if name == PREDICTIONS:
            changes, answers = compare_predictions(
                matches, rules, margin=margin, kinds=len(base), by_class=by_class
            )
        elif name == SCORES:
            changes = compare_pairs(
                own, candidate[name], level=rules.level, margin=margin, kinds=len(base)
            )
        else:
            changes, more = compare_scores(
                kinds[name], own, candidate[name], rules, margin=margin, kinds=len(base)
            )
            others.append(more)
        found.append(changes)
    judged = pl.concat(found)
    if judged.is_empty():
        raise DataError(
            f"no score of {' and '.join(base)} measures bias, so there is nothing to judge",
            cure="measure each arm alone (`raybias measure`)",
        )
    return Judged(judged, pl.concat([pl.DataFrame(schema=COMPARED), *others]), answers)


def classifiers(
    matches: Sequence[Matched], base: Mapping[str, pl.DataFrame],
    candidate: Mapping[str, pl.DataFrame],
) -> list[Classifier]:  # fmt: skip
    """Name the classifiers that are compared, and the models and methods of other answers."""
    found: list[Classifier] = []
    for each in matches:
        model, method, dataset, *_ = each.keys
        found.append((model, method, dataset))
    for name in base:
        if name == PREDICTIONS:
            continue
        arms = [
            arm[name].select(pl.col("model").cast(pl.String), method=_method(arm[name]))
            for arm in (base, candidate)
        ]
        alike, _ = named_alike(arms, ("model", "method"))
        rows = alike[0].unique().sort("model", "method").iter_rows()
        found += [(model, method, "") for model, method in rows]
    return [*dict.fromkeys(found)]


def _method(answers: pl.DataFrame) -> pl.Expr:
    """Select the method of answers; empty if they name none."""
    return pl.col("method") if "method" in answers.columns else pl.lit("")
