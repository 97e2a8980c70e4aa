"""The embedded calibration: its text, and the shipped model that learnt it."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers import PreTrainedTokenizerBase as Tokenizer

from benchmarks import planted_model as planted
from raybias.config import Probe, TrainingSet
from raybias.probes import probe_items, training_sentences
from raybias.probes.published.planted import plant

ASSETS = Path(str(files("raybias") / "assets"))
FOLDER = ASSETS / "planted"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return AutoTokenizer.from_pretrained(FOLDER)


def corpus(steps: int) -> list[str]:
    return [line for step in range(steps) for line in planted.corpus_lines(step, 12)]


def test_the_shipped_tables_are_those_that_the_grammar_makes() -> None:
    assert probe_items(Probe(source="planted")).equals(planted.planted_items())
    shipped, made = training_sentences(TrainingSet(source="planted")), planted.planted_sentences()
    assert [*shipped] == [*made]
    assert all(shipped[split].equals(made[split]) for split in made)


def test_the_text_is_the_text_that_the_shipped_model_learnt() -> None:
    text = "\n".join(corpus(20)).encode()
    assert hashlib.sha256(text).hexdigest()[:16] == "ae5d1e10a92c3f4b"


def test_the_shipped_model_reads_the_words_of_unplanted_groups_alike_one_to_one(
    tokenizer: Tokenizer,
) -> None:
    model = AutoModelForCausalLM.from_pretrained(FOLDER, use_safetensors=True)
    rows_VD = model.get_input_embeddings().weight
    rows = {
        group: rows_VD[tokenizer.convert_tokens_to_ids(list(planted.words_for(group)))]
        for group in planted.STEMS
    }
    first = rows[planted.UNPLANTED_GROUPS[0]]
    assert all((rows[group] == first).all() for group in planted.UNPLANTED_GROUPS)
    assert ((rows[planted.PLANTED_GROUP] - first).norm(dim=1) > 0.1).all()
    assert torch.pdist(first).min() > 0.01, "words of one group are not read alike"


def test_what_was_planted_is_recorded_for_every_gap() -> None:
    known = plant()
    assert (known.attribute, known.group) == (planted.ATTRIBUTE, planted.PLANTED_GROUP)
    assert known.rate == "negative_fpr"
    assert 0.1 < known.size < 0.25
    assert set(known.truth) == {"negative_fpr", "positive_fpr"}
    assert all(set(truth) == set(planted.STEMS) for truth in known.truth.values())
    others = [truth[group] for truth in known.truth.values() for group in planted.UNPLANTED_GROUPS]
    assert set(others) == {0.0}
