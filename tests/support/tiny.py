"""A random OPT of 60 words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import OPTConfig, OPTForCausalLM

from benchmarks import labelling
from raybias.config import Backbone
from raybias.engine.adapter_folder import ADAPTER_WEIGHTS, PROMPT
from raybias.engine.adapters.base import write_folder
from raybias.engine.backbone import load_backbone
from raybias.engine.encoder import verbalizer_ids
from raybias.schema import LABELS
from raybias.storage import Store
from support.words import word_tokenizer

#: Logits [N, K] by run.
Logits = dict[str, np.ndarray]
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


def save_prompts(store: Store, spec: Backbone, runs: Sequence[str], texts: Sequence[str]) -> Logits:
    """Random soft prompts of runs in an OUT; returns what the engine makes of texts, one by one."""
    backbone, found = load_backbone(spec), {}
    labeller = labelling.labeller(backbone, verbalizer_ids(backbone.tokenizer, LABELS))
    rows = [backbone.encoder.encode([text]) for text in texts]
    for seed, run_id in enumerate(runs, start=1):
        prompt_PD = torch.randn(4, 32, generator=torch.Generator().manual_seed(seed))
        tensors = {PROMPT: prompt_PD}
        folder = f"adapters/{run_id}"
        write_folder(store, folder, tensors, file=ADAPTER_WEIGHTS, parts=[], record={})
        found[run_id] = np.concatenate(
            [labelling.label_logits(labeller, row, prompt_PD).numpy() for row in rows]
        )
    return found
