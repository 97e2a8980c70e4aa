"""Published classifiers are read as transformers' pipeline reads them, or refused in one line."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import transformers
import yaml
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from raybias.config import Backbone
from raybias.engine.backbone import ModelContext
from raybias.engine.encoder import load_tokenizer
from raybias.engine.published import (
    PublishedClassifier,
    has_trained_head,
    read_head,
)
from raybias.engine.trained_head import TrainedHead
from raybias.errors import BadInput, ConfigError, ModelError
from raybias.methods import Classify, Inputs
from raybias.methods.base import text_items
from raybias.methods.class_labels import LabelRule, label_rule
from raybias.methods.work import TokenCounts
from raybias.schema import LABELS
from raybias.storage import Store
from support import classifiers, zoo

#: Encoders with and without token types, one that reads the last position, two that change with
#: padding, decoders of learnt and rotary positions and with windows, and encoder-decoders.
KINDS = ("bert", "roberta", "distilbert", "deberta-v2", "albert", "modernbert", "xlnet", "fnet",
         "convbert", "gpt2", "llama", "opt", "gemma", "mistral", "bart", "t5")  # fmt: skip
CLASSES = {2: ("NEG", "POS"), 3: classifiers.SENTIMENT, 5: classifiers.STARS}
#: Without which the architecture's own forward pass fails.
FIELDS: dict[str, dict[str, Any]] = {"t5": {"decoder_start_token_id": 0}}


def answers(
    method: Classify, folder: Path, sentences: list[str], labels: tuple[str, ...] = LABELS
) -> tuple[Any, Any]:
    """Labels [N] and scores [N, L] of sentences, by the method's own reader."""
    backbone = Backbone(id=str(folder))
    fitted = method.fit(backbone, "strict", labels)
    reader = fitted.reader(ModelContext(backbone, labels=labels), Store(folder))
    items = text_items([str(n) for n in range(len(sentences))], sentences)
    table, tokens = reader.prepare(reader.load("any"), items)()
    longest = reader.classifier.context if method.truncate else None
    rows = reader.classifier.encoder.ids(sentences, longest=longest)
    assert tokens == sum(map(len, rows))
    return np.array(table["pred"].to_pylist()), np.array(table["scores"].to_pylist())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [2, 3, 5])
def test_probabilities_are_the_pipelines(kind: str, count: int, tmp_path: Path) -> None:
    folder = classifiers.save(kind, tmp_path, CLASSES[count], **FIELDS.get(kind, {}))
    sentences = classifiers.texts(12)
    expected_NC = classifiers.of_pipeline(folder, sentences)
    classifier = PublishedClassifier(Backbone(id=str(folder)))
    found_NC = classifier.outputs(classifier.encoder.encode(sentences))
    assert classifier.head == TrainedHead(CLASSES[count], "softmax")
    assert np.ptp(expected_NC, axis=0).max() > 1e-3
    np.testing.assert_allclose(found_NC, expected_NC, atol=1e-5)
    assert (found_NC.argmax(axis=1) == expected_NC.argmax(axis=1)).all()
    assert has_trained_head(Backbone(id=str(folder)))
    method = Classify(labels=classifiers.STARS_MAP) if count == 5 else Classify()
    labels, scores = answers(method, folder, sentences)
    places = {2: [0, 2], 3: [0, 1, 2], 5: [0, 0, 1, 2, 2]}[count]
    sums_NL = expected_NC @ np.eye(3)[places]
    assert (labels == sums_NL.argmax(axis=1)).all()
    np.testing.assert_allclose(np.exp(scores), sums_NL, atol=1e-5)


