"""The memory of answers: what was asked is never asked again, and is what would be answered."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from raybias.config import Backbone
from raybias.engine.answering import EngineAnswers
from raybias.engine.answers import Answers, Key, Writing, Written
from raybias.engine.backbone import load_backbone
from raybias.errors import DataError
from raybias.providers.base import RememberedAnswers
from raybias.storage import Store
from support import prompting


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> EngineAnswers:
    folder = prompting.save("llama", tmp_path_factory.mktemp("memory"))
    return EngineAnswers(load_backbone(Backbone(id=str(folder), name="one")))


def remembered(
    engine: EngineAnswers, folder: Path, **change: object
) -> tuple[RememberedAnswers, list[object]]:
    """What a new process asks, with what reaches the model."""
    asked: list[object] = []

    class Counted(Answers):
        encoder = engine.encoder

        def write(self, prompts: Sequence[str], *how: Any) -> list[Written]:
            asked.extend(prompts)
            return engine.write(prompts, *how)

        def likelihoods(self, texts: Sequence[tuple[str, str]], **how: Any) -> Any:
            asked.extend(texts)
            return engine.likelihoods(texts, **how)

    spec = engine.backbone.spec.model_copy(update=change)
    return RememberedAnswers(Counted(), Store(folder), spec), asked


def keys(count: int, run: str = "run") -> list[Key]:
    return [(1, run, f"item {n}", "answer") for n in range(count)]


def assert_same(found: list[Written], expected: list[Written]) -> None:
    """Another batch rounds otherwise."""
    for one, other in zip(found, expected, strict=True):
        assert one.text == other.text
        assert one.label_scores == pytest.approx(other.label_scores, abs=1e-5)


def test_a_second_study_asks_only_for_what_it_does_not_share(
    engine: EngineAnswers, tmp_path: Path
) -> None:
    texts, greedy = prompting.texts(20), Writing(4, labels=((5,), (6, 7)))
    first, asked = remembered(engine, tmp_path)
    first.write(texts[:10], keys(10), greedy)
    assert asked == texts[:10]
    # Another run, in another order, with one prompt twice.
    second, asked = remembered(engine, tmp_path, name="another name")
    mixed = [*texts[:4:-1], texts[19]]
    found = second.write(mixed, keys(16, "other"), greedy)
    assert sorted(asked) == sorted(texts[10:])
    plain = engine.write(mixed, keys(16, "other"), greedy)
    assert_same(found, plain)
    # Tokens count where they were read.
    assert [bool(each.tokens) for each in found] == [*[True] * 10, *[False] * 6]
    again, asked = remembered(engine, tmp_path)
    assert_same(again.write(mixed, keys(16), greedy), plain)
    assert not asked


def test_what_is_sampled_is_shared_by_its_key_alone(engine: EngineAnswers, tmp_path: Path) -> None:
    texts, drawn = prompting.texts(5), Writing(6, temperature=1.0)
    first, _ = remembered(engine, tmp_path)
    made = first.write(texts, keys(5), drawn)
    second, asked = remembered(engine, tmp_path)
    assert [each.text for each in second.write(texts, keys(5), drawn)] == [
        each.text for each in made
    ]
    assert not asked
    other = second.write(texts, keys(5, "other"), drawn)
    assert asked == texts
    assert [each.text for each in other] != [each.text for each in made]


@pytest.mark.parametrize(
    "change", [{"dtype": "bfloat16"}, {"bos": "prepend"}, {"revision": "main"}], ids=str
)
def test_another_way_to_read_the_model_is_asked_anew(
    engine: EngineAnswers, tmp_path: Path, change: dict[str, str]
) -> None:
    texts = [(text, " positive") for text in prompting.texts(3)]
    first, _ = remembered(engine, tmp_path)
    first.likelihoods(texts)
    same, asked = remembered(engine, tmp_path)
    found, tokens = same.likelihoods([*texts, texts[0], ("a new text", " positive")])
    assert asked == [("a new text", " positive")]
    assert found[:3] == pytest.approx(engine.likelihoods(texts)[0], abs=1e-6)
    assert 0 < tokens < 10
    other, asked = remembered(engine, tmp_path, **change)
    other.likelihoods(texts)
    # A folder has no revisions.
    assert asked == ([] if "revision" in change else texts)


def test_a_damaged_file_of_answers_is_named(engine: EngineAnswers, tmp_path: Path) -> None:
    remembered(engine, tmp_path)[0].write(["a"], keys(1), Writing(2))
    (file,) = tmp_path.rglob("*.parquet")
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(DataError, match=file.name):
        remembered(engine, tmp_path)[0].write(["a"], keys(1), Writing(2))
