"""Imitations of OpenAI-compatible servers, each with the quirks that it was reported to have.

A made-up model stands behind them: a token's log-probability is a hash of the text up to it, so
that a test knows the truth about any text. What each server answers follows its source or public
reports of its replies.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

#: Status and body of a reply.
Response = tuple[int, dict[str, Any]]
#: From tokens, log-probabilities and offsets of a prompt to those that a server returns.
Echo = tuple[list[str], list[Any], list[int]]
Lie = Callable[[list[str], list[Any], list[int]], Echo]
WORDS = (" red", " blue", " cold", " warm", " old", " new")
LABELS = ("negative", "neutral", "positive")


def cut_tokens(text: str) -> list[str]:
    """Cut a text into tokens of at most four letters, with the blank before them."""
    return re.findall(r" ?\w{1,4}|\s|[^\w\s]", text)


def log_probability(before: str, token: str) -> float:
    """Return the log-probability of a token after a text, between -10.01 and -.01."""
    digest = hashlib.sha256(f"{before}|{token}".encode()).hexdigest()
    return -(int(digest, 16) % 1000) / 100 - 0.01


def true_likelihood(text: str, after: str) -> float:
    """Return the log-likelihood of a continuation, which takes the blanks at the text's end."""
    whole, position, total = text + after, 0, 0.0
    for token in cut_tokens(whole):
        if position >= len(text.rstrip()) and position:
            total += log_probability(whole[:position], token)
        position += len(token)
    return total


def continue_text(text: str, count: int) -> list[tuple[str, float]]:
    """Return so many greedy tokens after a text, with their log-probabilities."""
    made = []
    for _ in range(count):
        token = max(WORDS, key=lambda word: log_probability(text, word))
        made.append((token, log_probability(text, token)))
        text += token
    return made


def label_of(text: str) -> str:
    """Return the label that a chat's question gets."""
    return LABELS[int(hashlib.sha256(text.encode()).hexdigest(), 16) % 3]


def keep(tokens: list[str], values: list[Any], offsets: list[int]) -> Echo:
    """Return what the API documents."""
    return tokens, values, offsets


@dataclass(frozen=True)
class Imitation:
    """One server: how it echoes, what it refuses, and what stands in its chats.

    echo: whether completions echo a prompt with log-probabilities; `ignored` returns those of the
    generated tokens alone, `refused` an error.
    logprobs: in which form completions return log-probabilities, if any.
    lie: what becomes of an echoed prompt's tokens.
    refuses: the error of each parameter that is not taken, by its name.
    most_logprobs: alternatives to a token that are allowed, and the error above them.
    message: what a chat's message has beside its content; `prefix` precedes the answer's tokens.
    choice: what a choice has beside them.
    chats_only: whether it has no completions of plain text.
    usage: whether replies count tokens.
    filtered: the reply to a text that a filter of contents refuses, else None.
    """

    echo: Literal["full", "ignored", "refused"] = "full"
    logprobs: Literal["lists", "content"] | None = "lists"
    lie: Lie = keep
    refuses: Mapping[str, Response] = field(default_factory=dict)
    most_logprobs: tuple[int, Callable[[int], Response]] | None = None
    message: Mapping[str, Any] = field(default_factory=dict)
    prefix: tuple[str, ...] = ()
    choice: Mapping[str, Any] = field(default_factory=dict)
    spell: Callable[[str], str] = str
    chats_only: bool = False
    usage: bool = True
    filtered: Callable[[str], Response | None] = lambda text: None

    def __call__(self, body: dict[str, Any], path: str) -> Response:
        """Answer a request."""
        chat = path.endswith("/chat/completions")
        if self.chats_only and not chat:
            return error(404, "This is a chat model and not supported in v1/completions", code=None)
        for name, response in self.refuses.items():
            if name in body:
                return response
        if self.most_logprobs is not None:
            most, response_of = self.most_logprobs
            asked = body.get("top_logprobs", 0) or body.get("logprobs", 0)
            if int(asked) > most:
                return response_of(int(asked))
        text = "\n".join(each["content"] for each in body["messages"]) if chat else body["prompt"]
        if (response := self.filtered(text)) is not None:
            return response
        choice = self.answer(body, text) if chat else self.complete(body, text)
        if choice is None:
            return error(400, "Only no echo is supported", type="invalid_request_error")
        usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
        kind = "chat.completion" if chat else "text_completion"
        reply = {"id": "1", "object": kind, "created": 1, "model": body["model"]}
        return 200, {**reply, "choices": [choice], **({"usage": usage} if self.usage else {})}

    def complete(self, body: dict[str, Any], prompt: str) -> dict[str, Any] | None:
        """Return the choice of a completion; None: the request is refused."""
        if body.get("echo") and self.echo == "refused":
            return None
        made = continue_text(prompt, body.get("max_tokens", 16))
        text = "".join(token for token, _ in made)
        tokens, values = [token for token, _ in made], [value for _, value in made]
        if body.get("echo") and self.echo == "full":
            cut, text = cut_tokens(prompt), prompt + text
            starts = [sum(map(len, cut[:n])) for n in range(len(cut))]
            scored = [
                log_probability(prompt[:start], token)
                for start, token in zip(starts, cut, strict=True)
            ]
            shown, told, _ = self.lie(cut, [None, *scored[1:]], starts)
            tokens, values = [*shown, *tokens], [*told, *values]
        logprobs: dict[str, Any] | None = None
        if body.get("logprobs") and self.logprobs == "lists":
            starts = [sum(map(len, tokens[:n])) for n in range(len(tokens))]
            # The offsets alone are a lie about generated tokens too.
            offsets = self.lie(tokens, values, starts)[2]
            logprobs = {"tokens": tokens, "token_logprobs": values, "text_offset": offsets}
            logprobs["top_logprobs"] = [
                {t: v} if v is not None else None for t, v in zip(tokens, values, strict=False)
            ]
        if body.get("logprobs") and self.logprobs == "content":
            logprobs = {
                "content": [{"token": t, "logprob": v, "top_logprobs": []} for t, v in made]
            }
        return {"index": 0, "text": text, "finish_reason": "length", "logprobs": logprobs}

    def answer(self, body: dict[str, Any], text: str) -> dict[str, Any]:
        """Return the choice of a chat: one label, with the likeliest first tokens if asked for."""
        label = label_of(text)
        message = {"role": "assistant", "content": label, **self.message}
        logprobs = None
        if body.get("logprobs") and self.logprobs is not None:
            tokens = [*self.prefix, label[:4], label[4:]]
            likeliest = [(label[:4], -0.2), (" the", -3.0)]
            likeliest += [(each[:4], -2.0) for each in LABELS if each != label]
            if self.prefix:
                likeliest = [(self.prefix[0], -0.1), *[(t, v - 9) for t, v in likeliest]]
            top = [{"token": self.spell(t), "logprob": v, "bytes": None} for t, v in likeliest]
            rows = [
                {
                    "token": self.spell(t),
                    "logprob": -0.1,
                    "bytes": None,
                    "top_logprobs": top[: body.get("top_logprobs", 1)],
                }
                for t in tokens
            ]
            logprobs = {"content": rows}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": logprobs}
        return {**choice, **self.choice}