@pytest.mark.parametrize("pad", [None, -1])
@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_decoder_without_a_padding_token_reads_the_last_token(
    kind: str, pad: int | None, tmp_path: Path
) -> None:
    """Its text ends with EOS, which other methods pad with."""
    folder = classifiers.save(kind, tmp_path, classifiers.SENTIMENT)
    classifiers.edit_config(folder, {"pad_token_id": pad})
    classifiers.edit_config(folder, {"pad_token_id": pad} if pad is not None else {})
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.pad_token = "</s>"
    tokenizer.save_pretrained(folder)
    sentences = classifiers.texts(12)
    classifier = PublishedClassifier(Backbone(id=str(folder)))
    found_NC = classifier.outputs(classifier.encoder.encode(sentences))
    np.testing.assert_allclose(found_NC, classifiers.of_pipeline(folder, sentences), atol=1e-5)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return classifiers.save("bert", tmp_path_factory.mktemp("bert"), classifiers.SENTIMENT)


def softmax(*classes: str) -> TrainedHead:
    return TrainedHead(classes, "softmax")


def rule_of(
    head: TrainedHead,
    labels: tuple[str, ...] = LABELS,
    classes: Mapping[str, Any] | None = None,
    thresholds: tuple[float, ...] = (),
) -> LabelRule:
    return label_rule(head, labels, classes=classes or {}, thresholds=thresholds, where="m")


@given(st.integers(2, 6), st.integers(2, 8), st.randoms(), st.data())
def test_probabilities_of_a_labels_classes_are_added(
    count: int, size: int, random: Any, data: Any
) -> None:
    """Any map of all classes to labels; refused if a label that is needed has none."""
    labels = tuple(f"label {n}" for n in range(count))
    places = data.draw(st.lists(st.integers(0, count - 1), min_size=size, max_size=size))
    classes = [f"class {n}" for n in range(size)]
    order = list(range(size))
    random.shuffle(order)
    named: dict[str, list[str]] = {}
    for n in order:
        named.setdefault(labels[places[n]], []).append(classes[n])
    needed = {0, 2} if count == 3 else {*range(count)}
    if lacking := sorted(needed - {*places}):
        with pytest.raises(ConfigError, match=f"no class is label {lacking[0]}"):
            rule_of(softmax(*classes), labels, named)
        return
    rule = rule_of(softmax(*classes), labels, named)
    assert [*rule.places] == places
    outputs_NC = np.random.default_rng(size).dirichlet(np.ones(size), 7)
    expected_NL = np.zeros((7, count))
    for at, place in enumerate(places):
        expected_NL[:, place] += outputs_NC[:, at]
    found, scores_NL = rule.read(outputs_NC, are_numbers=False)
    assert found == expected_NL.argmax(axis=1).tolist()
    np.testing.assert_allclose(np.exp(scores_NL), expected_NL, atol=1e-6)
    never = [labels[place] for place in sorted({*range(count)} - {*places})]
    assert [*Classify(labels=named).never(labels)] == never


@given(
    st.sampled_from([("harmless", "toxic"), LABELS, ("a", "b", "c", "d")]),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.lists(st.floats(-3, 3), min_size=3, max_size=3, unique=True),
    st.lists(st.tuples(st.floats(-4, 4), st.floats(-4, 4)), min_size=1, max_size=9),
)
def test_thresholds_part_the_labels_in_order(
    labels: tuple[str, ...],
    first: bool,
    several: bool,
    both: bool,
    bounds: list[float],
    rows: list[tuple[float, float]],
) -> None:
    """Of numbers: the highest of the classes that are named, from the label that they mean down."""
    head = TrainedHead(("x", "y"), "number")
    named = labels[0] if first else labels[-1]
    thresholds = tuple(sorted(bounds[: len(labels) - 1 if several else 1]))
    classes = ("x", "y") if both else ("y",)
    rule = rule_of(head, labels, {named: classes}, thresholds)
    outputs_NC = np.array(rows)
    found, scores_NL = rule.read(outputs_NC, are_numbers=True)
    ordered = labels if len(thresholds) == len(labels) - 1 else (labels[0], labels[-1])
    if first:
        ordered = ordered[::-1]
    for (x, y), label in zip(rows, found, strict=True):
        value = max(x, y) if both else y
        assert labels[label] == ordered[sum(bound <= value for bound in thresholds)]
    assert np.isfinite(scores_NL).all()


