"""Ask a backbone questions, as plain text or in its chat template, and make rows of the replies.

A prompt is a question and a cue, which begins the answer ("Answer: The sentiment is"). In a chat
the cue begins the model's own turn, as `gen_prefix` does in lm-evaluation-harness; in the user's
message a model would answer it with a sentence.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self

from pydantic import model_validator

from raybias.config import Backbone
from raybias.config.parts import Ability
from raybias.config.section import Profile, by_profile
from raybias.engine.answers import Answers, Writing
from raybias.engine.encoder import TextEncoder, load_tokenizer
from raybias.errors import ConfigError
from raybias.methods.base import ComputeRows, Inputs, Item, Method, Reader, RowReader
from raybias.methods.work import Asks, TokenCounts, Work, sample
from raybias.providers.base import answers_of
from raybias.storage import Store

if TYPE_CHECKING:
    from raybias.engine.backbone import ModelContext

#: A placeholder of a template; its name is the first group.
PLACEHOLDER: Final = re.compile(r"\{(\w+)\}")
#: A brace that opens a placeholder and does not close right behind its name: `{text`, `{text!r}`.
_BROKEN: Final = re.compile(r"\{\w+(?![\w}])[^{}]{0,20}\}?|\{\s*$")
#: A message of a chat: its `role` (system, user or assistant) and `content`.
Message = dict[str, str]
#: Behind these an answer begins without a blank.
_OPEN: Final = frozenset("\"'(\u201c\u2018\u00ab")


def filled(template: str, **values: str) -> str:
    """Replace each `{name}` of a template; braces in a value are text."""
    return PLACEHOLDER.sub(lambda match: values[match[1]], template)


def check_placeholders(
    field: str, template: str, *, needed: tuple[str, ...] = (), others: tuple[str, ...] = ()
) -> None:
    """Refuse a template without a needed placeholder, or with an unknown or unfinished one.

    Braces around anything that does not begin with a letter or digit, such as JSON, are text.
    Raises ValueError.
    """
    if broken := _BROKEN.search(template):
        raise ValueError(
            f"{field} has {broken[0]!r}, which is no whole placeholder; write it like"
            f" {{{(*needed, *others)[0]}}}, without anything else in the braces"
        )
    found = PLACEHOLDER.findall(template)
    for name in needed:
        if name not in found:
            raise ValueError(f"{field} {template!r} has no {{{name}}}")
    known = dict.fromkeys((*needed, *others))
    for name in found:
        if name not in known:
            listed = ", ".join(f"{{{each}}}" for each in known)
            raise ValueError(f"{field} has {{{name}}}, which stands for nothing; use {listed}")


def about(template: str, text: str, words: Sequence[str], **values: str) -> str:
    """Fill a template with a text, `values`, and as choices `negative, neutral, or positive`."""
    *others, last = (word.strip() for word in words)
    comma = "," if len(others) > 1 else ""
    choices = f"{', '.join(others)}{comma} or {last}"
    return filled(template, text=text, choices=choices, **values)


@dataclass(frozen=True)
class Asked:
    """A prompt and its possible continuations.

    prompt: name of the wording.
    text: the question.
    cue: the beginning of the answer.
    places: of each option in the published order.
    shown: the options in words, where letters stand for them.
    """

    prompt: str
    text: str
    options: tuple[str, ...]
    places: tuple[int, ...]
    shown: tuple[str, ...] = ()
    cue: str = ""
    system: str = ""

    def following(self, *, chat: bool) -> list[str]:
        """Return the options as they follow the cue, after a blank where one is needed."""
        last = self.cue[-1:]
        joined = last in _OPEN or last.isspace() or (chat and not last)
        return [f"{'' if joined else ' '}{option}" for option in self.options]


@dataclass(frozen=True)
class PromptFormat:
    """The form of a method's prompts on one backbone, whose tokenizer is `own`."""

    method: AskingMethod
    own: TextEncoder

    @cached_property
    def chat(self) -> bool:
        """Whether prompts are messages of a chat; ConfigError: they must be, and cannot."""
        asked, name = self.method.prompt_format, self.method.name
        system = self.method.system_message
        if asked == "raw":
            return False
        told = self.own.knows_tokens or not self.method.follows
        if told and self.own.has_chat_template:
            return True
        if asked == "auto" and not system:
            return False
        if not told:
            raise ConfigError(
                f"method {name!r} reads likelihoods in a chat, and an endpoint tells those of plain"
                " text alone",
                where=self.own.spec.name,
                cure="take prompt_format: raw without a system message, or option_answer",
            )
        wanted = "prompt_format: chat" if asked == "chat" else "a system message"
        raise ConfigError(
            f"method {name!r} asks for {wanted}, and the tokenizer of {self.own.spec.id} has no"
            " chat template",
            cure="take prompt_format: raw without a system message, or a model for chats",
        )

    @property
    def encoder(self) -> TextEncoder:
        """The tokenizer of prompts; chat templates write special tokens themselves."""
        return self.own.for_chat if self.chat else self.own

    def written(self, asked: Asked) -> str:
        """Write one question, after the system message in a chat, and the cue of its answer."""
        if not self.chat:
            return asked.text + asked.cue
        before = [Message(role="system", content=asked.system)] if asked.system else []
        question = Message(role="user", content=asked.text)
        return self.begun([*before, question], asked.cue, instead=asked.cue)

    def begun(self, messages: Sequence[Message], cue: str, *, instead: str = "") -> str:
        """Write the messages of a chat, with the cue at the start of the model's turn.

        For an endpoint, which takes whole messages, `instead` ends the last one.
        """
        if self.own.knows_tokens:
            turn = [Message(role="assistant", content=cue)] if cue else []
            return self.own.chat([*messages, *turn])
        *before, last = messages
        content = f"{last['content'].rstrip()}\n{instead}" if instead else last["content"]
        return self.own.chat([*before, Message(role=last["role"], content=content)])

    def counts(self, tokens: TokenCounts) -> TokenCounts:
        """Return the counter of prompts for a counter of texts."""
        return tokens.for_chat if self.chat else tokens