def error(status: int, message: Any, **fields: Any) -> Response:
    """Return an error in the API's form."""
    return status, {"error": {"message": message, **fields}}


def forbid(name: str) -> Response:
    """Return Mistral's refusal of a parameter, in which FastAPI's detail is the message."""
    detail = [
        {
            "type": "extra_forbidden",
            "loc": ["body", name],
            "msg": "Extra inputs are not permitted",
            "input": 1,
        }
    ]
    return 422, {
        "object": "error",
        "message": {"detail": detail},
        "type": "invalid_request_error",
        "param": None,
        "code": None,
    }


def unsupported(name: str, instead: str) -> Response:
    """Return OpenAI's refusal of a parameter of a reasoning model."""
    message = f"Unsupported parameter: '{name}' is not supported with this model.{instead}"
    return error(
        400, message, type="invalid_request_error", param=name, code="unsupported_parameter"
    )


def minus_one(tokens: list[str], values: list[Any], offsets: list[int]) -> Echo:
    return tokens, values, [-1] * len(offsets)


def count_bytes(tokens: list[str], values: list[Any], offsets: list[int]) -> Echo:
    return tokens, values, [len("".join(tokens[:n]).encode()) for n in range(len(tokens))]


def run_away(tokens: list[str], values: list[Any], offsets: list[int]) -> Echo:
    return tokens, values, [3 * offset + 1 for offset in offsets]


def add_begin_token(tokens: list[str], values: list[Any], offsets: list[int]) -> Echo:
    return ["<s>", *tokens], [None, -1.0, *values[1:]], [0, *offsets]


def mark_byte_level(tokens: list[str], values: list[Any], offsets: list[int]) -> Echo:
    return [byte_level(token) for token in tokens], values, offsets