@given(st.permutations(["negative", "neutral", "positive"]), st.sampled_from([0, 3]), st.data())
def test_unmistakable_names_need_no_map(order: list[str], short: int, data: Any) -> None:
    names = [name[: short or None] for name in order]
    cased = [data.draw(st.sampled_from([str.upper, str.lower, str.capitalize]))(n) for n in names]
    two = [name for name in cased if not name.lower().startswith("neu")]
    for classes in (cased, two):
        places = rule_of(softmax(*classes)).places
        assert [LABELS[place][:3] for place in places if place is not None] == [
            name.lower()[:3] for name in classes
        ]


TOXIC = ("harmless", "toxic")


@pytest.mark.parametrize(
    ("head", "places", "thresholds"),
    [
        (softmax("neutral", "toxic"), (0, 1), ()),
        (softmax("Toxic", "non-toxic"), (1, 0), ()),
        (TrainedHead(("toxic", "insult", "threat"), "sigmoid"), (1, None, None), (0.5,)),
        (TrainedHead(("TOXIC",), "sigmoid"), (1,), (0.5,)),
    ],
)
def test_toxicity_models_need_no_map(
    head: TrainedHead, places: tuple[int | None, ...], thresholds: tuple[float, ...]
) -> None:
    rule = rule_of(head, TOXIC)
    assert (rule.places, rule.thresholds) == (places, thresholds)


PROBABILITY, NUMBER = TrainedHead(("LABEL_0",), "sigmoid"), TrainedHead(("LABEL_0",), "number")


@pytest.mark.parametrize(
    ("head", "labels", "classes", "message"),
    [
        (softmax("LABEL_0", "LABEL_1"), LABELS, {},
         "it is not clear which label each class is; the model's classes are LABEL_0, LABEL_1; say"
         " which label each is, with --labels and --threshold of `raybias audit` or in a study,"
         ' such as {kind: classify, labels: {negative: ["LABEL_0"], positive: ["LABEL_1"]}} if'),
        (softmax("1 star", "2 stars", "3 stars"), LABELS, {},
         'neutral: ["2 stars"], positive: ["3 stars"]}'),
        (softmax("negative", "NEG", "positive"), LABELS, {}, "it is not clear which label each"),
        (softmax("negative", "neutral"), LABELS, {}, "no class is positive"),
        (softmax("toxic", "neutral"), LABELS, {}, "it is not clear"),
        (softmax("LABEL_0", "LABEL_1"), TOXIC, {}, 'harmless: ["LABEL_0"], toxic: ["LABEL_1"]'),
        (softmax("a", "b"), LABELS, {"negative": ["a"]}, "leaves out the class 'b'"),
        (softmax("a", "b"), LABELS, {"negative": ["a"], "positive": ["b", "c"]},
         "names the class 'c', which the model lacks; the model's classes are a, b"),
        (softmax("a", "b"), LABELS, {"negative": ["a", "b"], "positive": ["b"]},
         "names the class 'b' twice"),
        (softmax("a", "b"), LABELS, {"negative": ["a", "a"], "positive": ["b"]},
         "names the class 'a' twice"),
        (softmax("a", "b"), LABELS, {"negative": ["a"], "neutral": ["b"]}, "no class is positive"),
        (softmax("a", "b"), TOXIC, {"toxic": ["a"], "positive": ["b"]},
         "`labels` has 'positive', and the labels of the study are harmless, toxic"),
        (PROBABILITY, TOXIC, {}, "gives a probability of its own for each class, so that"),
        (PROBABILITY, LABELS, {"neutral": ["LABEL_0"]}, "have to be named"),
        (NUMBER, LABELS, {"positive": ["LABEL_0"]}, "gives a number, and `thresholds` are missing"),
    ],
)  # fmt: skip
def test_what_does_not_tell_the_labels_is_one_line(
    head: TrainedHead, labels: tuple[str, ...], classes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        rule_of(head, labels, classes)
    line = str(caught.value)
    assert line.startswith("m: method 'classify': ")
    assert message in line
    assert "\n" not in line
    # The option to paste is one that the method takes.
    pasted = yaml.safe_load(line[line.index("{kind") : line.rindex("}") + 1])
    if len(head.classes) < 4:
        method = Classify(**pasted)
        assert rule_of(head, labels, dict(method.labels), method.thresholds)


@pytest.mark.parametrize("thresholds", [(0.2, 0.1), (0.1, 0.1), (0.1, 0.2, 0.3)])
def test_thresholds_ascend_and_part_the_labels(thresholds: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="part 3 labels by one number, or 2, ascending"):
        rule_of(NUMBER, LABELS, {"positive": ["LABEL_0"]}, thresholds)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"id2label": {"0": "a", "1": "a", "2": "b"}}, "does not name 3 different classes"),
        ({"id2label": {"1": "a", "2": "b", "3": "c"}}, "does not name 3 different classes"),
        ({"model_type": "clip"}, "transformers has no classification head"),
    ],
)
def test_checkpoints_without_classes_are_refused(
    config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    transformers.BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
        id2label=dict(enumerate(classifiers.SENTIMENT)), num_labels=3,
    ).save_pretrained(tmp_path)  # fmt: skip
    classifiers.edit_config(tmp_path, config)
    with pytest.raises(ModelError, match=message) as caught:
        read_head(Backbone(id=str(tmp_path)))
    assert "; give" in str(caught.value) or "; choose" in str(caught.value)


