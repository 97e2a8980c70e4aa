"""Small ragged tables of every kind that `measure` reads, made from a shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
import polars as pl
from hypothesis import strategies as st

from raybias import schema
from raybias.columns import ASSOCIATION_SETS, CONTEXTS, POLARITIES, READINGS

Row = dict[str, Any]
#: Columns of a study's own predictions that others do not have.
_STUDY: Final = {"model": "m0", "method": "zero_shot", "dataset": "none", "probe": "p",
                 "style": "original", "run_id": "r0"}  # fmt: skip
_TASKS: Final = ("intrasentence", "intersentence")
#: Styles of pairs and coreference; effects are taken from the first.
_STYLES: Final = ("original", "prefix_1", "formal")


@dataclass(frozen=True)
class Shape:
    """How many of everything a table has, and what its answers are like."""

    seed: int = 0
    groups: int = 3
    rows: int = 8
    """The most rows, items or pairs of a group."""
    models: int = 1
    runs: int = 0
    """0: the table has no runs; so of templates and words."""
    templates: int = 0
    words: int = 0
    classes: int = 2
    attributes: int = 1
    prompts: int = 1
    missing: float = 0.0
    """The share of rows that are left out."""
    unread: float = 0.0
    """The share of answers that name nothing."""
    right: float | None = None
    """The probability that an answer is right; None for chance."""
    lacking: bool = False
    """Whether groups have only some of the labels, templates and words."""
    equal: bool = False
    """Whether every group has the same rows and answers."""
    answers: int = 0
    """Seeds the answers alone: tables that differ in it have the same items."""
    form: str = "numbers"
    """Of predictions: `numbers` or `words`; `scores`, which are probabilities of class 1; or
    `answers`, a table of a study's own columns, in which some cannot be read."""

    @property
    def randoms(self) -> tuple[np.random.Generator, np.random.Generator]:
        """Random numbers for the items of a table, and for the answers to them."""
        return np.random.default_rng(self.seed), np.random.default_rng((self.seed, self.answers))

    def sizes(self, random: np.random.Generator) -> list[int]:
        """The rows of each group."""
        if self.equal:
            return [self.rows] * self.groups
        return [int(random.integers(1, self.rows + 1)) for _ in range(self.groups)]

    def kept(self, rows: Sequence[Row], random: np.random.Generator) -> list[Row]:
        """Rows without those that are missing; at least one."""
        stays = random.random(len(rows)) >= self.missing
        stays[random.integers(len(rows))] = True
        return [row for row, stay in zip(rows, stays, strict=True) if stay]

    def of_models(
        self, items: Sequence[Row], random: np.random.Generator
    ) -> Iterator[tuple[str, Row]]:
        """Each model with the items that are not missing: its own ones if models lack items."""
        own = self.kept(items, random)
        for model in range(self.models):
            for item in self.kept(items, random) if self.lacking and model else own:
                yield f"m{model}", item

    def is_right(self, random: np.random.Generator) -> bool:
        """Whether one answer of two is right."""
        return bool(random.random() < (0.5 if self.right is None else self.right))


SHAPES: Final = st.builds(
    Shape,
    seed=st.integers(0, 10**6),
    groups=st.integers(1, 7),
    rows=st.sampled_from([1, 2, 3, 8, 20, 60]),
    models=st.sampled_from([1, 1, 2, 3]),
    runs=st.integers(0, 3),
    templates=st.integers(0, 4),
    words=st.integers(0, 2),
    classes=st.sampled_from([2, 2, 3, 4]),
    attributes=st.sampled_from([1, 1, 2]),
    prompts=st.sampled_from([1, 1, 2]),
    missing=st.sampled_from([0.0, 0.0, 0.1, 0.5, 0.9]),
    unread=st.sampled_from([0.0, 0.0, 0.2, 1.0]),
    right=st.sampled_from([None, None, 0.8, 0.0, 1.0]),
    lacking=st.booleans(),
    equal=st.booleans(),
    answers=st.just(0),
    form=st.sampled_from(["numbers", "numbers", "words", "scores", "answers"]),
)


