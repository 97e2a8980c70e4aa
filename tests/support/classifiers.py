"""Tiny random classifiers of several architectures, saved and loaded as real ones are."""

from __future__ import annotations

from pathlib import Path

import torch
import transformers

from raybias.config import Backbone
from raybias.engine.adapters.tuning import PackedTuner, Run, TokenSet
from raybias.engine.classifier import Classifier, load_classifier
from raybias.engine.context import Execution
from raybias.methods import Finetuned
from raybias.schema import LABELS
from support import backbones
from support.quantised import quantise

ENCODER = {
    "vocab_size": len(backbones.VOCABULARY),
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
#: XLNet's classifiers read the last position, and its `mask_emb` takes no part in them.
XLNET = {"vocab_size": len(backbones.VOCABULARY), "d_model": 32, "n_layer": 2, "n_head": 4}


def save(kind: str, folder: Path) -> Path:
    """A random model of `kind` in `folder`, without a classification head."""
    if "_int" in kind:
        kind, _, bits = kind.partition("_int")
        auto = transformers.AutoModelForMaskedLM if kind in ENCODERS else None
        return quantise(save(kind, folder / "full"), folder, int(bits), auto)
    if kind not in (*ENCODERS, "xlnet"):
        return backbones.save(kind, folder)
    backbones.save("opt", folder)  # for its tokenizer
    torch.manual_seed(0)
    if kind == "xlnet":
        sizes = transformers.XLNetConfig(**XLNET, d_inner=64, initializer_range=0.3, pad_token_id=0)
        model = transformers.AutoModelForCausalLM.from_config(sizes)
    else:
        model = transformers.AutoModelForMaskedLM.from_config(ENCODERS[kind]())
    model.save_pretrained(folder)
    return folder


def load(kind: str, folder: Path, method: Finetuned, *, tokens: int = 4096) -> Classifier:
    """A random classifier of `kind`, through the code that loads real ones."""
    spec = spec_of(kind, folder / kind)
    return load_classifier(spec, method, LABELS, Execution(tokens))


def spec_of(kind: str, path: Path) -> Backbone:
    """A random model of `kind` in `path`, saved where it is not there yet."""
    folder = path if path.exists() else save(kind, path)
    return Backbone(id=str(folder), bos="prepend", dtype="float32")


def token_set(classifier: Classifier, count: int, *, seed: int) -> TokenSet:
    """Sentences of `count` rows with labels that depend on a word of theirs."""
    rows = classifier.encoder.encode(backbones.sentences(count, seed=seed))
    return TokenSet(tuple(map(tuple, rows)), tuple(row[-1] % 3 for row in rows))


def finished(packed: PackedTuner) -> dict[str, Run]:
    """Every unit's result, once all have stopped."""
    stopped: list[str] = []
    while not packed.done:
        stopped += [each.run_id for each in packed.advance() if each.stop_reason]
    return {run_id: packed.runs[run_id] for run_id in stopped}