def test_classes_without_names_are_asked_for_with_examples(tmp_path: Path) -> None:
    folder = classifiers.save("bert", tmp_path, ("LABEL_0", "LABEL_1", "LABEL_2"))
    with pytest.raises(ConfigError) as caught:
        Classify().fit(Backbone(id=str(folder)), "strict", LABELS)
    line = str(caught.value)
    assert line.count(" of 'This is ") == 2
    assert line.count(" of 'The meeting is on Tuesday.'") == 1
    assert 'labels: {negative: ["LABEL_0"], neutral: ["LABEL_1"], positive: ["LABEL_2"]}' in line


@pytest.mark.parametrize("kind", ["bert", "distilbert", "gpt2", "bart"])
@pytest.mark.parametrize(
    ("classes", "problem", "thresholds"),
    [
        (("toxic", "insult", "threat"), "multi_label_classification", ()),
        (("toxic",), None, (0.4,)),
        (("toxic",), "regression", (0.1,)),
    ],
)
def test_probabilities_and_numbers_are_the_pipelines(
    kind: str,
    classes: tuple[str, ...],
    problem: str | None,
    thresholds: tuple[float, ...],
    tmp_path: Path,
) -> None:
    folder = classifiers.save(kind, tmp_path, classes, problem_type=problem)
    sentences = classifiers.texts(12)
    expected_NC = classifiers.of_pipeline(folder, sentences)
    classifier = PublishedClassifier(Backbone(id=str(folder)))
    found_NC = classifier.outputs(classifier.encoder.encode(sentences))
    np.testing.assert_allclose(found_NC, expected_NC, atol=1e-5)
    method = Classify(labels={"toxic": "toxic"}, thresholds=thresholds)
    labels, scores = answers(method, folder, sentences, TOXIC)
    bound = thresholds[0] if thresholds else 0.5
    assert (labels == (expected_NC[:, 0] >= bound)).all()
    order = np.argsort(expected_NC[:, 0])
    assert (np.diff(scores[order, 1] - scores[order, 0]) >= -1e-6).all()


