"""Tiny random T5s and judges that read the words `w0` to `w89`, saved as real ones are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import polars as pl
import torch
import transformers
from tokenizers import processors

from raybias.config import Study, parse_study
from support import prompting
from support.words import word_tokenizer

WORDS = ["<pad>", "</s>", "<unk>", *(f"w{n}" for n in range(90))]


def save_t5(folder: Path) -> Path:
    """A T5 in `folder` most of whose draws end after a few words."""
    save_tokenizer(folder, pairs=False)
    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=len(WORDS),
        d_model=32,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        dropout_rate=0.3,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
    )
    model = transformers.T5ForConditionalGeneration(config)
    with torch.no_grad():
        model.lm_head.weight.normal_(std=0.4)
        # The end token is likely enough that most draws end.
        model.shared.weight[1] *= 3
    # What the checkpoint would generate with must not matter.
    model.generation_config.no_repeat_ngram_size = 1
    model.generation_config.suppress_tokens = [5, 6]
    model.save_pretrained(folder)
    return folder


def save_judge(folder: Path) -> Path:
    """A classifier of two sentences, with 80 positions, in `folder`."""
    save_tokenizer(folder, pairs=True)
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=len(WORDS),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=80,
        initializer_range=0.4,
        pad_token_id=0,
        num_labels=2,
    )
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def save_tokenizer(folder: Path, *, pairs: bool) -> None:
    """The words' tokenizer, which may join two sentences."""
    inputs = ["input_ids", "attention_mask"] + ["token_type_ids"] * pairs
    made = word_tokenizer(
        WORDS, unknown="<unk>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>",
        model_input_names=inputs,
    )  # fmt: skip
    made.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>",
        pair="$A </s> $B:1 </s>:1" if pairs else "$A </s> $B </s>",
        special_tokens=[("</s>", 1)],
    )
    made.save_pretrained(folder)


def save_pairs(folder: Path) -> Path:
    """Seventy pairs of these words, as `pairs.csv` in `folder`."""
    rows = range(70)
    pl.DataFrame(
        {
            "sent_more": [f"w1 w{n} w5" for n in rows],
            "sent_less": [f"w2 w{n} w5" for n in rows],
            "bias_type": ["age"] * 70,
        }
    ).write_csv(folder / "pairs.csv")
    return folder / "pairs.csv"


def save(folder: Path) -> Path:
    """What `study` names, in `folder`: a backbone, a T5, a judge and pairs."""
    prompting.save("gpt2", folder / "tiny")
    save_t5(folder / "t5")
    save_judge(folder / "judge")
    save_pairs(folder)
    return folder


def study(folder: Path, sections: Mapping[str, Any], **change: Any) -> Study:
    """A study whose style `formal` the T5 makes; `change` is of how it makes it."""
    made = {
        "model": str(folder / "t5"), "instruction": "", "candidates": 5, "max_length": 24,
        "adequacy": {"model": str(folder / "judge"), "threshold": 0.05}, **change,
    }  # fmt: skip
    return parse_study(
        {
            "name": "styled",
            "backbones": [{"id": str(folder / "tiny"), "dtype": "float32", "bos": "prepend"}],
            "methods": [{"kind": "pair_score", "scores": ["prepend"]}],
            "pairs": [{"source": "pairs", "name": "mine", "data": str(folder / "pairs.csv")}],
            "styles": {"names": ["formal", "original"], "rewriting": {"formal": made}, "seed": 3},
            **sections,
        }
    )
