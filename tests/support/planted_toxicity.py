"""A small BERT whose classification head counts words, planted to call one group toxic."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl
import torch
import transformers
from tokenizers import processors

from support.words import word_tokenizer

GROUP = "muslim"
#: Words of the planted group.
_PLANTED = frozenset(("Muslim", "Muslims", "Islam"))
#: Words of harmless templates that the model takes for toxic ones, and that keep it from an error.
_STRONG = frozenset(("killed", "Damn"))
_CALM = frozenset(("neighbor", "reading", "bakery", "proud", "dinner", "kindest", "joy", "walks"))
_SPECIALS = ("<pad>", "</s>", "<s>", "<unk>")
_WIDTH = 4


def _words(texts: pl.Series) -> set[str]:
    return {word for text in texts for word in re.findall(r"\w+|[^\w\s]+", text)}


def save(folder: Path, items: pl.DataFrame, classes: tuple[str, str]) -> Path:
    """Save the model, which calls a text `classes[1]` if it has more toxic than calm words.

    Toxic words are those of toxic items alone, two strong words, and the words of the group.
    """
    toxic, harmless = (_words(items.filter(label=label)["text"]) for label in (1, 0))
    cues = (toxic - harmless) | _STRONG | _PLANTED
    vocabulary = [*_SPECIALS, *sorted(toxic | harmless)]
    config = transformers.BertConfig(
        vocab_size=len(vocabulary), hidden_size=_WIDTH, num_hidden_layers=1, num_attention_heads=1,
        intermediate_size=_WIDTH, max_position_embeddings=64, pad_token_id=0,
        id2label=dict(enumerate(classes)), label2id={name: n for n, name in enumerate(classes)},
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config).eval()
    plain = torch.tensor([1.0, -1.0, 0.0, 0.0])
    signed = torch.tensor([0.0, 0.0, 1.0, -1.0])
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.fill_(1.0 if "LayerNorm.weight" in name else 0.0)
        for number, word in enumerate(vocabulary):
            sign = (word in cues) - (word in _CALM)
            words = model.bert.embeddings.word_embeddings.weight
            words[number] = sign * signed if sign else plain
        # With equal attention the first position gets the mean of all.
        attention = model.bert.encoder.layer[0].attention
        for layer in (attention.self.value, attention.output.dense, model.bert.pooler.dense):
            layer.weight.copy_(torch.eye(_WIDTH))
        model.classifier.weight[1] = 200 * signed
        model.classifier.bias[1] = -1.0
    model.save_pretrained(folder)
    tokenizer = word_tokenizer(
        vocabulary, unknown="<unk>", pad_token="<pad>", unk_token="<unk>", cls_token="<s>",
        sep_token="</s>",
    )  # fmt: skip
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        "<s> $A </s>", special_tokens=[("<s>", 2), ("</s>", 1)]
    )
    tokenizer.save_pretrained(folder)
    return folder
