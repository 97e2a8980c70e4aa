"""Models of random weights, and texts, for both sides of a comparison.

The model has the shape of a published OPT and is saved once; both sides load its files. Texts are
the published ones where a folder is given, else words drawn with the lengths and the shared
openings of SST-5 and of the Amazon probe.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from harness import DTYPES, Size
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from raybias.config import Backbone, Probe, TrainingSet
from raybias.engine.adapters.tuning import TokenSet
from raybias.engine.backbone import LoadedBackbone, load_backbone
from raybias.engine.context import Execution
from raybias.engine.encoder import verbalizer_ids
from raybias.methods.prompted import Asking, Prompted
from raybias.probes import probe_items, training_sentences
from raybias.schema import LABELS

#: Hidden width, layers, heads; feed-forward is four times as wide (OPT's published shapes).
SHAPES = {
    "tiny": (64, 2, 4), "small": (256, 6, 4), "125m": (768, 12, 12), "1.3b": (2048, 24, 32),
    "6.7b": (4096, 32, 32), "13b": (5120, 40, 40),
}  # fmt: skip
VOCABULARY = 50272
CONTEXT = 2048


def save_model(
    folder: Path, shape: str | tuple[int, int, int], *, dtype: str, device: str = "cpu",
    merges: Path | None = None,
) -> Path:  # fmt: skip
    """Save an OPT of random weights and its tokenizer; gives back the folder."""
    hidden, layers, heads = SHAPES[shape] if isinstance(shape, str) else shape
    sizes = {
        "vocab_size": VOCABULARY, "hidden_size": hidden, "num_hidden_layers": layers,
        "num_attention_heads": heads, "max_position_embeddings": CONTEXT,
    }  # fmt: skip
    config = transformers.OPTConfig(**sizes, word_embed_proj_dim=hidden, ffn_dim=4 * hidden)
    torch.manual_seed(0)
    with torch.device(device):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=DTYPES[dtype])
    model.save_pretrained(folder)
    tokenizer(merges).save_pretrained(folder)
    return folder


def spec_of(folder: Path, dtype: str) -> Backbone:
    """Name a saved model as a study does."""
    return Backbone.model_validate({"id": str(folder), "dtype": dtype})


def load(folder: Path, *, dtype: str, device: str) -> LoadedBackbone:
    """Our side's frozen model."""
    return load_backbone(spec_of(folder, dtype), Execution(device=device))


def load_peer(folder: Path, *, dtype: str, device: str) -> Any:
    """Load a peer's frozen model, as a user of transformers does."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype])
    return model.eval().to(device)


@dataclass(frozen=True)
class Models:
    """One random-weight model: its files, ours in each precision, and a peer's in the first."""

    place: tempfile.TemporaryDirectory[str]
    ours: dict[str, LoadedBackbone]
    peer: Any

    @property
    def folder(self) -> Path:
        """Where the files are."""
        return Path(self.place.name)

    @property
    def first(self) -> LoadedBackbone:
        """Ours in the precision that the peer has."""
        return next(iter(self.ours.values()))

    @property
    def ids(self) -> tuple[int, ...]:
        """Tokens of the label words."""
        return verbalizer_ids(self.first.tokenizer, LABELS)


def saved(size: Size) -> Models:
    """Save a model of a comparison's shape, and load it on both sides."""
    first, device = size.dtypes[0], size.device
    place = tempfile.TemporaryDirectory()
    folder = save_model(
        Path(place.name), size.shape, dtype=first, device=device, merges=size.merges
    )
    ours = {name: load(folder, dtype=name, device=device) for name in size.dtypes}
    return Models(place, ours, load_peer(folder, dtype=first, device=device))


def tokenizer(merges: Path | None) -> transformers.PreTrainedTokenizerFast:
    """OPT's own tokenizer from its published files, or a word list of the same size."""
    if merges is None:
        words = ["<s>", "<pad>", "</s>", *LABELS]
        words += [f"w{n}" for n in range(VOCABULARY - len(words))]
        core = Tokenizer(models.WordLevel({word: n for n, word in enumerate(words)}, "<pad>"))
        core.pre_tokenizer = pre_tokenizers.Whitespace()
    else:
        files = str(merges / "vocab.json"), str(merges / "merges.txt")
        core = Tokenizer(models.BPE.from_file(*files))
        core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.post_processor = processors.TemplateProcessing("</s> $A", special_tokens=[("</s>", 2)])
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="</s>", eos_token="</s>", pad_token="<pad>",
        model_max_length=CONTEXT,
    )  # fmt: skip


def sentences(folder: Path | None, count: int) -> tuple[list[str], list[int]]:
    """SST-5 training sentences with labels, or random ones of like lengths (19 words, sd 9)."""
    random = np.random.default_rng(0)
    if folder is not None:
        frame = training_sentences(TrainingSet(source="sst5", data=str(folder)))["train"]
        frame = frame.sample(min(count, frame.height), seed=0)
        return frame["text"].to_list(), frame["label"].to_list()
    # A token a word: lengths of SST-5 in OPT's tokens less BOS are about this normal, cut.
    lengths = np.clip(random.normal(22, 11, count).round(), 2, 61).astype(int)
    return [_words(random, n) for n in lengths], random.integers(0, 3, count).tolist()


def rows_of(backbone: LoadedBackbone, folder: Path | None, count: int) -> TokenSet:
    """Tokenise such sentences, to tune on."""
    texts, labels = sentences(folder, count)
    return TokenSet(tuple(map(tuple, backbone.encoder.encode(texts))), tuple(labels))


def items(
    folder: Path | None, count: int, attributes: tuple[str, ...] = ("age", "sexuality")
) -> list[str]:
    """Probe items of the Amazon templates in their published order, or synthetic ones."""
    if folder is not None:
        probe = Probe(source="amazon", data=str(folder), attributes=attributes)
        return list(probe_items(probe)["text"].to_list()[:count])
    # As published: 60 templates, a term somewhere in each, about 10 tokens.
    random = np.random.default_rng(0)
    terms = [_words(random, int(n)) for n in random.integers(1, 4, 30)]
    made = []
    for _ in range(60):
        before, after = random.integers(0, 6), random.integers(2, 8)
        opening, rest = _words(random, int(before)), _words(random, int(after))
        made += [f"{opening} {term} {rest}".strip() for term in terms]
    return made[:count]


def _words(random: np.random.Generator, count: int) -> str:
    return " ".join(f"w{n}" for n in random.integers(0, VOCABULARY - 6, count))


def plain(method: Prompted) -> Asking:
    """Return what writes a method's prompts as plain text, for any tokenizer."""
    nothing: Any = None
    return Asking(method.model_copy(update={"prompt_format": "raw"}), nothing)
