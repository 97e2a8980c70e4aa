"""Small random checkpoints of every causal and masked architecture that transformers can build.

Sizes are set by the names of a config's fields; architectures that need more have a line in
`FURTHER_FIELDS`. Weights are large enough that logits differ as much as a trained model's.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import processors
from transformers import CONFIG_MAPPING, PretrainedConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
)

from support.words import word_tokenizer

#: Tokens of every row's vocabulary.
LABELS = ("negative", "neutral", "positive")
WORDS = tuple(f"w{n}" for n in range(245))
SPECIALS = ("<pad>", "</s>", "<s>", "<unk>", "<mask>")
VOCABULARY = (*SPECIALS, *LABELS, *WORDS)
#: Attention windows and chunks of every architecture that has one; rows of the tests cross them.
WINDOW = 16
CONTEXT = 128
LAYERS = 2
#: An architecture whose smallest build has more weights is left out.
MAX_WEIGHTS = 10_000_000

_WIDTHS = ("hidden_size", "n_embd", "d_model", "dim", "emb_dim", "embedding_size", "lru_width")
_INNER = ("intermediate_size", "ffn_dim", "d_ff", "hidden_dim", "n_inner", "d_inner", "dim_ff")
_INNER_ALSO = ("intermediate_size_mlp", "encoder_ffn_dim", "decoder_ffn_dim", "moe_ffn_hidden_size")
_COUNTS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers")
_COUNTS_ALSO = ("decoder_layers", "num_encoder_layers", "num_decoder_layers")
_HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads")
_HEADS_ALSO = (
    "decoder_attention_heads",
    "num_encoder_attention_heads",
    "num_decoder_attention_heads",
)
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
_CONTEXTS = ("max_position_embeddings", "n_positions", "n_ctx", "context_length", "max_seq_len")
_WINDOWS = ("sliding_window", "attention_chunk_size", "window_size", "attention_window_size")
_LOW_RANKS = ("q_lora_rank", "kv_lora_rank", "qk_head_dim", "state_size", "time_step_rank")

SIZES: dict[str, Any] = {
    "vocab_size": len(VOCABULARY),
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 2,
    "initializer_range": 0.3,
    "init_std": 0.3,
    "head_dim": 8,
    "num_key_value_heads": 2,
    "word_embed_proj_dim": 32,
    "num_experts_per_tok": 2,
    "moe_k": 2,
    "moe_topk": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "shared_intermediate_size": 32,
    "n_shared_experts": 1,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "vocab_size_per_layer_input": len(VOCABULARY),
    "hidden_size_per_layer_input": 8,
    "global_head_dim": 16,
    "laurel_rank": 8,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 8,
    "v_head_dim": 8,
    "mamba_d_state": 8,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_ssm": 64,
    "mamba_n_groups": 1,
    "mamba_num_heads": 4,
    "mamba_head_dim": 16,
    "ssm_state_size": 8,
    "n_groups": 1,
    "mamba_ngroups": 1,
    **dict.fromkeys(_WIDTHS, 32),
    **dict.fromkeys((*_INNER, *_INNER_ALSO), 64),
    **dict.fromkeys((*_COUNTS, *_COUNTS_ALSO), LAYERS),
    **dict.fromkeys((*_HEADS, *_HEADS_ALSO), 4),
    **dict.fromkeys(_EXPERTS, 4),
    **dict.fromkeys(_CONTEXTS, CONTEXT),
    **dict.fromkeys(_WINDOWS, WINDOW),
    **dict.fromkeys(_LOW_RANKS, 16),
}
_ALL_HEADS_HAVE_KEYS = {"num_key_value_heads": 4}
_ROTARY = {"rotary_dim": 8}
FURTHER_FIELDS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(
        (
            *("axk1", "axk2", "bailing_hybrid", "deepseek_v2", "deepseek_v3", "deepseek_v32"),
            *("esmc", "glm4_moe_lite", "glm_moe_dsa", "kimi_linear", "longcat_flash", "minicpm3"),
            "youtu",
        ),
        _ALL_HEADS_HAVE_KEYS,
    ),
    "bamba": {"attn_layer_indices": [1]},
    "codegen": _ROTARY,
    "gptj": _ROTARY,
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "gemma3n_text": {"num_kv_shared_layers": 0, "activation_sparsity_pattern": [0.0, 0.0]},
    "gemma4_text": {"num_kv_shared_layers": 0},
    "gemma4_unified_text": {"num_kv_shared_layers": 0},
    "qwen2": {"use_sliding_window": True, "max_window_layers": 0},
    "roc_bert": {
        "pronunciation_vocab_size": 40,
        "pronunciation_embed_dim": 16,
        "shape_vocab_size": 40,
        "shape_embed_dim": 16,
    },
    "xmod": {"default_language": "en_XX"},
    "zaya": {"num_experts_per_tok": 1},
}


def small_config(kind: str, **more: Any) -> PretrainedConfig:
    """A config of an architecture with every known size made small."""
    config_class = CONFIG_MAPPING[kind]
    parts = getattr(config_class, "sub_configs", {})
    if "text_config" in parts:
        default = config_class()
        inner = {name: _small_part(type(getattr(default, name))) for name in parts}
        return config_class(**inner)
    fields = _small_fields(config_class) | FURTHER_FIELDS.get(kind, {}) | more
    return config_class(**fields)


def _small_part(config_class: type[PretrainedConfig]) -> Mapping[str, Any]:
    fields = _small_fields(config_class) if dataclasses.is_dataclass(config_class) else {}
    return fields | FURTHER_FIELDS.get(getattr(config_class, "model_type", ""), {})


def _small_fields(config_class: type[PretrainedConfig]) -> dict[str, Any]:
    kind = getattr(config_class, "model_type", "")
    known = {field.name for field in dataclasses.fields(config_class)}
    fields = {name: size for name, size in SIZES.items() if name in known}
    default = config_class()
    for name in ("sliding_window", "q_lora_rank"):
        # Without one by default, as most Llama-like models are.
        if getattr(default, name, None) is None and not FURTHER_FIELDS.get(kind, {}).get(
            "use_sliding_window"
        ):
            fields.pop(name, None)
    if "layer_types" in known and default.layer_types:
        kinds = list(dict.fromkeys(default.layer_types))
        fields["layer_types"] = (kinds * LAYERS)[: max(LAYERS, len(kinds))]
        fields["num_hidden_layers"] = len(fields["layer_types"])
    return {name: size for name, size in fields.items() if name not in FURTHER_FIELDS.get(kind, {})}


def causal_kinds() -> list[str]:
    """Every model type that transformers has a causal language model for."""
    return list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def masked_kinds() -> list[str]:
    """Every model type that transformers has a masked language model for."""
    return list(MODEL_FOR_MASKED_LM_MAPPING_NAMES)


def classifier_kinds() -> list[str]:
    """Every model type that transformers has a classification head for."""
    return list(MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES)


def build(kind: str, *, masked: bool, dtype: torch.dtype = torch.float32, **fields: Any) -> Any:
    """A random model, with other `fields` of its config if asked for.

    Raises ValueError: larger than `MAX_WEIGHTS`; anything: it has no forward pass of text.
    """
    auto = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = small_config(kind, **fields)
        with torch.device("meta"):
            weights = sum(each.numel() for each in auto.from_config(config).parameters())
        if weights > MAX_WEIGHTS:
            raise ValueError(f"its smallest build has {weights:,} weights")
        torch.manual_seed(0)
        model = auto.from_config(config).eval()
        with torch.no_grad():
            model(input_ids=torch.tensor([[9, 10, 11, 12]]))
    return model.to(dtype)


def save(
    kind: str, folder: Path, *, masked: bool, dtype: torch.dtype = torch.float32, **fields: Any
) -> Path:
    """A saved random checkpoint with a tokenizer of whole words; arguments as of `build`."""
    build(kind, masked=masked, dtype=dtype, **fields).save_pretrained(folder)
    names = ("pad_token", "eos_token", "bos_token", "unk_token", "mask_token")
    specials = dict(zip(names, SPECIALS, strict=True))
    if masked:
        specials |= {"cls_token": "<s>", "sep_token": "</s>"}
    tokenizer = word_tokenizer(VOCABULARY, **specials)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        "<s> $A </s>" if masked else "<s> $A", special_tokens=[("<s>", 2), ("</s>", 1)]
    )
    tokenizer.save_pretrained(folder)
    return folder
