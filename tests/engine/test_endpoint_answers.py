"""Answers of imitated servers: errors, filters, cut answers, thoughts, budgets and proxies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from raybias.engine.answers import Writing
from raybias.errors import ConfigError, RaybiasError, WorkFailed
from raybias.providers.openai import read_asked
from raybias.storage import Store
from support.ask_endpoint import TEXTS, ask, endpoint
from support.endpoint import Endpoint, serving
from support.imitations import (
    SERVERS,
    Imitation,
    Response,
    error,
    label_of,
)

pytest.importorskip("openai", reason="the extra raybias[endpoints] is not installed")


RATE_LIMIT = {
    "error": {"message": "Provider returned error", "code": 429, "metadata": {"raw": "slow down"}}
}


@pytest.mark.parametrize(
    ("body", "tries", "message"),
    [
        (
            {"choices": None, **RATE_LIMIT},
            2,
            "asks to wait (Error code: 429 - Provider returned error slow down)",
        ),
        (
            {"choices": [{"message": {"role": "assistant", "content": None}}], **RATE_LIMIT},
            2,
            "asks to wait",
        ),
        (
            {
                "choices": [
                    {
                        "message": {"content": ""},
                        "finish_reason": "error",
                        "error": {"code": 502, "message": "upstream died"},
                    }
                ]
            },
            2,
            "fails (Error code: 502 - upstream died)",
        ),
        ({"error": "model not found"}, 1, "refuses a request (Error code: 400 - model not found)"),
        (
            {"error": {"message": "busy", "type": "server_error"}},
            2,
            "fails (Error code: 500 - busy)",
        ),
        ({"error": {"message": "no credit", "code": "insufficient_quota"}}, 2, "asks to wait"),
        ({"error": {"message": "who?", "type": "not_found_error"}}, 1, "has no model 'm'"),
        ({"choices": []}, 1, "answers what is no completion (no `choices`"),
        ({"object": "list"}, 1, "answers what is no completion (no `choices`"),
    ],
)
def test_an_error_in_a_reply_of_status_200_is_the_servers_own(
    body: dict[str, Any], tries: int, message: str, tmp_path: Path
) -> None:
    sent = []

    def respond(asked: dict[str, Any], path: str) -> Response:
        sent.append(asked)
        return 200, body

    with pytest.raises(RaybiasError) as raised:
        ask(respond, tmp_path, texts=TEXTS[:1])
    assert message in str(raised.value)
    assert "NoneType" not in str(raised.value)
    assert len(sent) == tries


def test_an_error_inside_a_reply_that_passes_is_tried_again(tmp_path: Path) -> None:
    first = [True]

    def respond(body: dict[str, Any], path: str) -> Response:
        if first:
            first.pop()
            return 200, {"choices": None, **RATE_LIMIT}
        return Imitation()(body, path)

    replies, _ = ask(respond, tmp_path)
    assert [reply.answer for reply in replies] == [label_of(text) for text in TEXTS]


FILTERED = {
    "finish reason": Imitation(
        message={"content": None}, choice={"finish_reason": "content_filter"}
    ),
    "begun": Imitation(
        message={"content": "One"}, choice={"finish_reason": "content_filter: SAFETY"}
    ),
    "refusal": Imitation(message={"content": None, "refusal": "I cannot."}),
    "moderation": Imitation(
        filtered=lambda text: error(
            403,
            "requires moderation",
            code=403,
            metadata={"reasons": ["hate"], "flagged_input": "x"},
        )
    ),
    "LiteLLM": Imitation(
        filtered=lambda text: error(
            400,
            "litellm.ContentPolicyViolationError",
            type=None,
            param=None,
            code="400",
            provider_specific_fields={"innererror": {"code": "ResponsibleAIPolicyViolation"}},
        )
    ),
    "OpenAI": Imitation(filtered=lambda text: error(400, "no", code="content_policy_violation")),
}


@pytest.mark.parametrize("labels", [False, True])
@pytest.mark.parametrize("name", sorted(FILTERED))
def test_a_filtered_answer_ends_nothing_and_has_no_label(
    name: str, labels: bool, tmp_path: Path
) -> None:
    replies, _ = ask(FILTERED[name], tmp_path, labels=labels)
    assert {reply.finish_reason for reply in replies} == {"content_filter"}
    assert {reply.label_scores for reply in replies} == {(0.0, 0.0, 0.0) if labels else ()}
    assert read_asked(Store(tmp_path), "m").filtered == len(TEXTS)


@pytest.mark.parametrize(
    ("usage", "estimated"),
    [
        (None, True),
        ({"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}, True),
        ({"prompt_tokens": None, "completion_tokens": None, "total_tokens": None}, True),
        ({"prompt_tokens": 9}, True),
        ({"prompt_tokens": 9, "completion_tokens": 4, "total_tokens": 13}, False),
    ],
)
def test_a_budget_binds_whatever_a_server_counts(
    usage: Any, estimated: bool, tmp_path: Path
) -> None:
    def respond(body: dict[str, Any], path: str) -> Response:
        status, reply = Imitation()(body, path)
        return status, {**reply, "usage": usage}

    many = [f"{text} {n}" for n in range(6) for text in TEXTS]
    options = {"prices": {"read": 1, "written": 1}}
    ask(respond, tmp_path, texts=many, **options)
    asked = read_asked(Store(tmp_path), "m")
    assert asked.estimated == (len(many) if estimated else 0)
    assert asked.tokens >= 8 * len(many)
    assert ("estimated" in asked.in_words(endpoint("http://x").prices)) == estimated
    for budget in ({"tokens": asked.tokens + 50}, {"money": (asked.tokens + 50) / 1e6}):
        with pytest.raises(WorkFailed, match=rf"budget.{next(iter(budget))} of \S+ is reached"):
            ask(respond, tmp_path, texts=many, budget=budget, **options)


@pytest.mark.parametrize("reason", ["length", "max_tokens", "MAX_TOKENS", "model_length"])
def test_a_cut_answer_is_told_apart(reason: str, tmp_path: Path) -> None:
    cut = Imitation(message={"content": "One could call it"}, choice={"finish_reason": reason})
    replies, _ = ask(cut, tmp_path)
    assert {reply.finish_reason for reply in replies} == {"length"}
    asked = read_asked(Store(tmp_path), "m")
    assert (asked.cut, asked.cut_empty) == (len(TEXTS), 0)


def test_a_model_whose_thoughts_take_all_its_tokens_is_counted(tmp_path: Path) -> None:
    thinks = {"content": "", "reasoning_content": "Okay, the user"}
    replies, _ = ask(Imitation(message=thinks, choice={"finish_reason": "length"}), tmp_path)
    assert {reply.text for reply in replies} == {"<think>Okay, the user</think>"}
    assert read_asked(Store(tmp_path), "m").cut_empty == len(TEXTS)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"reasoning": "Hm."}, "<think>Hm.</think>{label}"),
        ({"reasoning_content": "Hm."}, "<think>Hm.</think>{label}"),
        (
            {
                "content": [
                    {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
                    {"type": "text", "text": "positive"},
                ]
            },
            "<think>Hm.</think>positive",
        ),
        ({"content": None}, ""),
    ],
)
def test_thoughts_come_apart_from_the_answer(
    message: dict[str, Any], text: str, tmp_path: Path
) -> None:
    replies, _ = ask(Imitation(message=message), tmp_path)
    expected = [text.format(label=label_of(each)) for each in TEXTS]
    assert [reply.text for reply in replies] == expected


COMPLETION_STYLE = {
    "tokens": ["neg", "ative"],
    "token_logprobs": [-0.2, -0.1],
    "top_logprobs": [{"neg": -0.2, "pos": -1.0}, {}],
    "text_offset": [0, 3],
}


@pytest.mark.parametrize(
    ("logprobs", "message"),
    [
        (COMPLETION_STYLE, ""),
        ({"content": []}, "returned no log-probabilities of an answer's first token"),
        ({}, "returned no log-probabilities of an answer's first token"),
        (None, "returned no log-probabilities of an answer's first token"),
        (
            {"content": [{"token": "neg", "logprob": 0.5, "top_logprobs": []}]},
            "log-probability of 0.5",
        ),
        (
            {"content": [{"token": "neg", "logprob": None, "top_logprobs": []}]},
            "log-probability of None",
        ),
        (
            {"content": [{"token": "Okay", "logprob": -0.5, "top_logprobs": []}]},
            "that are not the answer",
        ),
    ],
)
def test_first_tokens_of_any_form_are_the_answers_or_one_line(
    logprobs: Any, message: str, tmp_path: Path
) -> None:
    server = Imitation(message={"content": "negative"}, choice={"logprobs": logprobs})
    if message:
        with pytest.raises(ConfigError, match=message):
            ask(server, tmp_path, labels=True)
        return
    replies, _ = ask(server, tmp_path, labels=True)
    assert {reply.label_scores for reply in replies} == {(-0.2, -1.0, -1.0)}


@pytest.mark.parametrize(
    "content", ["<think>Okay", "Okay.</think>negative", "<think></think>negative"]
)
def test_the_first_token_of_thoughts_within_an_answer_is_no_label(
    content: str, tmp_path: Path
) -> None:
    told = {"content": [{"token": content, "logprob": -0.1, "top_logprobs": []}]}
    server = Imitation(message={"content": content}, choice={"logprobs": told})
    with pytest.raises(ConfigError, match="of the model's thoughts"):
        ask(server, tmp_path, labels=True)


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "ALL_PROXY"])
def test_a_proxy_before_an_endpoint_on_this_machine_is_named(
    variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_PROXY", "HTTP_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setenv(variable, "http://user:secret@127.0.0.1:9")
    with pytest.raises(WorkFailed) as raised:
        ask(Imitation(), tmp_path, retries=0)
    said = str(raised.value)
    assert f"through the proxy http://***@127.0.0.1:9 ({variable})" in said
    assert "set NO_PROXY=127.0.0.1,localhost" in said
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    assert len(ask(Imitation(), tmp_path)[0]) == len(TEXTS)


def test_a_stream_is_named(tmp_path: Path) -> None:
    with serving(Endpoint(key=None, fault=lambda number: "garbage")) as server:
        spec = endpoint(server.url)
        with pytest.raises(WorkFailed, match=r"no completion \(no JSON: <html>welcome"):
            spec.answers(Store(tmp_path)).write(["[]"], [("a",)], Writing(3, chat=True))


def test_an_imitation_without_quirks_is_what_the_api_documents() -> None:
    plain = replace(SERVERS["SGLang"], lie=lambda *echo: echo)
    status, body = plain(
        {"model": "m", "prompt": "a b", "max_tokens": 1, "echo": True, "logprobs": 1},
        "/v1/completions",
    )
    told = body["choices"][0]["logprobs"]
    assert status == 200
    assert "".join(told["tokens"]) == body["choices"][0]["text"]
    assert told["text_offset"] == [0, 1, 3]