def test_long_texts_are_cut_as_the_pipeline_cuts_them(bert: Path) -> None:
    """And counted, only if the study says so."""
    long = [" ".join(zoo.WORDS[: zoo.CONTEXT + more]) for more in (-2, -1, 40)]
    pipeline = transformers.pipeline("text-classification", model=str(bert), device="cpu")
    pipeline.tokenizer.model_max_length = zoo.CONTEXT
    expected = [
        LABELS.index(answer["label"]) for answer in pipeline(long, truncation=True, batch_size=1)
    ]
    method = Classify(truncate=True)
    found, _ = answers(method, bert, long)
    assert found.tolist() == expected
    method.check(inputs(bert, long))
    (note,) = method.notes(inputs(bert, long))
    assert "2 of the 3 texts of mine are longer than 128 tokens and are cut at their end" in note
    assert method.notes(inputs(bert, long[:1])) == []


def inputs(folder: Path, sentences: list[str]) -> Inputs:
    backbone = Backbone(id=str(folder))
    frame = pl.DataFrame({"item_id": [f"i{n}" for n in range(len(sentences))], "text": sentences})
    return Inputs(
        backbone=backbone,
        tokens=TokenCounts(load_tokenizer(backbone)),
        words=LABELS,
        labels=LABELS,
        items={"mine": frame},
        sentences={},
    )


@pytest.mark.parametrize("kind", ["bert", "roberta", "modernbert", "gpt2"])
@pytest.mark.parametrize("whole", [True, False])
def test_weights_without_the_head_are_refused(kind: str, whole: bool, tmp_path: Path) -> None:
    """Taken from a file, or of the language model that has the same base."""
    folder = classifiers.save(kind, tmp_path, classifiers.SENTIMENT)
    if whole:
        auto = transformers.AutoModelForCausalLM
        if kind != "gpt2":
            auto = transformers.AutoModelForMaskedLM
        auto.from_config(zoo.small_config(kind)).save_pretrained(tmp_path / "base")
        weights = load_file(tmp_path / "base" / "model.safetensors")
    else:
        weights = load_file(folder / "model.safetensors")
        heads = [name for name, weight in weights.items() if len(weight) == 3]
        weights = {name: weight for name, weight in weights.items() if name not in heads}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    assert not has_trained_head(Backbone(id=str(folder)))
    method = Classify().fit(Backbone(id=str(folder)), "strict", LABELS)
    for refuse in (
        lambda: method.check(inputs(folder, ["w1"])),
        lambda: PublishedClassifier(Backbone(id=str(folder))),
    ):
        with pytest.raises(ModelError, match=r"has no trained classification head \(its") as caught:
            refuse()
        assert str(caught.value).endswith("; use lora, full or soft_prompt to train one")


def test_texts_longer_than_the_context_are_refused(bert: Path) -> None:
    method = Classify().fit(Backbone(id=str(bert)), "strict", LABELS)
    long = " ".join(zoo.WORDS[: zoo.CONTEXT - 1])
    fits = " ".join(zoo.WORDS[: zoo.CONTEXT - 2])
    method.check(inputs(bert, [fits]))
    with pytest.raises(BadInput, match=r"1 of 2 texts are longer than the 128 tokens"):
        method.check(inputs(bert, [fits, long]))


def test_the_precision_is_that_of_the_weights_unless_it_is_named(tmp_path: Path) -> None:
    folder = classifiers.save("bert", tmp_path, classifiers.SENTIMENT)
    found = [
        Classify(**own).fit(Backbone(id=str(folder), **named), "strict", LABELS).dtype
        for own, named in (
            ({}, {}), ({}, {"dtype": "bfloat16"}), ({"dtype": "float16"}, {"dtype": "bfloat16"}),
        )
    ]  # fmt: skip
    assert found == ["float32", "bfloat16", "float16"]
    classifiers.edit_config(folder, {"dtype": "bfloat16"})
    assert Classify().fit(Backbone(id=str(folder)), "strict", LABELS).dtype == "bfloat16"
