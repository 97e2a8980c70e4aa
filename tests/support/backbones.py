"""Tiny random models of several architectures, saved and loaded as real ones are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import transformers

from raybias.config import Backbone
from raybias.engine.adapters.base import AdapterTrainer
from raybias.engine.adapters.tuning import PackedTuner, Run, TokenSet, Trial
from raybias.engine.backbone import LoadedBackbone, load_backbone
from raybias.engine.context import Execution
from raybias.methods import Tuned
from raybias.schema import LABELS
from support.quantised import quantise
from support.words import word_tokenizer

WORDS = [f"w{i}" for i in range(90)]
VOCABULARY = ["<pad>", "</s>", *LABELS, *WORDS]
SIZES = {"vocab_size": len(VOCABULARY), "bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
GROUPED = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
OPT = {
    "hidden_size": 32,
    "ffn_dim": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "init_std": 0.3,
}

CONFIGS = {
    "opt": lambda: transformers.OPTConfig(**SIZES, **OPT, word_embed_proj_dim=32),
    # As OPT-350M: embeddings narrower than the model, normalised after each block.
    "opt_projected": lambda: transformers.OPTConfig(
        **SIZES, **OPT, word_embed_proj_dim=16, do_layer_norm_before=False
    ),
    "gpt2": lambda: transformers.GPT2Config(
        **SIZES, n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.3
    ),
    "llama": lambda: transformers.LlamaConfig(**SIZES, **GROUPED),
    "qwen2": lambda: transformers.Qwen2Config(**SIZES, **GROUPED),
    "mistral": lambda: transformers.MistralConfig(**SIZES, **GROUPED, sliding_window=48),
    "mixtral": lambda: transformers.MixtralConfig(
        **SIZES, **GROUPED, num_local_experts=4, num_experts_per_tok=2
    ),
    # These two are not read the fast way: ALiBi takes no tree, Cohere scales its logits.
    "bloom": lambda: transformers.BloomConfig(
        **SIZES, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.3
    ),
    "cohere": lambda: transformers.CohereConfig(**SIZES, **GROUPED, logit_scale=0.5),
}
#: Further ones that text is generated with. MPT's ALiBi counts places, padding too.
WRITERS = {
    "gpt_neox": lambda: transformers.GPTNeoXConfig(
        **SIZES, **{name: size for name, size in GROUPED.items() if name != "num_key_value_heads"}
    ),
    "mpt": lambda: transformers.MptConfig(**SIZES, d_model=32, n_heads=4, n_layers=2),
}
ENCODER = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 66,
    "initializer_range": 0.3,
    "pad_token_id": 0,
}
ENCODERS = {
    "bert": lambda: transformers.BertConfig(**ENCODER),
    # Its positions begin behind the padding token's id.
    "roberta": lambda: transformers.RobertaConfig(**ENCODER, type_vocab_size=1),
}
FURTHER = {
    **WRITERS,
    **ENCODERS,
    # As an encoder of sentences is saved, with the pooler that classifiers read.
    "bert_pooled": ENCODERS["bert"],
    # Its classifiers read the last position, and its `mask_emb` takes no part in them.
    "xlnet": lambda: transformers.XLNetConfig(
        d_model=32, n_layer=2, n_head=4, d_inner=64, initializer_range=0.3, pad_token_id=0
    ),
}
#: The architectures that the issue of packed tuning names.
TUNED = ("opt", "opt_projected", "gpt2", "llama", "qwen2", "mistral")


def save(
    kind: str, folder: Path, tokenizer: transformers.PreTrainedTokenizerFast | None = None
) -> Path:
    """A random model of `kind` (or a quantised one: `llama_int8`), by default of whole words.

    It has no classification head.
    """
    kind, _, bits = kind.partition("_int")
    masked = kind in ENCODERS
    auto = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
    auto = transformers.AutoModel if kind == "bert_pooled" else auto
    if bits:
        return quantise(save(kind, folder / "full"), folder, int(bits), auto)
    specials = {"bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>"}
    tokenizer = tokenizer or word_tokenizer(VOCABULARY, **specials)
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = (CONFIGS | FURTHER)[kind]()
    config.vocab_size = len(tokenizer)
    auto.from_config(config).save_pretrained(folder)
    return folder


def spec_of(kind: str, path: Path, *, dtype: str = "float32") -> Backbone:
    """A random model of `kind` in `path`, saved where it is not there yet."""
    folder = path if path.exists() else save(kind, path)
    return Backbone(id=str(folder), bos="prepend", dtype=dtype)


def load(kind: str, folder: Path, *, dtype: str = "float32") -> LoadedBackbone:
    """A random backbone of `kind`, through the code that loads real ones."""
    return load_backbone(spec_of(kind, folder / kind, dtype=dtype))


def tuner(
    trainer: AdapterTrainer,
    method: Tuned,
    trials: Sequence[Trial],
    rows: tuple[int, int] = (40, 21),
) -> PackedTuner:
    """These trials with so many rows to train on and to evaluate."""
    train, validation = (token_set(count, seed=seed) for seed, count in enumerate(rows, 5))
    return PackedTuner(trainer, method.recipe, trials, train=train, validation=validation)


def finished(packed: PackedTuner) -> dict[str, Run]:
    """Every unit's result, once all have stopped."""
    stopped: list[str] = []
    while evaluations := packed.advance():
        stopped += [each.run_id for each in evaluations if each.stop_reason]
    return {run_id: packed.runs[run_id] for run_id in stopped}


def with_budget(backbone: LoadedBackbone, tokens: int) -> LoadedBackbone:
    """The same backbone, read so many tokens at a time."""
    return LoadedBackbone(backbone.encoder, backbone.model, Execution(tokens))


def sentences(count: int, *, seed: int, longest: int = 12) -> list[str]:
    """Random sentences, many of which begin alike."""
    random = np.random.default_rng(seed)
    openings = [" ".join(random.choice(WORDS, n)) for n in (1, 3, 5)]
    return [
        " ".join([random.choice(openings), *random.choice(WORDS, random.integers(1, longest))])
        for _ in range(count)
    ]


def token_rows(count: int, *, seed: int) -> list[list[int]]:
    """The tokens of random sentences, as any tokenizer of one token a word has them."""
    return [
        [1, *(VOCABULARY.index(word) for word in sentence.split())]
        for sentence in sentences(count, seed=seed)
    ]


def token_set(count: int, *, seed: int) -> TokenSet:
    """Sentences of `count` rows with labels that depend on a word of theirs."""
    rows = token_rows(count, seed=seed)
    return TokenSet(tuple(map(tuple, rows)), tuple(row[-1] % 3 for row in rows))