def predictions(shape: Shape) -> pl.DataFrame:
    """Labels and predictions of people of groups; a run of a model has all of its items."""
    random, said = shape.randoms
    people = [{**person, "item_id": f"i{n}"} for n, person in enumerate(_people(shape, random))]
    scored = shape.form == "scores" and shape.classes == 2
    rows = []
    for (model, person), run in product(
        [*shape.of_models(people, random)], range(max(shape.runs, 1))
    ):
        label = int(person["label"])
        wrong = (label + int(said.integers(1, shape.classes))) % shape.classes
        chance = int(said.integers(shape.classes))
        pred = chance if shape.right is None else wrong
        if shape.right is not None and shape.is_right(said):
            pred = label
        row = {**person, "pred": 0 if shape.equal else pred}
        if scored:
            row["score"] = round((int(row.pop("pred")) + float(said.random())) / 2, 3)
        if shape.form == "answers":
            unread = said.random() < shape.unread
            row |= {**_STUDY, "pred": None if unread else pred, "parsed": not unread,
                    "attribute": row.get("attribute", "a0")}  # fmt: skip
        row |= {"model": model} if shape.models > 1 else {}
        row |= {"run_id": f"r{run}"} if shape.runs else {}
        rows.append(row)
    table = pl.DataFrame(rows, infer_schema_length=None)
    if shape.form == "answers":
        types = pl.Schema(schema.PREDICTIONS)
        return table.cast({name: types[name] for name in table.columns})
    if shape.form == "words":
        names = {n: f"class {n}" for n in range(shape.classes)}
        words = pl.col("label", "pred").replace_strict(names, return_dtype=pl.String)
        table = table.with_columns(words)
    return table


def _people(shape: Shape, random: np.random.Generator) -> Iterator[Row]:
    for attribute in range(shape.attributes):
        for group, size in enumerate(shape.sizes(random)):
            labels = [*range(shape.classes)]
            if shape.lacking:
                least = int(random.integers(1, shape.classes + 1))
                labels = [int(each) for each in random.permutation(shape.classes)[:least]]
            for n in range(size):
                row: Row = {"group": f"a{attribute}g{group}", "label": labels[n % len(labels)]}
                row |= {"attribute": f"a{attribute}"} if shape.attributes > 1 else {}
                row |= {"template_id": f"t{n % shape.templates}"} if shape.templates else {}
                row |= {"term": f"g{group}w{n % shape.words}"} if shape.words else {}
                yield row


def _styles(shape: Shape) -> tuple[str, ...]:
    return _STYLES[: shape.prompts + 1] if shape.templates else _STYLES[:1]


def pairs(shape: Shape) -> pl.DataFrame:
    """Scores of pairs under styles; a pair can be missing under a style."""
    random, said = shape.randoms
    items = []
    for group, size in enumerate(shape.sizes(random)):
        for n in range(size):
            item = {"pair_id": f"g{group}p{n}", "direction": ("stereo", "antistereo")[n % 5 == 0],
                    "bias_type": f"type {group}"}  # fmt: skip
            items.append(item | ({"cluster": f"writer {n % shape.words}"} if shape.words else {}))
    rows = []
    for (model, item), style in product([*shape.of_models(items, random)], _styles(shape)):
        if style != "original" and random.random() < shape.missing:
            continue
        less, more = sorted(round(float(x), 4) for x in said.random(2) / 2)
        more, less = (more, less) if shape.is_right(said) else (less, more)
        more = less if said.random() < shape.unread else more
        preference = None if more == less else int(more > less)
        rows.append(
            {"model": model, "probe": "p", "score": "mine", "style": style, **item,
             "score_more": more, "score_less": less, "preference": preference}
        )  # fmt: skip
    return pl.DataFrame(rows, infer_schema_length=None)


def coreference(shape: Shape) -> pl.DataFrame:
    """Answers about pronouns; a pair can lack a side, a style or a prompt."""
    random, said = shape.randoms
    items = [
        {"item_id": f"{wino}-{n}-{side}", "pair_id": f"{wino}-{n}", "wino_type": f"type{wino + 1}",
         "condition": side, "prompt": f"q{prompt}"}
        for wino, n, side, prompt in product(
            range(min(shape.groups, 2)), range(shape.rows), ("pro", "anti"), range(shape.prompts)
        )
    ]  # fmt: skip
    rows = []
    for (model, item), style in product([*shape.of_models(items, random)], _styles(shape)):
        if style != "original" and random.random() < shape.missing:
            continue
        right, unread = shape.is_right(said), said.random() < shape.unread
        row = {"model": model, "probe": "w", "style": style, **item,
               "exact": right and not unread, "contains": right}  # fmt: skip
        if shape.words:
            wrong = READINGS[int(said.integers(1, len(READINGS)))]
            row["reading"] = "referent" if right and not unread else wrong
        rows.append(row)
    return pl.DataFrame(rows, infer_schema_length=None)


def options(shape: Shape) -> pl.DataFrame:
    """Answers to questions with an unknown option, in one or both contexts."""
    random, said = shape.randoms
    contexts = CONTEXTS[: int(random.integers(1, 3))] if shape.lacking else CONTEXTS
    items = []
    for group, size in enumerate(shape.sizes(random)):
        for n in range(size):
            unknown, target, other = (int(place) for place in random.permutation(3))
            context = contexts[int(random.integers(len(contexts)))]
            label = unknown if context == "ambig" else (target, other)[int(random.integers(2))]
            items.append(
                {"probe": "bbq", "category": f"c{group}",
                 "template_id": f"t{n % max(shape.templates, 1)}", "item_id": f"i{n}",
                 "context": context, "polarity": POLARITIES[int(random.integers(2))],
                 "label": label, "unknown": unknown,
                 "target": None if random.random() < shape.missing else target}
            )  # fmt: skip
    rows = []
    for (model, item), prompt in product([*shape.of_models(items, random)], range(shape.prompts)):
        wrong = (item["label"] + int(said.integers(1, 3))) % 3
        pred = item["label"] if shape.is_right(said) else wrong
        pred = None if said.random() < shape.unread else pred
        name = f"q{prompt}" if shape.prompts > 1 else ""
        rows.append({"model": model, **item, "pred": pred, "prompt": name})
    return pl.DataFrame(rows, infer_schema_length=None)