class AskingMethod(Method):
    """A method that asks in plain text or in chats."""

    prompt_format: Literal["raw", "chat", "auto"] = by_profile(paper="raw", strict="auto")
    """Prompts as plain text (raw), or as messages in the tokenizer's own chat template, where a
    prompt's cue begins the model's turn (chat); auto is chat where the tokenizer has one."""

    follows: ClassVar[bool] = False
    """Whether it needs likelihoods of continuations; else answers are written."""

    @model_validator(mode="after")
    def _says_it_in_a_chat(self) -> Self:
        if self.system_message and self.prompt_format == "raw":
            raise ValueError("a system message is for prompt_format: chat or auto")
        return self

    @property
    def system_message(self) -> str:
        """A system message, if there is any."""
        return ""

    def form(self, encoder: TextEncoder) -> PromptFormat:
        """Return the writer of prompts for a backbone with this tokenizer."""
        return PromptFormat(self, encoder)

    def fit(self, backbone: Backbone, profile: Profile, labels: Sequence[str]) -> Self:
        """Return the method with its prompts' form; ConfigError: chats without a template."""
        chat = self.form(load_tokenizer(backbone)).chat
        return self.model_copy(update={"prompt_format": "chat" if chat else "raw"})

    def needs(self, offered: frozenset[Ability]) -> dict[Ability, str]:
        chat = self.prompt_format == "chat" or (
            self.prompt_format == "auto" and ("chat" in offered or bool(self.system_message))
        )
        return {"chat": "set prompt_format: raw"} if chat else {"text": "set prompt_format: chat"}


