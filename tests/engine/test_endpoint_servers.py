"""Imitations of servers: each is asked rightly, or refused in one line that names its fault."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raybias.errors import RaybiasError, WorkFailed
from raybias.providers.negotiation import Terms, read_refusal
from raybias.providers.openai import read_asked
from raybias.storage import Store
from support.ask_endpoint import TEXTS, ask, endpoint
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
