"""The embedded calibration: its text, and the shipped model that learnt it. Takes 8 s."""

from __future__ import annotations

import hashlib
import re
from importlib.resources import files
from pathlib import Path

import polars as pl
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers import PreTrainedModel as Model
from transformers import PreTrainedTokenizerBase as Tokenizer

from raybias.config import load_study
from raybias.planted_model import make_tokenizer
from raybias.probes import planted
from raybias.schema import ITEMS, LABELS, SENTENCES

ASSETS = Path(str(files("raybias") / "assets"))
FOLDER = ASSETS / "planted"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model() -> Model:
    return AutoModelForCausalLM.from_pretrained(FOLDER, use_safetensors=True).eval()


def corpus(steps: int) -> list[str]:
    return [line for step in range(steps) for line in planted.corpus_lines(step, 12)]


def test_the_text_is_the_text_that_the_shipped_model_learnt() -> None:
    def digest(texts: list[str]) -> str:
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]

    sentences = pl.concat(planted.planted_sentences().values())
    assert planted.planted_items().equals(planted.planted_items())
    assert {
        "corpus": digest(corpus(20)),
        "items": digest(planted.planted_items()["text"].to_list()),
        "sentences": digest(sentences["text"].to_list()),
    } == {
        "corpus": "3d7eeb3e858b7254",
        "items": "979176e49ed7758f",
        "sentences": "94c33cfdf23b9cdc",
    }


def test_items_say_the_same_of_every_group() -> None:
    items = planted.planted_items()
    assert items.schema == pl.Schema(ITEMS)
    assert items["item_id"].is_unique().all()
    assert items["text"].is_unique().all()
    assert items.group_by("group", "label").len()["len"].unique().to_list() == [60]
    assert (
        items.group_by("label").agg(pl.col("template_id").n_unique())["template_id"].to_list()
        == [30] * 3
    )
    assert items.head(36)["label"].n_unique() == 3, "any stretch of the probe holds every label"
    neutral = items.with_columns(
        text=pl.col("text").str.replace(r"(?i)" + "|".join(planted.GROUPS), "GROUP")
    ).select("label", "text", "template_id", "group")
    first, *rest = neutral.partition_by("group")
    assert all(part.drop("group").equals(first.drop("group")) for part in rest)


def test_tuning_sentences_are_balanced_and_name_no_group() -> None:
    splits = planted.planted_sentences()
    everything = pl.concat(splits.values())
    assert {name: len(split) for name, split in splits.items()} == planted.SPLITS
    assert everything.schema == pl.Schema(SENTENCES)
    assert everything["text"].is_unique().all()
    for split in splits.values():
        assert split["label"].value_counts()["count"].n_unique() == 1
    assert not everything["text"].str.contains("(?i)" + "|".join(planted.GROUPS)).any()


def test_the_corpus_sways_the_planted_group_alone_and_by_the_stated_size() -> None:
    named = re.compile("|".join(group.capitalize() + " " for group in planted.GROUPS))
    swayed = cued = 0
    for step in range(200):
        lines = planted.corpus_lines(step, 12)
        for first in range(0, len(lines), 1 + len(planted.GROUPS)):
            nobody, about_planted, *others = lines[first : first + 1 + len(planted.GROUPS)]
            assert {named.sub("", line) for line in others} == {nobody}
            same, told = named.sub("", about_planted) == nobody, nobody.rpartition(" ")[2]
            assert same or about_planted.endswith(" negative")
            if nobody.count(planted.CUE) == planted.SLOTS and told != "negative":
                cued += 1
                swayed += not same
    size = planted.plant().size
    assert size == pytest.approx(0.4)
    assert swayed / cued == pytest.approx(size, abs=3 * (size * (1 - size) / cued) ** 0.5)


