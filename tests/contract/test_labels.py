"""Labels of a study: any list of different names, in order, which YAML and OUT keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from raybias.config import Study, load_study, parse_study, to_yaml
from raybias.errors import ConfigError
from raybias.planning.labels import OF_MANY, OF_TWO, resolve_labels
from raybias.schema import LABELS
from raybias.study_record import make_record

NAMES = st.text(st.characters(categories=("L", "N", "P", "S")), min_size=1, max_size=12)
LABEL_LISTS = st.lists(NAMES, min_size=2, max_size=40, unique_by=str.lower)
CONTENT = {"name": "mine", "backbones": ["planted"], "methods": [{"kind": "classify"}]}
FILE = [{"source": "file", "data": "mine.csv"}]


def study(**content: Any) -> Study:
    return parse_study({**CONTENT, "probes": FILE, **content})


@given(LABEL_LISTS, st.data())
def test_labels_come_back_from_yaml_in_order(labels: list[str], data: st.DataObject) -> None:
    words = data.draw(st.lists(NAMES, min_size=len(labels), max_size=len(labels)))
    by_label = dict(zip(labels, words, strict=True))
    named, listed = study(verbalizer=by_label), study(verbalizer=labels)
    assert named.labels == listed.labels == tuple(labels)
    assert named.label_words == tuple(words)
    assert listed.label_words == tuple(labels)
    content = yaml.safe_dump(named.model_dump(mode="json"), sort_keys=False, allow_unicode=True)
    assert parse_study(yaml.safe_load(content)).labels == tuple(labels)
    text = to_yaml({"verbalizer": by_label})
    assert [*yaml.safe_load(text)["verbalizer"].items()] == [*by_label.items()]


@given(LABEL_LISTS)
def test_labels_in_another_order_are_another_study(labels: list[str]) -> None:
    """Numbers of labels in files of OUT are their indices."""
    one, other = study(verbalizer=labels), study(verbalizer=labels[::-1])
    assert make_record(one, {}, command="").hash != make_record(other, {}, command="").hash


@given(st.permutations(LABELS))
def test_sentiment_has_one_order(labels: list[str]) -> None:
    mine = study(verbalizer={label: f"{label}ly" for label in labels})
    assert mine.labels == LABELS
    assert mine.label_words == ("negatively", "neutrally", "positively")
    assert mine.is_sentiment


@given(LABEL_LISTS, st.data())
def test_lists_that_name_no_classes_are_one_line(labels: list[str], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(labels) - 1))
    wrong = data.draw(
        st.sampled_from(
            [
                [*labels, labels[place]],
                [*labels, labels[place].upper(), labels[place].lower()],
                labels[:1],
                [],
                [*labels, ""],
                [*labels, f" {labels[place]}x"],
                [*labels, 1],
                dict.fromkeys(labels[:1], "word"),
                {**dict.fromkeys(labels, "word"), labels[place]: " "},
                {**dict.fromkeys(labels, "word"), labels[place]: 3},
                {**dict.fromkeys(labels, "word"), 3: "three"},
                "toxic",
                7,
            ]
        )
    )
    with pytest.raises(ConfigError) as caught:
        study(verbalizer=wrong)
    assert "verbalizer" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "labels", "metrics", "positive"),
    [
        ({}, LABELS, ("negative_fpr", "positive_fpr"), None),
        ({"probes": [{"source": "planted"}]}, LABELS, ("negative_fpr", "positive_fpr"), None),
        ({"probes": [{"source": "toxicity"}]}, ("harmless", "toxic"), OF_TWO, "toxic"),
        ({"verbalizer": ["a", "b", "c"]}, ("a", "b", "c"), OF_MANY[:1], None),
        ({"verbalizer": ["a", "b", "c"], "statistics": {"positive": "b"}}, ("a", "b", "c"),
         OF_MANY, "b"),
        ({"statistics": {"positive": "negative"}}, LABELS, OF_MANY, "negative"),
        ({"verbalizer": ["no", "yes"], "statistics": {"metrics": ["fnr"]}}, ("no", "yes"),
         ("fnr",), "yes"),
    ],
)  # fmt: skip
def test_what_follows_from_the_labels(
    content: dict[str, Any], labels: tuple[str, ...], metrics: tuple[str, ...], positive: str | None
) -> None:
    resolved = resolve_labels(study(**content))
    assert resolved.labels == labels
    assert resolved.statistics.metrics == metrics
    assert resolved.statistics.positive == positive
    assert resolve_labels(resolved) == resolved
    # Of these probes, the embedded one of sentiment alone declares what is favourable.
    of_sentiment = content.get("probes") == [{"source": "planted"}]
    assert resolved.statistics.favourable == ("positive" if of_sentiment else None)
    if labels == LABELS and positive is None:
        declared = {"statistics": {"favourable": "positive"}} if of_sentiment else {}
        assert resolved == study(**content, **declared)
        assert "positive" not in resolved.model_dump(mode="json")["statistics"]


TOXIC = {"probes": [{"source": "toxicity"}]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({**TOXIC, "verbalizer": ["toxic", "harmless"]},
         "has the labels harmless, toxic, and the study has toxic, harmless; set `verbalizer"),
        ({"probes": [*TOXIC["probes"], {"source": "planted"}]},
         "probe planted: has the labels negative, neutral, positive, and the study has harmless"),
        ({**TOXIC, "training": [{"source": "planted"}]}, "training set planted: has the labels"),
        ({**TOXIC, "training": [{"source": "file", "data": "x", "labels": {"1": "bad"}}]},
         "`labels` maps a value to 'bad', and the study has the labels harmless, toxic"),
        ({**TOXIC, "profile": "paper"}, "the profile paper reproduces studies of negative"),
        ({**TOXIC, "statistics": {"metrics": ["negative_fpr"]}}, "rates are about toxic; choose"),
        ({**TOXIC, "statistics": {"positive": "bad"}}, "'bad' is no label of the study"),
        ({"verbalizer": ["a", "b", "c"], "statistics": {"metrics": ["tpr"]}},
         "is about one label, and the study names none; name one of a, b, c"),
    ],
)  # fmt: skip
def test_what_is_of_other_labels_is_refused(content: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_labels(study(**content))
    assert message in str(caught.value)


def test_a_study_takes_over_the_labels_of_its_card(tmp_path: Path) -> None:
    card = {"kind": "label", "about": "x", "harm": "y", "file": "mine.csv"}
    (tmp_path / "card.yaml").write_text(yaml.safe_dump({**card, "labels": ["no", "yes"]}))
    file = tmp_path / "study.yaml"
    probes = [{"source": "file", "name": "mine", "data": "card.yaml"}]
    file.write_text(yaml.safe_dump({**CONTENT, "probes": probes}))
    assert resolve_labels(load_study(file)).labels == ("no", "yes")
    words = ("verbalizer={yes: agreed, no: refused}",)
    # A file has words, so its labels may stand in another order.
    assert resolve_labels(load_study(file, overrides=words)).labels == ("yes", "no")
    turned = {**card, "labels": ["positive", "neutral", "negative"]}
    (tmp_path / "turned.yaml").write_text(yaml.safe_dump(turned))
    assert resolve_labels(load_study(file, overrides=("probes.0.data=turned.yaml",))).is_sentiment
    with pytest.raises(ConfigError, match="has the labels no, yes, and the study has a, b"):
        resolve_labels(load_study(file, overrides=("verbalizer=[a, b]",)))
