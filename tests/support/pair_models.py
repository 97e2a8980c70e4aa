"""Tiny random models to score pairs with, and what a textbook says of a pair.

The textbook reads one sentence, or one masked copy, at a time with transformers alone.
"""

from __future__ import annotations

import difflib
import math
from functools import cache
from pathlib import Path

import numpy as np
import torch
import transformers
from tokenizers import processors

from raybias.config import Backbone
from support import backbones
from support.words import word_tokenizer

#: Their tokenizers add a begin token by themselves.
BEGINNING = ("opt", "llama")
VOCABULARY = [*backbones.VOCABULARY, "<s>", "<mask>"]


def save(kind: str, folder: Path) -> Path:
    """A random model of `kind` in `folder` / `kind`."""
    path = folder / kind
    return path if path.exists() else backbones.save(kind, path, tokenizer(kind))


def tokenizer(kind: str) -> transformers.PreTrainedTokenizerFast:
    """One word a token; specials as models of `kind` have them."""
    specials = {"bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>"}
    ids, frame = [(word, VOCABULARY.index(word)) for word in ("<s>", "</s>")], "$A"
    if kind in backbones.ENCODERS:
        specials |= {"cls_token": "<s>", "sep_token": "</s>", "mask_token": "<mask>"}
        frame = "<s> $A </s>"
    elif kind in BEGINNING:
        frame = "</s> $A"
    made = word_tokenizer(VOCABULARY, **specials)
    if frame != "$A":
        made.backend_tokenizer.post_processor = processors.TemplateProcessing(
            frame, special_tokens=ids
        )
    return made


def spec(kind: str, folder: Path, *, dtype: str = "float32") -> Backbone:
    """The section of a study that names the model."""
    return Backbone.model_validate({"id": str(save(kind, folder)), "dtype": dtype})


def pairs(count: int, *, seed: int, longest: int = 12) -> list[tuple[str, str]]:
    """Sentences and the same with another word, with a word more, or with the same words."""
    random = np.random.default_rng(seed)
    made = []
    for n, sentence in enumerate(backbones.sentences(count, seed=seed, longest=longest)):
        words = sentence.split()
        at = int(random.integers(len(words)))
        new = [*words[:at], str(random.choice(backbones.WORDS)), *words[at + (n % 5 > 0) :]]
        made.append((sentence, " ".join(new)))
    return made


class Textbook:
    """Scores of pairs, computed as their authors wrote them."""

    def __init__(self, path: str, *, masked: bool) -> None:
        auto = transformers.AutoModelForMaskedLM if masked else transformers.AutoModelForCausalLM
        self.model = auto.from_pretrained(path).eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(path)
        self._read = cache(self._logits)

    def log_probs(self, ids: list[int]) -> torch.Tensor:
        """Log-probabilities [T, V] of one sentence; several scores ask for the same."""
        return self._read(tuple(ids))

    def _logits(self, ids: tuple[int, ...]) -> torch.Tensor:
        with torch.no_grad():
            return self.model(input_ids=torch.tensor([ids])).logits[0].float().log_softmax(-1)

    def score(self, score: str, more: str, less: str) -> tuple[float, float] | None:
        """Both sides' scores, or None where the rule skips the pair."""
        if score.startswith("masked"):
            return self._masked(score, more, less)
        if score == "shared":
            rows = [self.own(text) for text in (more, less)]
            found = [0.0, 0.0]
            for tag, a, b, c, d in difflib.SequenceMatcher(None, *rows).get_opcodes():
                if tag == "equal":
                    found[0] += sum(self.begun(rows[0])[a:b])
                    found[1] += sum(self.begun(rows[1])[c:d])
            return found[0], found[1]
        one, two = (self._sentence(score, text) for text in (more, less))
        return one, two

    def _sentence(self, score: str, text: str) -> float:
        ids = self.own(text)
        if score == "perplexity":
            tokens = torch.tensor([self.tokenizer.encode(text)])
            with torch.no_grad():
                return -math.exp(float(self.model(input_ids=tokens, labels=tokens).loss))
        if score == "bias_bench":
            first = self.log_probs([self._begin()])[0, ids[0]].exp().item()
            output = self.log_probs(ids).exp()
            chances = [first, *(output[n - 1, ids[n]].item() for n in range(1, len(ids)))]
            return float(2 ** (sum(np.log2(chance) for chance in chances) / len(chances)))
        values = self.begun(ids)
        return sum(values) if score == "sum" else math.exp(sum(values) / len(values))

    def _masked(self, score: str, more: str, less: str) -> tuple[float, float] | None:
        rows = [self.tokenizer.encode(text) for text in (more, less)]
        wanted = "equal" if score == "masked" else "other"
        places: list[list[int]] = [[], []]
        for tag, a, b, c, d in difflib.SequenceMatcher(None, *rows).get_opcodes():
            if (tag if tag == "equal" else "other") == wanted:
                places[0] += range(a, b)
                places[1] += range(c, d)
        if score == "masked":
            places = [each[1:-1] for each in places]
        elif not places[0] or not places[1]:
            return None
        found = []
        for row, own in zip(rows, places, strict=True):
            values = []
            for place in own:
                copy = [*row[:place], self.tokenizer.mask_token_id, *row[place + 1 :]]
                values.append(self.log_probs(copy)[place, row[place]].item())
            found.append(sum(values) if score == "masked" else float(np.mean(values)))
        return found[0], found[1]

    def own(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)

    def _begin(self) -> int:
        begin = self.tokenizer.bos_token_id
        return self.tokenizer.eos_token_id if begin is None else begin

    def begun(self, ids: list[int]) -> list[float]:
        output = self.log_probs([self._begin(), *ids])
        return [output[n, token].item() for n, token in enumerate(ids)]
