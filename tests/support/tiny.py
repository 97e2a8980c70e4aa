"""A random OPT of 60 words, and a study of it that real Ray runs in seconds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import torch
import yaml
from transformers import OPTConfig, OPTForCausalLM

from raybias.schema import LABELS
from support.words import word_tokenizer

WORDS = [f"w{i}" for i in range(60)]


def save_model(folder: Path, *, positions: int = 64) -> Path:
    """A model and tokenizer in `folder`; width 32."""
    vocabulary = ["<pad>", "</s>", *LABELS, *WORDS]
    word_tokenizer(
        vocabulary, bos_token="</s>", eos_token="</s>", pad_token="<pad>"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    OPTForCausalLM(
        OPTConfig(
            vocab_size=len(vocabulary),
            hidden_size=32,
            word_embed_proj_dim=32,
            ffn_dim=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=positions,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=1,
            init_std=0.4,
        )
    ).save_pretrained(folder)
    return folder


def texts(count: int, *, seed: int, longest: int = 40) -> list[str]:
    """Sentences of 2 to `longest` words."""
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(WORDS, random.integers(2, longest))) for _ in range(count)]


def save_study(folder: Path, *, items: int = 240, longest: int = 12) -> Path:
    """A study file with its model, training set and probe, all in `folder`."""
    save_model(folder / "tiny")
    sentences = folder / "sentences"
    sentences.mkdir()
    for seed, (split, count) in enumerate({"train": 48, "validation": 24}.items()):
        pl.DataFrame(
            {"text": texts(count, seed=seed, longest=8), "label": [i % 3 for i in range(count)]}
        ).write_csv(sentences / f"{split}.csv")
    pl.DataFrame(
        {
            "text": texts(items, seed=9, longest=longest),
            "label": [i % 3 for i in range(items)],
            "attribute": "colour",
            "group": [("red", "blue", "green")[i // 3 % 3] for i in range(items)],
            "template_id": [f"t{i // 9}" for i in range(items)],
        }
    ).write_csv(folder / "probe.csv")
    study = {
        "name": "tiny",
        "backbones": [{"id": "tiny", "dtype": "float32", "bos": "prepend"}],
        "training": [{"source": "file", "name": "sentences", "data": "sentences"}],
        "methods": [
            {
                "prompt_length": 4,
                "learning_rates": [0.01],
                "seeds": [1, 2, 3],
                "keep": 2,
                "max_steps": 10,
                "eval_every": 5,
                "early_stop": {"after_step": 5},
            }
        ],
        "probes": [{"source": "file", "name": "mine", "data": "probe.csv"}],
        "resources": {"rows_per_shard": 16, "train_workers": 1, "replicas_max": 1},
    }
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(study))
    return path
