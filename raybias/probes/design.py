"""Show what the design of one's own probe can detect, before any model reads it.

Half widths are those of 95% intervals: of labels with Regard's variance components over eleven
fine-tuned models (Kohankhaki2024's predictions); else of items that are independent to identical.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl
from tabulate import tabulate

from raybias.columns import CONTEXTS
from raybias.config import PairProbe, Probe, QuestionProbe
from raybias.config.card import CardKind
from raybias.formats.openings import look_alike
from raybias.formats.questions import BLANK
from raybias.probes import base_pairs, probe_items, question_items
from raybias.probes.own import SOURCES, held_labels, is_card, numbers_said, read_card
from raybias.probes.tables import kind_of_table, read_table
from raybias.schema import LABELS

#: Variances of a group's gap: of runs, of templates, of both together (Regard).
_RUN, _TEMPLATE, _CELL = 0.0007, 0.0062, 0.0131
#: Standard deviation of a word's gap (Regard).
_WORD: Final = 0.021
_RUNS: Final = 5
_Z: Final = 1.96
#: Below so many units an interval is wide and rests on little.
_FEW: Final = 10
#: A cell of so many times the items of another is unbalanced.
_UNEVEN: Final = 2.0


@dataclass(frozen=True)
class ProbeDesign:
    """Interval widths by attribute, type, category, domain or group, and the design's limits.

    about: what is measured, as the card says, or what the table is.
    study: the lines of a study file that read the probe.
    """

    about: str
    study: str
    parts: pl.DataFrame
    cannot: tuple[str, ...]

    def __str__(self) -> str:
        table = tabulate(self.parts.rows(), headers=self.parts.columns, disable_numparse=True)
        limits = [f"- {text}" for text in self.cannot] or ["- nothing that counting would find"]
        lines = [f"`{line}`" for line in self.study.split("\n")]
        study = f"A study reads it with {' and '.join(lines)}"
        return "\n".join([self.about, "", table, "", "What it cannot show:", *limits, "", study])


def check_probe(card: str | Path) -> ProbeDesign:
    """Tell what the design of one's own probe can and cannot show; print the result.

    Parameters
    ----------
    card: file or URI of its card, or of a table that has a probe's own columns.

    Raises
    ------
    ConfigError: a wrong card.
    DataError: its data is missing or malformed.
    """
    uri = str(card)
    validity: dict[str, str] | None = None
    if is_card(uri):
        content = read_card(uri)
        kind, about, validity = content.kind, content.about, content.validity.model_dump()
    else:
        kind = kind_of_table(read_table(uri), uri)
        about = f"{uri}: a table of kind {kind}, without a card"
    source, labels = SOURCES[kind], LABELS
    if kind == "label":
        labels = held_labels(uri)
        about += numbers_said(uri) if labels == LABELS else ""
        section, items = "probes", probe_items(Probe(source=source, data=uri), labels=labels)
    elif kind == "pair":
        section, items = "pairs", base_pairs(PairProbe(source=source, data=uri))
    else:
        section, items = "questions", question_items(QuestionProbe(source=source, data=uri))
    parts, cannot = _labels(items, labels) if kind == "label" else _LOOKS[kind](items)
    missing = [name for name, text in (validity or {}).items() if not text]
    if missing:
        cannot.append(f"the card does not say, under validity: {', '.join(missing)}")
    if validity is None:
        cannot.append(
            f"who is meant, and harmed how: a card says it (`raybias probes new {kind} --out"
            " CARD.yaml`)"
        )
    study = f"{section}: [{{source: {source}, data: {uri}}}]"
    if labels != LABELS:
        listed = json.dumps([*labels], ensure_ascii=False)
        about += f"; its labels are {', '.join(labels)}"
        study += f"\nverbalizer: {listed}"
    return ProbeDesign(about, study, parts, tuple(cannot))


def gap_widths(
    *, runs: int, templates: int, words: int, items: int = 1, accuracy: float | None = None
) -> tuple[float, float]:
    """Expect the half widths of a gap's 95% intervals under `sentences` and under `wording`.

    They are at least those of independent answers to a group's `items`, two of three of which can
    be wrong in one way, where their accuracy is known and errors are of both kinds alike.
    """
    variance = _RUN / runs + _TEMPLATE / templates + _CELL / (runs * templates)
    if accuracy is not None:
        wrong = (1 - accuracy) / 2
        variance = max(variance, wrong * (1 - wrong) / (items * 2 / 3))
    sentences = _Z * math.sqrt(variance)
    return sentences, math.hypot(sentences, _Z * _WORD / math.sqrt(words))


Look = Callable[[pl.DataFrame], tuple[pl.DataFrame, list[str]]]


def _labels(items: pl.DataFrame, labels: Sequence[str]) -> tuple[pl.DataFrame, list[str]]:
    rows: list[tuple[object, ...]] = []
    cannot: list[str] = []
    for (attribute, group), part in items.group_by("attribute", "group", maintain_order=True):
        words, templates = part["term"].n_unique(), part["template_id"].n_unique()
        seen, worded = gap_widths(runs=_RUNS, templates=templates, words=words)
        widths = (f"{seen:.3f}", f"{worded:.3f}")
        rows.append((attribute, group, part.height, words, templates, *widths))
        if words == 1:
            cannot.append(f"{group} has one word: the group and that word cannot be told apart")
        cannot += _few(templates, f"templates of {group}")
        if missing := len(labels) - part["label"].n_unique():
            lacking = f"{missing} of {len(labels)} labels"
            cannot.append(f"{group} lacks {lacking}: some of its rates are not defined")
    for (attribute,), part in items.group_by("attribute", maintain_order=True):
        cannot += _uneven(part, ["group", "label"], f"{attribute}, by group and label")
        per = part.group_by("template_id").agg(pl.col("group").n_unique())["group"]
        if (apart := int((per < part["group"].n_unique()).sum())) > 0:
            cannot.append(
                f"{apart} of {len(per)} templates of {attribute} are not said of every group:"
                " differences of groups are differences of sentences there"
            )
    cannot += look_alike(items.filter(pl.col("family").is_null()))
    names = ["attribute", "group", "items", "words", "templates",
             f"gap +- ({_RUNS} runs, sentences)", "(and words)"]  # fmt: skip
    return pl.DataFrame(rows, names, orient="row"), cannot


def _pairs(items: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    parts, cannot = _parts(items, ("bias_type",), "cluster", "independent pairs", sd=50)
    if items["cluster"].null_count() == items.height:
        cannot.append("no `cluster`: pairs made from one template will count as independent")
    if items["direction"].n_unique() == 1:
        cannot.append(
            "one direction: a liking of whatever stands in sent_more, such as longer sentences,"
            " looks like bias; add pairs against the stereotype"
        )
    parts.columns = ["type", "pairs", "clusters", "preference +-"]
    return parts, cannot


def _triples(items: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    parts, cannot = _parts(items, ("domain", "task"), "term", "terms", sd=50)
    parts.columns = ["domain", "task", "items", "terms", "ss +-"]
    several = items.filter(pl.col("context").str.count_matches(BLANK) > 1).height
    if several:
        cannot.append(
            f"{several} contexts have more than one {BLANK}: there a masked model's score is the"
            " mean over the words of all of them"
        )
    return parts, cannot


def _options(items: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    by = ("category", "context")
    parts, cannot = _parts(items, by, "template_id", "templates", sd=100)
    parts.columns = [*by, "items", "templates", "bias +- (x 100)"]
    for (category,), part in items.group_by("category", maintain_order=True):
        for context in CONTEXTS:
            if context not in part["context"]:
                cannot.append(f"{category} has no {context} context: some scores are not defined")
        if part["polarity"].n_unique() == 1:
            cannot.append(f"{category} has one polarity: a liking of one group looks like bias")
        if (without := part["target"].null_count()) > 0:
            cannot.append(f"{without} questions of {category} have no target and count in no score")
        placed = part["target"].drop_nulls()
        if len(placed) and placed.n_unique() == 1:
            cannot.append(
                f"the target of {category} is always option {placed[0]}: its place cannot be told"
                " from the stereotype; ask with several `orders`"
            )
    return parts, cannot


def _decisions(items: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    rows: list[tuple[object, ...]] = []
    cannot: list[str] = []
    decisions = items["decision_id"].n_unique()
    people = items["person"].str.split("; ").explode()
    pairs = people.str.split_exact("=", 1).struct.rename_fields(["attribute", "group"])
    counted = pairs.struct.unnest().group_by("attribute", "group", maintain_order=True).len()
    for attribute, group, count in counted.iter_rows():
        width = f"{_Z / math.sqrt(decisions):.2f} sd"
        rows.append((attribute, group, count, decisions, width))
    cannot += _few(decisions, "decisions")
    sizes = items.group_by("person").len()["len"]
    whole = items.select("decision_id", "person").n_unique() == decisions * len(sizes)
    if not whole or sizes.n_unique() > 1:
        cannot.append(
            "not every person is in every decision, once each: the estimate is then no longer that"
            " of the mixed model"
        )
    names = ["attribute", "group", "items", "decisions", "logits +-, of the sd between decisions"]
    return pl.DataFrame(rows, names, orient="row"), cannot


_LOOKS: Final[dict[CardKind, Look]] = {
    "pair": _pairs,
    "triple": _triples,
    "options": _options,
    "decision": _decisions,
}


def _parts(
    items: pl.DataFrame, by: tuple[str, ...], unit: str, called: str, *, sd: float
) -> tuple[pl.DataFrame, list[str]]:
    """Count items and units by part, with a mean's half width; `sd` is the largest of items."""
    rows: list[tuple[object, ...]] = []
    cannot: list[str] = []
    for names, part in items.group_by(by, maintain_order=True):
        # Rows without a unit are units of their own.
        units = part[unit].drop_nulls().n_unique() or part.height
        low, high = (_Z * sd / math.sqrt(n) for n in (part.height, units))
        width = f"{low:.1f}" if part.height == units else f"{low:.1f} to {high:.1f}"
        rows.append((*names, part.height, units, width))
        cannot += _few(units, f"{called} of {' '.join(map(str, names))}")
    return pl.DataFrame(rows, orient="row"), cannot


def _few(units: int, what: str) -> Iterator[str]:
    if units < _FEW:
        yield f"{units} {what}: too few to tell it from the choice of these; have {_FEW} or more"


def _uneven(items: pl.DataFrame, by: list[str], what: str) -> Iterator[str]:
    sizes = items.group_by(by, maintain_order=True).len()
    least, most = sizes.sort("len").row(0), sizes.sort("len").row(-1)
    if most[-1] > _UNEVEN * least[-1]:
        yield (
            f"cells are unbalanced ({what}): {' '.join(map(str, least[:-1]))} has {least[-1]}"
            f" items, {' '.join(map(str, most[:-1]))} {most[-1]}; a background of all leans to it"
        )
