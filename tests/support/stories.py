"""The trained stories260K checkpoint as a transformers folder.

    python tests/support/stories.py FOLDER_WITH_BIN_FILES OUT

The checkpoint and its tokenizer are the small binary files of llama2.c. Rotary
embeddings there turn neighbouring pairs, and here halves, so the rows of the query and
key projections are put in the other order.
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

import numpy as np
import torch
from tokenizers import AddedToken, Tokenizer, decoders, normalizers, processors
from tokenizers.models import BPE
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast


def convert(source: Path, out: Path) -> Path:
    """Write model and tokenizer of `source` to `out`."""
    _model(source / "stories260K.bin").save_pretrained(out)
    _tokenizer(source / "tok512.bin").save_pretrained(out)
    return out


def _model(path: Path) -> LlamaForCausalLM:
    data = path.read_bytes()
    dim, hidden, layers, heads, kv_heads, vocabulary, positions = struct.unpack("7i", data[:28])
    values = np.frombuffer(data, np.float32, offset=28)
    place = 0

    def take(*shape: int) -> torch.Tensor:
        nonlocal place
        size = int(np.prod(shape))
        place += size
        return torch.from_numpy(values[place - size : place].reshape(shape).copy())

    kv_dim = dim // heads * kv_heads
    embedding = take(vocabulary, dim)
    each = {
        "input_layernorm": take(layers, dim),
        "self_attn.q_proj": _halves(take(layers, dim, dim), heads),
        "self_attn.k_proj": _halves(take(layers, kv_dim, dim), kv_heads),
        "self_attn.v_proj": take(layers, kv_dim, dim),
        "self_attn.o_proj": take(layers, dim, dim),
        "post_attention_layernorm": take(layers, dim),
        "mlp.gate_proj": take(layers, hidden, dim),
        "mlp.down_proj": take(layers, dim, hidden),
        "mlp.up_proj": take(layers, hidden, dim),
    }
    state = {
        f"model.layers.{layer}.{name}.weight": tensors[layer]
        for name, tensors in each.items()
        for layer in range(layers)
    }
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=dim,
            intermediate_size=hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=kv_heads,
            max_position_embeddings=positions,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            bos_token_id=1,
            eos_token_id=2,
        )
    )
    model.load_state_dict(
        {
            **state,
            "model.embed_tokens.weight": embedding,
            "lm_head.weight": embedding,
            "model.norm.weight": take(dim),
        }
    )
    return model


def _halves(rows: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows (2i, 2i+1) of each head become rows (i, half + i)."""
    layers, out, width = rows.shape
    paired = rows.reshape(layers, heads, out // heads // 2, 2, width)
    return paired.transpose(2, 3).reshape(layers, out, width)


def _tokenizer(path: Path) -> PreTrainedTokenizerFast:
    data = path.read_bytes()
    place = 4
    pieces: list[tuple[str, float]] = []
    while place < len(data):
        score, length = struct.unpack_from("fi", data, place)
        raw = data[place + 8 : place + 8 + length]
        place += 8 + length
        pieces.append((_piece(len(pieces), raw), score))
    ids = {piece: i for i, (piece, _) in enumerate(pieces)}
    # llama2.c joins the neighbours whose joint piece scores highest: a merge list in
    # the order of scores, over every way to split a piece into two pieces.
    ranked = sorted(range(259, len(pieces)), key=lambda i: -pieces[i][1])
    merges = [
        (piece[:cut], piece[cut:])
        for piece in (pieces[i][0] for i in ranked)
        for cut in range(1, len(piece))
        if piece[:cut] in ids and piece[cut:] in ids
    ]
    tokenizer = Tokenizer(BPE(ids, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<unk>", "<s>", "</s>")])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=512,
    )


def _piece(number: int, raw: bytes) -> str:
    if number < 3:
        return ("<unk>", "<s>", "</s>")[number]
    if number < 259:
        return f"<0x{number - 3:02X}>"
    return raw.decode("utf-8").replace(" ", "▁")


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