class ItemMethod(AskingMethod):
    """A method that asks about each item, and draws nothing."""

    @property
    def new_tokens(self) -> int:
        """Most tokens that are written after one prompt."""
        return 0

    @abstractmethod
    def requests(self, item: Item, *, chat: bool) -> list[Asked]:
        """Return the prompts about an item, each with its possible continuations."""

    @abstractmethod
    def row(self, item: Item, asked: Asked, reply: Any) -> dict[str, Any]:
        """Make a row of the output from a reply.

        reply: an answer, None if a filter of contents withheld it; or log-likelihoods of the
        continuations.
        """

    def needs(self, offered: frozenset[Ability]) -> dict[Ability, str]:
        return {"likelihoods": ""} if self.follows else super().needs(offered)

    def _prompts(self, asked: Sequence[Asked], form: PromptFormat) -> list[str]:
        """Write prompts, with the longest of their continuations."""
        return [form.written(each)
                + (max(each.following(chat=form.chat), key=len) if self.follows else "")
                for each in asked]  # fmt: skip

    def check(self, inputs: Inputs) -> None:
        inputs.refuse_encoder(self.name)
        form = self.form(inputs.encoder)
        for frame in inputs.items.values():
            pairs = [(item["item_id"], each) for item in frame.iter_rows(named=True)
                     for each in self.requests(item, chat=form.chat)]  # fmt: skip
            prompts = self._prompts([each for _, each in pairs], form)
            form.counts(inputs.tokens).check(
                prompts,
                [name for name, _ in pairs],
                taken=self.new_tokens,
                by="tokens of an answer" if self.new_tokens else "",
            )

    def work(self, inputs: Inputs) -> Work:
        form, tokens, asks, held = self.form(inputs.encoder), {}, {}, 1.0
        for name, frame in inputs.items.items():
            items = sample(frame.rows(named=True))
            asked = [each for item in items for each in self.requests(item, chat=form.chat)]
            prompts, counts = self._prompts(asked, form), form.counts(inputs.tokens)
            mean = counts.mean(prompts) + self.new_tokens
            held = max(held, 1 + self.new_tokens / min(counts.lengths(prompts), default=1))
            times = sum(len(each.options) for each in asked) if self.follows else len(asked)
            each = times / max(1, len(items))
            tokens[name] = mean * each
            # An API wants to write a token of what it only tells the likelihood of.
            read, written = tokens[name], each
            if not self.follows:
                written = each * self.new_tokens
                read -= written
            asks[name] = Asks(each, read, written)
        return Work(
            runs=1,
            items=inputs.counted(),
            tokens=tokens,
            asks=asks,
            new_tokens=self.new_tokens,
            held_tokens=held,
        )

    def reader(self, context: ModelContext, store: Store) -> Reader:
        return RowReader(partial(self.begin, answers_of(context, store)), self.output().schema)

    def begin(self, answers: Answers, items: Sequence[Item]) -> ComputeRows:
        """Write the prompts about items; return the call that makes a row of each reply."""
        form = self.form(answers.encoder)
        pairs = [(item, each) for item in items for each in self.requests(item, chat=form.chat)]
        prompts = [form.written(each) for _, each in pairs]
        if self.follows:
            texts = [(prompt, option) for prompt, (_, each) in zip(prompts, pairs, strict=True)
                     for option in each.following(chat=form.chat)]  # fmt: skip
            score = answers.begin_likelihoods(texts, chat=form.chat)

            def replies() -> tuple[list[Any], int]:
                found, tokens = score()
                values = iter(found)
                return [[next(values) for _ in each.options] for _, each in pairs], tokens
        else:
            keys = [(item["item_id"], each.prompt) for item, each in pairs]
            write = answers.begin_write(prompts, keys, Writing(self.new_tokens, chat=form.chat))

            def replies() -> tuple[list[Any], int]:
                written = write()
                texts = [
                    None if each.finish_reason == "content_filter" else each.text
                    for each in written
                ]
                return texts, sum(each.tokens for each in written)

        def rows() -> tuple[Sequence[Item], int]:
            found, tokens = replies()
            both = zip(pairs, found, strict=True)
            return [self.row(item, each, reply) for (item, each), reply in both], tokens

        return rows