def triples(shape: Shape) -> pl.DataFrame:
    """Scores of three sentences, whole numbers so that there are ties."""
    random, said = shape.randoms
    items = [
        {"probe": "s", "domain": f"d{group}", "task": _TASKS[n % shape.prompts],
         "term": f"w{n % max(shape.templates, 1)}", "item_id": f"i{n}"}
        for group, size in enumerate(shape.sizes(random))
        for n in range(size)
    ]  # fmt: skip
    rows = []
    for model, item in shape.of_models(items, random):
        scores = [float(-x) for x in said.integers(0, 4, 3)]
        if shape.right is not None:
            scores.sort(reverse=shape.is_right(said))
        names = dict(zip(("stereotype", "anti_stereotype", "unrelated"), scores, strict=True))
        rows.append({"model": model, **item, **names})
    return pl.DataFrame(rows)


def decisions(shape: Shape) -> pl.DataFrame:
    """Log-likelihoods of both answers about people of one or several attributes."""
    random, said = shape.randoms
    people = [
        "; ".join([f"age={group}", f"sex={sex}"][: shape.attributes])
        for group in range(shape.groups)
        for sex in ("m", "f")[: shape.attributes]
    ]
    items = [
        {"probe": "d", "decision_id": f"d{n}", "item_id": f"{n}-{person}", "person": person,
         "prompt": f"q{prompt}" if shape.prompts > 1 else ""}
        for n, prompt, person in product(range(min(shape.rows, 12)), range(shape.prompts), people)
    ]  # fmt: skip
    rows = []
    for model, item in shape.of_models(items, random):
        p = float(said.random()) if shape.right is None else (0.1, 0.9)[item["decision_id"] > "d3"]
        p = 0.5 if shape.equal else min(max(p, 0.01), 0.99)
        row = {"model": model, **item, "favourable": float(np.log(p)),
               "unfavourable": float(np.log1p(-p))}  # fmt: skip
        rows.append(row | ({"reference": "age=0"} if shape.words else {}))
    return pl.DataFrame(rows)


def sentences(shape: Shape) -> pl.DataFrame:
    """Log-likelihoods of sentences with descriptors of axes."""
    random, said = shape.randoms
    items = [
        {"probe": "h", "item_id": f"{axis}-{group}-{n}", "axis": f"x{axis}",
         "template_id": f"t{n % max(shape.templates, 1)}", "descriptor": f"g{group}"}
        for axis in range(shape.attributes)
        for group, size in enumerate(shape.sizes(random))
        for n in range(size)
    ]  # fmt: skip
    rows = []
    for model, item in shape.of_models(items, random):
        shift = 0 if shape.right is None else int(item["descriptor"][1:])
        value = -1.0 if shape.equal else -float(said.random()) - shift
        rows.append({"model": model, **item, "log_prob": value})
    return pl.DataFrame(rows)


def associations(shape: Shape) -> pl.DataFrame:
    """Embeddings of two dimensions of the four sets of tests."""
    random, said = shape.randoms
    items = [
        {"probe": "a", "test": f"t{test}", "set": name, "item_id": f"{name}{n}"}
        for test, size in enumerate(shape.sizes(random))
        for name in ASSOCIATION_SETS
        for n in range(1 + int(random.integers(min(size, 8))))
    ]
    rows = []
    for model, item in product(range(shape.models), items):
        # Exact in float32, and never 0.
        vector = [(2 * round(float(x) * 32) + 1) / 64 for x in said.normal(size=2)]
        embedding = [1.0, 0.5] if shape.equal else vector
        rows.append({"model": f"m{model}", **item, "embedding": embedding})
    return pl.DataFrame(rows)


def write(table: pl.DataFrame, path: Path) -> Path:
    """Write a table as CSV, or as Parquet if CSV cannot hold it as it is."""
    of_study = {"parsed", "embedding"} & {*table.columns}
    whole = path.with_suffix(".parquet" if of_study else ".csv")
    (table.write_parquet if of_study else table.write_csv)(whole)
    return whole


#: Makes a table of each kind.
MAKERS: Final[dict[str, Callable[[Shape], pl.DataFrame]]] = {
    each.__name__: each
    for each in (predictions, pairs, coreference, options, triples, decisions, sentences,
                 associations)
}  # fmt: skip
