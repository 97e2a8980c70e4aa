"""Tiny random causal models that read the papers' prompts, with a tokenizer of their words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from raybias import seeding
from raybias.engine import keyed_draws
from raybias.methods import ChainOfThought, FewShot, Prompted
from raybias.methods.prompted import Asking
from support import backbones

POSITIONS = 512
#: Turns that end with a special token, and thoughts before the answer where they are wanted.
CHAT = (
    "{% for message in messages %}{{ message.role }}:\n{{ message.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}assistant:\n{% if enable_thinking %}<think>{% endif %}"
    "{% endif %}"
)
_TEXTS = ["the film was a delight", "nothing works in it", "it runs for two hours", "a dull day"]
_SHOTS = [(text, label) for label in range(3) for text in _TEXTS]


def uniforms(key: tuple[str | int, ...], count: int) -> torch.Tensor:
    """What the draws of one row are decided by [1, count]."""
    keys_12 = keyed_draws.keys([seeding.key(*key)], torch.device("cpu"))
    return keyed_draws.uniforms(keys_12, count)


def plain(method: Prompted) -> Asking:
    """What writes a method's prompts as plain text, for any tokenizer."""
    nothing: Any = None
    return Asking(method.model_copy(update={"prompt_format": "raw"}), nothing)


def save(kind: str, folder: Path, *, more: Sequence[str] = ()) -> Path:
    """A random model of `kind` in `folder`; its answers name a label now and then.

    Its tokenizer is made of the papers' prompts, and of `more`.
    """
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = ByteLevelDecoder()
    words = ("negative", "neutral", "positive")
    corpus = [plain(FewShot()).first(text, words, _SHOTS) for text in _TEXTS]
    cot = plain(ChainOfThought())
    corpus += [cot.last(text, words, reasoning=" and so on") for text in _TEXTS]
    corpus += [f" {word} {word.capitalize()}" for word in words] * 50
    corpus += more
    trainer = BpeTrainer(
        vocab_size=400,
        special_tokens=["<pad>", "</s>"],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="</s>", eos_token="</s>", pad_token="<pad>"
    ).save_pretrained(folder)
    torch.manual_seed(3)
    config = backbones.CONFIGS[kind]()
    config.vocab_size, config.max_position_embeddings = tokenizer.get_vocab_size(), POSITIONS
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.generation_config.update(do_sample=True, top_k=20)
    model.save_pretrained(folder)
    return folder


def save_chat(kind: str, folder: Path, template: str = CHAT) -> Path:
    """A model of `save` whose tokenizer has a chat template, and label words without a blank."""
    replies = [f"{word}\n{word.capitalize()}\n" for word in ("negative", "neutral", "positive")]
    save(kind, folder, more=replies * 50)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    return folder


def texts(count: int) -> list[str]:
    """Short sentences, some of which begin alike."""
    people = ("red", "blue", "green")
    ends = ("man sang", "woman left early", "child was glad", "family worked all day")
    return [f"the {people[i % 3]} {ends[i // 3 % 4]} and {i}" for i in range(count)]


class Peer:
    """transformers' own chat template, logits and generation of a model, in float32.

    Parameters
    ----------
    begin: tokens before each text, which a chat template writes by itself.
    """

    def __init__(self, folder: Path | str, begin: Sequence[int] = ()) -> None:
        self.begin = list(begin)
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.model = model.eval()

    def turn(self, messages: Sequence[Mapping[str, str]]) -> str:
        """What a chat begins with before the model goes on; its own opened turn is the last."""
        opened = messages[-1]["role"] == "assistant"
        return str(
            self.tokenizer.apply_chat_template(
                list(messages),
                tokenize=False,
                add_generation_prompt=not opened,
                continue_final_message=opened,
            )
        )

    def ids(self, text: str) -> list[int]:
        """The tokens of a text behind those that begin it."""
        return [*self.begin, *self.tokenizer(text, add_special_tokens=False)["input_ids"]]

    def log_probs(self, text: str) -> torch.Tensor:
        """Log-probabilities [T, V] behind each token, from one plain pass."""
        with torch.no_grad():
            return self.model(torch.tensor([self.ids(text)])).logits[0].log_softmax(-1)

    def likelihood(self, text: str, option: str) -> float:
        """Log-likelihood of what follows a text, blanks at its end not counted with it."""
        whole, since = self.ids(text + option), len(self.ids(text.rstrip()))
        log_probs_TV = self.log_probs(text + option)
        return sum(float(log_probs_TV[n - 1, whole[n]]) for n in range(since, len(whole)))

    def says(self, text: str, most: int) -> str:
        """What is generated greedily behind a text."""
        row = torch.tensor([self.ids(text)])
        with torch.no_grad():
            made = self.model.generate(
                row, attention_mask=torch.ones_like(row), do_sample=False, max_new_tokens=most
            )
        return str(self.tokenizer.decode(made[0, row.shape[1] :], skip_special_tokens=True))
