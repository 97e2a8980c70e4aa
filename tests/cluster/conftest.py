"""One real local Ray cluster for all tests of this folder."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from raybias.runtime.cluster import connected
from raybias.schema import LABELS

# Ray reads this when it is imported: a busy machine takes longer than its 30 s to start.
os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random OPT of two layers and a tokenizer of the words w0 to w39."""
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import OPTConfig, OPTForCausalLM, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("tiny")
    vocabulary = ["<pad>", "</s>", *LABELS, *(f"w{i}" for i in range(40))]
    tokenizer = Tokenizer(
        WordLevel({word: i for i, word in enumerate(vocabulary)}, unk_token="<pad>")
    )
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="</s>", eos_token="</s>", pad_token="<pad>"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    shape = OPTConfig(
        vocab_size=len(vocabulary),
        hidden_size=32,
        word_embed_proj_dim=32,
        ffn_dim=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=1,
        init_std=0.4,
    )
    OPTForCausalLM(shape).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A cluster of this machine's CPUs, four at least, that ends with the session.

    Four CPUs are four slots, not four cores: tests compute on one thread each.
    """
    import ray

    # Socket paths of Ray must stay short; pytest's own temporary folders are too deep.
    folder = tempfile.mkdtemp(prefix="rb", dir="/tmp")
    ray.init(
        address="local",
        num_cpus=4,
        _temp_dir=folder,
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=256 * 2**20,
    )
    try:
        with connected():
            yield
    finally:
        ray.shutdown()
        shutil.rmtree(Path(folder), ignore_errors=True)