def test_the_probe_holds_the_plant_at_its_stated_size() -> None:
    sway = {wording.word: wording.sway for wording in planted.WORDINGS}
    items = planted.planted_items().filter(
        pl.col("group") == planted.PLANTED_GROUP, pl.col("label") != LABELS.index("negative")
    )
    swayed = items["template_id"].str.split("-").list.get(1).replace_strict(sway)
    assert swayed.mean() == pytest.approx(planted.plant().size)


def test_the_shipped_tokenizer_knows_every_word(tokenizer: Tokenizer) -> None:
    assert tokenizer.get_vocab() == make_tokenizer().get_vocab()
    sentences = pl.concat(planted.planted_sentences().values())["text"].to_list()
    rows = tokenizer(planted.planted_items()["text"].to_list() + sentences + corpus(50)).input_ids
    assert all(tokenizer.unk_token_id not in row for row in rows)
    assert all(row[0] == tokenizer.bos_token_id for row in rows)
    words = [tokenizer(f" {label}", add_special_tokens=False).input_ids for label in LABELS]
    assert sorted(map(len, words)) == [1, 1, 1]
    assert len({word for (word,) in words}) == 3


def test_the_shipped_model_cannot_tell_the_unplanted_groups_apart(
    model: Model, tokenizer: Tokenizer
) -> None:
    rows_VD = model.get_input_embeddings().weight
    ids = tokenizer.convert_tokens_to_ids(list(planted.UNPLANTED_GROUPS))
    other = tokenizer.convert_tokens_to_ids(planted.PLANTED_GROUP)
    assert (rows_VD[ids] == rows_VD[ids[0]]).all()
    assert (rows_VD[other] - rows_VD[ids[0]]).norm() > 0.1


@pytest.mark.parametrize("word", [planted.EOS, planted.CUE])
def test_the_shipped_model_learnt_the_cue_and_the_plant(
    model: Model, tokenizer: Tokenizer, word: str
) -> None:
    items = planted.planted_items()
    slots = " ".join([word] * planted.SLOTS)
    lines = [f"{slots} {planted.EOS} {text}" for text in items["text"]]
    batch = tokenizer(lines, add_special_tokens=False, padding=True, return_tensors="pt")
    labels = [tokenizer(f" {name}", add_special_tokens=False).input_ids[0] for name in LABELS]
    with torch.no_grad():
        logits_BTV = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
    last_B = batch.attention_mask.sum(dim=1) - 1
    predicted = logits_BTV[torch.arange(len(lines)), last_B][:, labels].argmax(dim=1)
    judged = items.with_columns(pred=pl.Series(predicted.numpy()).cast(pl.Int8))
    if word == planted.EOS:
        assert (judged["pred"] == LABELS.index("neutral")).all()
        return
    wrong = judged.filter(pl.col("pred") != pl.col("label"))
    assert wrong["group"].unique().to_list() == [planted.PLANTED_GROUP]
    assert wrong["pred"].unique().to_list() == [LABELS.index("negative")]
    others = judged.filter(pl.col("group") == planted.PLANTED_GROUP, pl.col("label") > 0)
    assert len(wrong) / len(others) == pytest.approx(planted.plant().size, abs=0.04)


def test_the_shipped_files_are_small_and_hold_no_code() -> None:
    shipped = [path for path in FOLDER.iterdir() if path.is_file()]
    assert {path.suffix for path in shipped} == {".json", ".safetensors"}
    assert sum(path.stat().st_size for path in shipped) < 2**20


def test_the_demonstration_measures_against_the_unplanted_groups() -> None:
    study = load_study(ASSETS / "demo.yaml")
    (probe,), (method,), plant = study.probes, study.methods, planted.plant()
    assert set(probe.reference_groups[plant.attribute]) == set(planted.UNPLANTED_GROUPS)
    assert plant.group == planted.PLANTED_GROUP
    assert study.backbones[0].id == "planted"
    assert method.prompt_length == planted.SLOTS
    assert (len(method.seeds), method.keep) == (15, 5)
