"""Own probes with missing cells, run with tiny models: nothing breaks after all the work."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pytest
import yaml

import raybias
from raybias.schema import LABELS
from support import prompting, question_data, studies
from support.pages import Page

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("ignore::raybias.stats.checks.StatisticsWarning"),
]

Rows = list[dict[str, Any]]


def keep_some(random: Random, rows: Rows) -> Rows:
    """Some of the rows, at least one."""
    share = random.choice([0.3, 0.6, 0.9])
    return [row for row in rows if random.random() < share] or rows[:1]


def sentences(random: Random, folder: Path) -> dict[str, Any]:
    """A probe of sentences whose groups lack labels, templates and words."""
    rows = []
    for group in ("old", "young", "adult")[: random.randint(1, 3)]:
        labels = random.choice([[0, 1, 2], [0], [1, 2], [2]])
        rows += [
            {
                "text": f"the {group} man sang {t} {word}",
                # By name: 0 and 1 alone fit two codings.
                "label": LABELS[labels[t % len(labels)]],
                "attribute": "age",
                "group": group,
                "template_id": f"t{t}",
                "term": f"{group} {word}",
            }
            for t in range(3)
            for word in ("a", "b")
        ]
    left_out = random.choice([[], ["term"], ["template_id"]])
    pl.DataFrame(keep_some(random, rows)).drop(left_out).write_csv(folder / "probe.csv")
    method = {"kind": "zero_shot", "seeds": random.choice([[1], [1, 2]])}
    return {"probes": [studies.MINE], "methods": [method]}


def decisions(random: Random, folder: Path) -> dict[str, Any]:
    """Decisions about people, of whom some are missing, perhaps the reference too."""
    people = [*product(range(random.randint(1, 3)), ("30", "60"), ("male", "female"))]
    rows = [
        {
            "decision_id": f"d{n}",
            "text": f"The {age} {gender} asks {n}.",
            "age": age,
            "gender": gender,
        }
        for n, age, gender in people
    ]
    pl.DataFrame(keep_some(random, rows)).write_csv(folder / "decisions.csv")
    card = {
        "kind": "decision",
        "about": "loans",
        "file": "decisions.csv",
        "units": "decisions",
        "people": ["age", "gender"],
        "harm": "a no",
        "metric": "log odds",
    }
    card |= random.choice([{}, {"reference": {"age": "30", "gender": "male"}}])
    (folder / "card.yaml").write_text(yaml.safe_dump(card))
    probe = {"source": "decisions", "name": "mine", "data": "card.yaml"}
    return {"questions": [probe], "methods": [{"kind": "decision_likelihood"}]}


def options(random: Random, folder: Path) -> dict[str, Any]:
    """Questions of which contexts and polarities are missing."""
    question_data.card(folder)
    table = pl.read_csv(folder / "mine.csv")
    pl.DataFrame(keep_some(random, table.to_dicts()), table.schema).write_csv(folder / "mine.csv")
    probe = {"source": "options", "name": "mine", "data": "mine.yaml"}
    return {"questions": [probe], "methods": [{"kind": "option_likelihood"}]}


def triples(random: Random, folder: Path) -> dict[str, Any]:
    """Triples of terms of one, or of tasks and domains without the other."""
    rows = [
        {
            "domain": random.choice(["race", "age"]),
            "task": random.choice(["x", "y"]),
            "term": f"t{n % 2}",
            "stereotype": f"a {n} man",
            "anti_stereotype": f"the {n} man",
            "unrelated": f"some {n} child",
        }
        for n in range(random.randint(1, 4))
    ]
    pl.DataFrame(rows).write_csv(folder / "triples.csv")
    probe = {"source": "triples", "name": "mine", "data": "triples.csv"}
    return {"questions": [probe], "methods": [{"kind": "triple_likelihood"}]}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prompting.save("llama", tmp_path_factory.mktemp("model") / "tiny")


@pytest.mark.parametrize("make", [sentences, decisions, options, triples])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_study_of_a_ragged_probe_ends_with_its_pages(
    make: Callable[[Random, Path], dict[str, Any]], seed: int, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "tiny").symlink_to(model)
    study = studies.write(
        tmp_path, "ragged", **make(Random(seed), tmp_path), resources={"replicas_max": 1}
    )
    studies.run(study, tmp_path / "out", *studies.NO_RAY)
    lacking = raybias.Results(tmp_path / "out").estimates.filter(reason="no rows").collect()
    said = Page((tmp_path / "out" / "report.html").read_text("utf-8")).text
    assert (tmp_path / "out" / "statement.html").exists()
    every = raybias.Results(tmp_path / "out").estimates.collect()
    assert "no rows" in said or not (lacking.height or every.is_empty())
    for form in ("eee", "latex"):
        if every.is_empty():
            with pytest.raises(raybias.BadInput, match="holds no rows"):
                raybias.export(tmp_path / "out", form, tmp_path / form)  # type: ignore[arg-type]
        else:
            assert raybias.export(tmp_path / "out", form, tmp_path / form)  # type: ignore[arg-type]
    raybias.measure(tmp_path / "out", out=tmp_path / "measured")
    for path in (tmp_path / "measured").glob("*.html"):
        assert "no rows" in Page(path.read_text("utf-8")).text or not every.is_empty()
