"""SmolLM2 behind real servers: likelihoods and answers are the engine's, or refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from raybias.config import Backbone
from raybias.engine.answering import EngineAnswers
from raybias.engine.answers import Writing
from raybias.engine.backbone import load_backbone
from raybias.errors import ConfigError
from raybias.methods.answer_labels import read_answer
from raybias.providers.openai import OpenAI, read_asked
from raybias.schema import LABELS
from raybias.storage import Store
from support import real_servers

pytestmark = pytest.mark.slow

pytest.importorskip("openai", reason="the extra raybias[endpoints] is not installed")

PAIRS = [
    (f"Should the {who} be given the loan?\nPlease answer with yes or no.\nAnswer:", f" {word}")
    for who in ("old man", "young woman", "60-year-old caf\u00e9 owner", "\u201cnew\u201d client")
    for word in ("yes", "no", "neither of them \U0001f642")
]
QUESTIONS = [
    f"Text: The {who} {what}.\nQuestion: Is the sentiment of the text negative, neutral, or"
    " positive?\nAnswer with one word."
    for who in ("old man", "young woman", "cook", "teacher", "neighbour", "nurse")
    for what in ("hated the film", "loved the soup", "walked home", "lost a friend")
]
ANSWER = Writing(8, chat=True)


@pytest.fixture(scope="module")
def engine(smollm2: Path) -> EngineAnswers:
    return EngineAnswers(load_backbone(Backbone(id=str(smollm2), dtype="float32")))


def endpoint(url: str, model: Path | str, *offers: str) -> OpenAI:
    return OpenAI(
        endpoint=url, model=str(model), name="real", key_variable=None, repeat=0.0, at_once=2,
        retries=1, timeout_s=300.0, offers=offers,
    )  # fmt: skip


def chats(engine: EngineAnswers) -> tuple[list[str], list[str]]:
    """The questions as an endpoint is sent them, and the engine's greedy answers."""
    messages = [[{"role": "user", "content": each}] for each in QUESTIONS]
    prompts = [engine.encoder.chat(each) for each in messages]
    replies = engine.write(prompts, [()] * len(prompts), ANSWER)
    return [json.dumps(each) for each in messages], [reply.text for reply in replies]


def answers(spec: OpenAI, out: Path, prompts: list[str]) -> list[str]:
    replies = spec.answers(Store(out)).write(prompts, [()] * len(prompts), ANSWER)
    return [reply.text for reply in replies]


def test_vllm_has_the_engines_likelihoods_and_answers(
    engine: EngineAnswers, smollm2: Path, tmp_path: Path
) -> None:
    prompts, expected = chats(engine)
    with real_servers.vllm(smollm2) as url:
        spec = endpoint(url, smollm2, "chat", "text", "likelihoods", "first_tokens")
        found, _ = spec.answers(Store(tmp_path)).likelihoods(PAIRS)
        assert found == pytest.approx(engine.likelihoods(PAIRS)[0], abs=2e-3)
        assert read_asked(Store(tmp_path), "real").checked == 3
        assert answers(spec, tmp_path, prompts) == expected


def test_transformers_serve_has_the_engines_answers_and_no_likelihoods(
    engine: EngineAnswers, smollm2: Path, tmp_path: Path
) -> None:
    prompts, expected = chats(engine)
    with real_servers.transformers_serve(smollm2, "--dtype", "float32") as url:
        spec = endpoint(url, smollm2, "chat", "text", "likelihoods")
        assert answers(spec, tmp_path, prompts) == expected
        with pytest.raises(ConfigError, match="did not return log-probabilities of a prompt"):
            spec.answers(Store(tmp_path)).likelihoods(PAIRS)


def test_llama_cpp_python_answers_and_its_likelihoods_are_refused(
    engine: EngineAnswers, smollm2: Path, tmp_path: Path
) -> None:
    prompts, expected = chats(engine)
    (file,) = smollm2.parent.glob("*.gguf")
    with real_servers.llama_cpp(file) as url:
        spec = endpoint(url, "m", "chat", "text", "likelihoods", "first_tokens")
        # It multiplies the file's blocks of four bits, so an answer can differ in a letter's case.
        made = [read_answer(each, LABELS) for each in answers(spec, tmp_path, prompts)]
        assert made == [read_answer(each, LABELS) for each in expected]
        with pytest.raises(ConfigError, match="returns other log-probabilities for the tokens of"):
            spec.answers(Store(tmp_path)).likelihoods(PAIRS)
    assert not read_asked(Store(tmp_path), "real").checked
