"""Imitations of servers: each is asked rightly, or refused in one line that names its fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raybias.engine.answers import Writing, Written
from raybias.errors import ConfigError, RaybiasError, WorkFailed
from raybias.providers.negotiation import Terms, read_refusal
from raybias.providers.openai import OpenAI, read_asked
from raybias.storage import Store
from support.endpoint import Endpoint, serving
from support.imitations import (
    LABELS,
    SERVERS,
    Imitation,
    Response,
    error,
    forbid,
    label_of,
    true_likelihood,
    unsupported,
)

pytest.importorskip("openai", reason="the extra raybias[endpoints] is not installed")

PAIRS = [("The cook was", " kind"), ("Q: Who?\n\nA:", " the old man"), ("a blank ", "and more")]
TEXTS = [f"The {who} is here" for who in ("cook", "old man", "elderly man", "young woman", "cat")]
#: What each says of likelihoods and first tokens, where it is refused.
NO_ECHO = "the endpoint did not return log-probabilities of a prompt's tokens"
LIKELIHOODS = {
    "SGLang": "",
    "SGLang, thinking": "",
    "vLLM": "",
    "vLLM, marks": "",
    "llama.cpp": "Only no echo is supported",
    "llama.cpp, echo ignored": "tokens that are not the prompt",
    "llama-cpp-python": "returns other log-probabilities for the tokens of a prompt",
    "vLLM, token ids": "returned numbers (token_id:0) in place of the prompt's tokens",
    "Ollama": NO_ECHO,
    "transformers serve": NO_ECHO,
    "Azure": "Only no echo is supported",
    "OpenAI, reasoning": "This is a chat model and not supported in v1/completions",
    "Mistral": "logprobs Extra inputs are not permitted",
    "OpenRouter": NO_ECHO,
}
FIRST_TOKENS = {
    "SGLang, thinking": "log-probabilities of the model's thoughts ('Okay' ..), not of its answer",
    "vLLM, token ids": "returned numbers (token_id:4) in place of the answer's tokens",
    "OpenRouter": "returned no log-probabilities of an answer's first token",
    "Ollama": "returned no log-probabilities of an answer's first token",
    "transformers serve": "returned no log-probabilities of an answer's first token",
    "OpenAI, reasoning": "'logprobs' is not supported with this model",
    "Mistral": "logprobs Extra inputs are not permitted",
}
TERMS = {
    "vLLM": {"top_logprobs 5"},
    "OpenAI, reasoning": {"max_completion_tokens", "no temperature"},
    "Mistral": {"no seed"},
}


def endpoint(url: str, **options: Any) -> OpenAI:
    chosen = {"key_variable": None, "retries": 1, "repeat": 0.0, "at_once": 4, **options}
    return OpenAI(endpoint=url, model="m", name="m", **chosen)


def ask(
    respond: Callable[[dict[str, Any], str], Response],
    out: Path,
    *,
    labels: bool = False,
    temperature: float = 0.0,
    texts: list[str] = TEXTS,
    **options: Any,
) -> tuple[list[Written], Endpoint]:
    """Answers of a server to chats, and what it was asked."""
    chats = [json.dumps([{"role": "user", "content": text}]) for text in texts]
    how = Writing(16, temperature, chat=True, labels=LABELS if labels else ())
    offers = ("chat", "first_tokens") if labels else ("chat",)
    with serving(Endpoint(key=None, respond=respond)) as server:
        answers = endpoint(server.url, offers=offers, **options).answers(Store(out))
        return answers.write(chats, [("a", n) for n in range(len(texts))], how), server


@pytest.mark.parametrize("name", sorted(SERVERS))
def test_likelihoods_are_the_models_own_or_refused(name: str, tmp_path: Path) -> None:
    with serving(Endpoint(key=None, respond=SERVERS[name])) as server:
        answers = endpoint(server.url, offers=("text", "likelihoods")).answers(Store(tmp_path))
        if not LIKELIHOODS[name]:
            expected = [true_likelihood(*pair) for pair in PAIRS]
            assert answers.likelihoods(PAIRS)[0] == pytest.approx(expected, abs=1e-9)
            return
        with pytest.raises(RaybiasError) as raised:
            answers.likelihoods(PAIRS)
    assert LIKELIHOODS[name] in str(raised.value)
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize("name", sorted(SERVERS))
def test_answers_of_chats_are_the_models_own(name: str, tmp_path: Path) -> None:
    replies, server = ask(SERVERS[name], tmp_path, temperature=0.7)
    for text, reply in zip(TEXTS, replies, strict=True):
        filtered = name == "Azure" and "elderly" in text
        assert reply.answer == ("" if filtered else label_of(text))
        assert reply.finish_reason == ("content_filter" if filtered else "stop")
    asked = read_asked(Store(tmp_path), "m")
    terms = TERMS.get(name, set()) - {"top_logprobs 5"}
    assert set(asked.terms) == terms
    # What is refused is asked once more without it, and no other request is.
    assert len(server.asked) == len(TEXTS) + len(terms)
    assert asked.requests == len(TEXTS)
    assert asked.filtered == (name == "Azure")


@pytest.mark.parametrize("name", sorted(SERVERS))
def test_label_scores_are_of_the_answers_first_token_or_refused(name: str, tmp_path: Path) -> None:
    if name in FIRST_TOKENS:
        with pytest.raises(RaybiasError) as raised:
            ask(SERVERS[name], tmp_path, labels=True)
        assert FIRST_TOKENS[name] in str(raised.value)
        return
    replies, server = ask(SERVERS[name], tmp_path, labels=True)
    for text, reply in zip(TEXTS, replies, strict=True):
        if reply.finish_reason == "content_filter":
            assert reply.label_scores == (0.0, 0.0, 0.0)
            assert reply.bounds == (0, 1, 2)
        else:
            best = max(reply.label_scores)
            assert (best, LABELS[reply.label_scores.index(best)]) == (-0.2, label_of(text))
    assert set(read_asked(Store(tmp_path), "m").terms) == TERMS.get(name, set())
    assert len(server.asked) == len(TEXTS) + (name == "vLLM")


def test_what_was_negotiated_is_known_to_the_next_command(tmp_path: Path) -> None:
    for count in (len(TEXTS) + 2, len(TEXTS)):
        _, server = ask(SERVERS["OpenAI, reasoning"], tmp_path)
        assert len(server.asked) == count
    assert all("max_completion_tokens" in body for body in server.asked)
    assert not any("temperature" in body for body in server.asked)


@given(
    names=st.sets(st.sampled_from(["max_tokens", "seed", "temperature"])),
    refuse=st.sampled_from(
        [
            lambda name: unsupported(name, ""),
            forbid,
            lambda name: (
                422,
                {
                    "detail": [
                        {
                            "loc": ["body", name],
                            "msg": "Extra inputs are not permitted",
                            "type": "extra_forbidden",
                        }
                    ]
                },
            ),
            lambda name: error(400, f"Unrecognized request argument supplied: {name}"),
            lambda name: (
                200,
                {
                    "error": {
                        "message": "Provider returned error",
                        "code": 400,
                        "metadata": {"raw": json.dumps(unsupported(name, "")[1])},
                    }
                },
            ),
        ]
    ),
    most=st.sampled_from([1, 2, 5, 8, 20]),
)
def test_any_refusal_is_negotiated_once(
    tmp_path_factory: pytest.TempPathFactory,
    names: set[str],
    refuse: Callable[[str], Response],
    most: int,
) -> None:
    def too_many(count: int) -> Response:
        return error(400, f"top_logprobs must be less than or equal to {most}, got {count}")

    refuses = {name: refuse(name) for name in sorted(names)}
    server = Imitation(refuses=refuses, most_logprobs=(most, too_many))
    replies, seen = ask(
        server, tmp_path_factory.mktemp("out"), labels=most > 1, temperature=0.7, texts=TEXTS[:3]
    )
    assert [reply.answer for reply in replies] == [label_of(text) for text in TEXTS[:3]]
    assert len(seen.asked) == 3 + len(names) + (1 < most < 20)


def test_terms_are_read_as_they_are_named() -> None:
    terms = Terms(
        "max_completion_tokens", seed=False, temperature=False, top_logprobs=5, logprobs=2
    )
    assert Terms.parse(terms.describe()) == terms
    assert Terms().describe() == ()
    assert Terms.parse(["top_logprobs 8", "top_logprobs 5"]).top_logprobs == 5


@pytest.mark.parametrize(
    "body",
    [
        {
            "message": "This model's maximum context length is 512 tokens, however you requested"
            " 600; reduce the length of the messages or max_tokens.",
            "param": "messages",
        },
        {"message": "'max_tokens' or 'max_completion_tokens' is too large: 16."},
        {"message": "The model is overloaded"},
        {"detail": [{"loc": ["body", "messages"], "msg": "Input should be a valid list"}]},
        "no JSON",
    ],
)
def test_a_refusal_that_no_parameter_explains_changes_nothing(body: Any) -> None:
    assert Terms().after(read_refusal(body), chat=True) is None


def test_a_refusal_that_is_not_understood_is_shown_with_its_field(tmp_path: Path) -> None:
    detail = [
        {"loc": ["body", "messages", 0, "role"], "msg": "Input should be 'user'", "type": "enum"}
    ]
    with pytest.raises(WorkFailed, match=r"422 - role Input should be 'user'"):
        ask(lambda body, path: (422, {"detail": detail}), tmp_path)


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
