"""Published classifiers are read as transformers' pipeline reads them, or refused in one line."""

from __future__ import annotations

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
from raybias.engine.published import PublishedClassifier, class_names, has_trained_head
from raybias.errors import BadInput, ConfigError, ModelError
from raybias.methods import Classify, Inputs
from raybias.methods.base import text_items
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


def answers(method: Classify, folder: Path, sentences: list[str]) -> tuple[Any, Any]:
    """Labels [N] and scores [N, 3] of sentences, by the method's own reader."""
    backbone = Backbone(id=str(folder))
    fitted = method.fit(backbone, "strict", LABELS)
    reader = fitted.reader(ModelContext(backbone), Store(folder))
    items = text_items([str(n) for n in range(len(sentences))], sentences)
    table, tokens = reader.prepare(reader.load("any"), items)()
    assert tokens == sum(len(row) for row in reader.classifier.encoder.ids(sentences))
    return np.array(table["pred"].to_pylist()), np.array(table["scores"].to_pylist())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [2, 3, 5])
def test_probabilities_are_the_pipelines(kind: str, count: int, tmp_path: Path) -> None:
    folder = classifiers.save(kind, tmp_path, CLASSES[count], **FIELDS.get(kind, {}))
    sentences = classifiers.texts(12)
    expected_NC = classifiers.of_pipeline(folder, sentences)
    classifier = PublishedClassifier(Backbone(id=str(folder)))
    found_NC = classifier.probabilities(classifier.encoder.encode(sentences))
    assert classifier.classes == [*CLASSES[count]]
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
    found_NC = classifier.probabilities(classifier.encoder.encode(sentences))
    np.testing.assert_allclose(found_NC, classifiers.of_pipeline(folder, sentences), atol=1e-5)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return classifiers.save("bert", tmp_path_factory.mktemp("bert"), classifiers.SENTIMENT)


@given(st.lists(st.sampled_from(range(3)), min_size=2, max_size=8), st.randoms())
def test_any_partition_of_the_classes_is_a_map(places: list[int], random: Any) -> None:
    """Probabilities of a label's classes are added; without negative or positive it is refused."""
    classes = [f"class {n}" for n in range(len(places))]
    order = list(range(len(places)))
    random.shuffle(order)
    labels: dict[str, list[str]] = {}
    for n in order:
        labels.setdefault(LABELS[places[n]], []).append(classes[n])
    method = Classify(labels=labels)
    if {0, 2} <= {*places}:
        assert [*method.label_places(classes, where="m").values()] == places
        return
    lacking = "negative" if 0 not in places else "positive"
    with pytest.raises(ConfigError, match=f"no class is {lacking}"):
        method.label_places(classes, where="m")


@given(st.permutations(["negative", "neutral", "positive"]), st.sampled_from([0, 3]), st.data())
def test_unmistakable_names_need_no_map(order: list[str], short: int, data: Any) -> None:
    names = [name[: short or None] for name in order]
    cased = [data.draw(st.sampled_from([str.upper, str.lower, str.capitalize]))(n) for n in names]
    two = [name for name in cased if not name.lower().startswith("neu")]
    for classes in (cased, two):
        places = Classify().label_places(classes, where="m")
        assert [LABELS[place][:3] for place in places.values()] == [n.lower()[:3] for n in classes]


@pytest.mark.parametrize(
    ("classes", "labels", "message"),
    [
        (["LABEL_0", "LABEL_1"], {},
         "it is not clear which label each class is; the model's classes are LABEL_0, LABEL_1; say"
         " in the study which label each is, such as {kind: classify, labels: {negative:"
         ' ["LABEL_0"], positive: ["LABEL_1"]}} if that is what they mean'),
        (["1 star", "2 stars", "3 stars"], {}, 'neutral: ["2 stars"], positive: ["3 stars"]}'),
        (["negative", "NEG", "positive"], {}, "it is not clear which label each class is"),
        (["negative", "neutral"], {}, "no class is positive"),
        (["toxic", "neutral"], {}, "it is not clear"),
        (["a", "b"], {"negative": ["a"]}, "leaves out the class 'b'"),
        (["a", "b"], {"negative": ["a"], "positive": ["b", "c"]},
         "names the class 'c', which the model lacks; the model's classes are a, b"),
        (["a", "b"], {"negative": ["a", "b"], "positive": ["b"]}, "names the class 'b' twice"),
        (["a", "b"], {"negative": ["a", "a"], "positive": ["b"]}, "names the class 'a' twice"),
        (["a", "b"], {"negative": ["a"], "neutral": ["b"]}, "no class is positive"),
    ],
)  # fmt: skip
def test_a_wrong_map_is_one_line(classes: list[str], labels: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Classify(labels=labels).label_places(classes, where="m")
    line = str(caught.value)
    assert line.startswith("m: method 'classify': ")
    assert message in line
    assert "\n" not in line
    # The option to paste is one that the method takes.
    pasted = yaml.safe_load(line[line.index("{kind") : line.rindex("}") + 1])
    if len(classes) < 4:
        assert Classify(**pasted).label_places(classes, where="m")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"problem_type": "multi_label_classification"}, "with problem_type multi_label"),
        ({"problem_type": "regression"}, "with problem_type regression"),
        ({"id2label": {"0": "score"}, "label2id": {"score": 0}}, "with one output"),
        ({"id2label": {"0": "a", "1": "a", "2": "b"}}, "does not name 3 different classes"),
        ({"id2label": {"1": "a", "2": "b", "3": "c"}}, "does not name 3 different classes"),
        ({"model_type": "clip"}, "transformers has no classification head"),
    ],
)
def test_other_heads_are_refused(config: dict[str, Any], message: str, tmp_path: Path) -> None:
    transformers.BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
        id2label=dict(enumerate(classifiers.SENTIMENT)), num_labels=3,
    ).save_pretrained(tmp_path)  # fmt: skip
    classifiers.edit_config(tmp_path, config)
    with pytest.raises(ModelError, match=message) as caught:
        class_names(Backbone(id=str(tmp_path)))
    assert "; give" in str(caught.value) or "; choose" in str(caught.value)


def inputs(folder: Path, sentences: list[str]) -> Inputs:
    backbone = Backbone(id=str(folder))
    frame = pl.DataFrame({"item_id": [f"i{n}" for n in range(len(sentences))], "text": sentences})
    return Inputs(
        backbone=backbone, tokens=TokenCounts(load_tokenizer(backbone)),
        labels=LABELS, words=LABELS, items={"mine": frame}, sentences={},
    )  # fmt: skip


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