def byte_level(text: str) -> str:
    """Write a text in the alphabet of byte-level BPE, as vocabularies have it."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    shown = {byte: chr(byte) for byte in printable}
    shown |= {byte: chr(256 + n) for n, byte in enumerate(others)}
    return "".join(shown[byte] for byte in text.encode())


def mark_blanks(tokens: list[str], values: list[Any], offsets: list[int]) -> Echo:
    marked = [token.replace(" ", "\u2581") for token in tokens]
    return [f"\u2581{marked[0]}", *marked[1:]], values, offsets


def number_tokens(tokens: list[str], values: list[Any], offsets: list[int]) -> Echo:
    return [f"token_id:{n}" for n in range(len(tokens))], values, offsets


def repeat_newlines(tokens: list[str], values: list[Any], offsets: list[int]) -> Echo:
    return [token.replace("\n", "\n\n") for token in tokens], values, offsets


def lose_characters(tokens: list[str], values: list[Any], offsets: list[int]) -> Echo:
    """Show what is no ASCII as undecoded bytes."""
    return [re.sub(r"[^\x00-\x7f]", "\ufffd", token) for token in tokens], values, offsets


def shift_rows(tokens: list[str], values: list[Any], offsets: list[int]) -> Echo:
    return tokens, [values[0], *values[2:], -5.0], offsets


def reverse_values(tokens: list[str], values: list[Any], offsets: list[int]) -> Echo:
    return tokens, [None, *reversed(values[1:])], offsets


def reverse_tokens(tokens: list[str], values: list[Any], offsets: list[int]) -> Echo:
    return tokens[::-1], values[::-1], offsets


def swap_last(tokens: list[str], values: list[Any], offsets: list[int]) -> Echo:
    return tokens, [*values[:-2], *values[:-3:-1]], offsets


def drop_first(tokens: list[str], values: list[Any], offsets: list[int]) -> Echo:
    return tokens[1:], values[1:], offsets[1:]


def repeat_last(tokens: list[str], values: list[Any], offsets: list[int]) -> Echo:
    return [*tokens, tokens[-1]], [*values, values[-1]], [*offsets, offsets[-1]]


def shorten_values(tokens: list[str], values: list[Any], offsets: list[int]) -> Echo:
    return tokens, values[:-1], offsets


def give_always(value: Any) -> Lie:
    """Return a server that has one value for every token."""
    return lambda tokens, values, offsets: (tokens, [value] * len(values), offsets)


#: What servers do to an echoed prompt, by name.
LIES: dict[str, Lie] = {
    "none": keep,
    "offsets of -1": minus_one,
    "offsets in bytes": count_bytes,
    "offsets that run away": run_away,
    "a begin token": add_begin_token,
    "byte-level marks": mark_byte_level,
    "marks for blanks": mark_blanks,
    "numbers for tokens": number_tokens,
    "newlines twice": repeat_newlines,
    "undecoded bytes": lose_characters,
    "rows of other tokens": shift_rows,
    "values in reverse": reverse_values,
    "tokens in reverse": reverse_tokens,
    "the last two values swapped": swap_last,
    "no first token": drop_first,
    "the last token twice": repeat_last,
    "a value too few": shorten_values,
    "zeros": give_always(0.0),
    "nulls": give_always(None),
    "no numbers": give_always(float("nan")),
    "positive values": give_always(0.7),
    "texts for values": give_always("-1.0"),
}


def say_too_many(count: int) -> Response:
    """Return vLLM's refusal of more alternatives than it is started with."""
    message = (
        f"Requested sample logprobs of {count}, which is greater than max allowed: 5"
        f" (parameter=logprobs, value={count})"
    )
    return error(400, message, type="BadRequestError", param="logprobs", code=400)


def filter_elderly(text: str) -> Response | None:
    """Return Azure's refusal of a prompt that names the elderly."""
    if "elderly" not in text.lower():
        return None
    message = "The response was filtered due to Azure OpenAI's content management policy."
    categories = {"hate": {"filtered": True, "severity": "medium"}}
    inner = {"code": "ResponsibleAIPolicyViolation", "content_filter_result": categories}
    status, body = error(400, message, type=None, param="prompt", code="content_filter")
    return status, {"error": {**body["error"], "status": 400, "innererror": inner}}


_TEMPERATURE = error(
    400,
    "Unsupported value: 'temperature' does not support 0 with this model. Only the default (1)"
    " value is supported.",
    type="invalid_request_error", param="temperature", code="unsupported_value",
)  # fmt: skip

SERVERS: dict[str, Imitation] = {
    "SGLang": Imitation(lie=minus_one),
    "SGLang, thinking": Imitation(
        message={"reasoning_content": "Okay, let me see."},
        prefix=("Okay", ",", " let", " me", " see.", "</think>"),
    ),
    "llama.cpp": Imitation(echo="refused", logprobs="content"),
    "llama.cpp, echo ignored": Imitation(echo="ignored", logprobs="lists"),
    "llama-cpp-python": Imitation(lie=shift_rows),
    "vLLM": Imitation(lie=add_begin_token, most_logprobs=(5, say_too_many)),
    "vLLM, marks": Imitation(lie=mark_byte_level, spell=byte_level),
    "vLLM, token ids": Imitation(lie=number_tokens, spell=lambda token: f"token_id:{len(token)}"),
    "Ollama": Imitation(echo="ignored", logprobs=None),
    "transformers serve": Imitation(echo="ignored", logprobs=None),
    "OpenRouter": Imitation(echo="ignored", logprobs=None, choice={"native_finish_reason": "stop"}),
    "Azure": Imitation(echo="refused", filtered=filter_elderly),
    "OpenAI, reasoning": Imitation(
        chats_only=True,
        refuses={
            "max_tokens": unsupported("max_tokens", " Use 'max_completion_tokens' instead."),
            "temperature": _TEMPERATURE,
            "logprobs": unsupported("logprobs", ""),
        },
    ),
    "Mistral": Imitation(
        echo="refused", refuses={name: forbid(name) for name in ("seed", "logprobs", "echo")},
    ),
}  # fmt: skip
