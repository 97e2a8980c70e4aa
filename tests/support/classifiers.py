"""Small random sequence classifiers, and what transformers' pipeline says of texts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from tokenizers import processors

from support import zoo
from support.words import word_tokenizer

SENTIMENT = ("negative", "neutral", "positive")
STARS = ("1 star", "2 stars", "3 stars", "4 stars", "5 stars")
STARS_MAP = {
    "negative": ["1 star", "2 stars"],
    "neutral": ["3 stars"],
    "positive": ["4 stars", "5 stars"],
}
#: Where special tokens stand, with token types as the architecture's own tokenizer has them.
_TEMPLATES = {"xlnet": "$A:0 </s>:0 <s>:2"}
#: Words that the zoo's vocabulary leaves out are read as the first of these.
_SPECIALS = {
    "pad_token": "<pad>", "eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>",
    "mask_token": "<mask>", "cls_token": "<s>", "sep_token": "</s>",
}  # fmt: skip


def save(kind: str, folder: Path, classes: Sequence[str], **fields: Any) -> Path:
    """A saved random classifier of an architecture, with its tokenizer of whole words."""
    config = zoo.small_config(kind)
    names = dict(enumerate(classes))
    config.id2label, config.label2id = names, {name: place for place, name in names.items()}
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = 0
    for name, value in fields.items():
        setattr(config, name, value)
    with torch.device("meta"):
        empty = transformers.AutoModelForSequenceClassification.from_config(config)
    weights = sum(weight.numel() for weight in empty.parameters())
    if weights > zoo.MAX_WEIGHTS:
        raise ValueError(f"its smallest build has {weights:,} weights")
    torch.manual_seed(0)
    model = transformers.AutoModelForSequenceClassification.from_config(config).eval()
    for weight in model.parameters():
        # The head, whose logits would differ little.
        if weight.ndim > 1 and len(weight) == len(classes):
            torch.nn.init.normal_(weight, std=0.5)
    model.save_pretrained(folder)
    save_tokenizer(folder, _TEMPLATES.get(kind, "<s> $A </s>"))
    return folder


def save_tokenizer(folder: Path, template: str) -> None:
    tokenizer = word_tokenizer(zoo.VOCABULARY, unknown="<unk>", **_SPECIALS)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        template, special_tokens=[("<s>", 2), ("</s>", 1)]
    )
    tokenizer.save_pretrained(folder)


def edit_config(folder: Path, content: Mapping[str, Any]) -> None:
    """Replace keys of a checkpoint's config.json; None takes one out."""
    path = folder / "config.json"
    whole = json.loads(path.read_text()) | content
    path.write_text(json.dumps({key: value for key, value in whole.items() if value is not None}))


def texts(count: int, seed: int = 0) -> list[str]:
    """Sentences of the zoo's words, of 1 to 40 words."""
    draws = np.random.default_rng(seed)
    return [" ".join(draws.choice(zoo.WORDS, int(draws.integers(1, 40)))) for _ in range(count)]


def of_pipeline(folder: Path, sentences: Sequence[str]) -> npt.NDArray[np.float64]:
    """The probability of every class [N, C] by transformers' pipeline, one sentence at a time."""
    pipeline = transformers.pipeline(
        "text-classification", model=str(folder), top_k=None, device="cpu"
    )
    names = pipeline.model.config.id2label
    rows = []
    for answer in pipeline(list(sentences)):
        scores = {part["label"]: part["score"] for part in answer}
        rows.append([scores[names[place]] for place in range(len(names))])
    return np.array(rows)
