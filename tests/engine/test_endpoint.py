"""Endpoints: what they answer is what the engine says, and whatever they do is one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from raybias.config import Backbone, parse_study
from raybias.engine.answering import EngineAnswers
from raybias.engine.answers import Writing
from raybias.engine.backbone import LoadedBackbone, load_backbone
from raybias.engine.sentence_scores import continuation_rows
from raybias.errors import ConfigError, RaybiasError, WorkFailed
from raybias.methods import ChainOfThought, FewShot, ZeroShot
from raybias.methods.base import Run
from raybias.methods.label_prompts import PromptedReader
from raybias.methods.prompted import Prompted
from raybias.planning.prepared import fit_methods
from raybias.providers import asking as bounded
from raybias.providers.base import RememberedAnswers
from raybias.providers.openai import OpenAI, read_asked
from raybias.schema import LABELS
from raybias.storage import Store
from support import prompting
from support.endpoint import KEY, Endpoint, serving
from support.imitations import LIES, Imitation, true_likelihood
from support.reading import labelled
from support.real_servers import transformers_serve

pytest.importorskip("openai", reason="the extra raybias[endpoints] is not installed")

CHAT = {"seeds": (7,), "temperature": 0.0, "prompt_format": "chat", "unparsed": "invalid"}
RUN = Run("run", seed=7)
SHOTS = (("it was dull", 0), ("it was long", 1), ("it was a delight", 2))


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> EngineAnswers:
    folder = prompting.save_chat("llama", tmp_path_factory.mktemp("chat"))
    return EngineAnswers(load_backbone(Backbone(id=str(folder), dtype="float32")))


def endpoint(url: str, **options: object) -> OpenAI:
    chosen = {"retries": 1, "timeout_s": 20.0, "at_once": 3, "repeat": 0.0, **options}
    return OpenAI(endpoint=url, model="tiny", name="tiny", **chosen)


def predictor(answers: Any, method: Prompted) -> PromptedReader:
    return PromptedReader(method, answers, LABELS, Store("."))


class Reference:
    """A server whose greedy tokens and log-probabilities are those of a loaded model."""

    def __init__(self, engine: EngineAnswers, *, begin: bool) -> None:
        self.engine, self.begin = engine, begin

    def __call__(self, body: dict[str, Any]) -> dict[str, Any]:
        backbone: LoadedBackbone = self.engine.backbone
        row = backbone.tokenizer(body["prompt"], add_special_tokens=False)["input_ids"]
        begun, first = ([1, *row], ["</s>"]) if self.begin else (row, [])
        made = []
        for _ in range(body["max_tokens"]):
            ids = torch.tensor([[*begun, *made]])
            with torch.no_grad():
                made.append(int(backbone.model(input_ids=ids).logits[0, -1].argmax()))
        values = self.engine._scorer.prepare([([*begun, *made], 1)])()[0].tolist()
        tokens = [*first, *(backbone.tokenizer.decode([each]) for each in (*row, *made))]
        text = backbone.tokenizer.decode(made)
        told = {
            "tokens": tokens,
            "token_logprobs": [None, *values],
            "text_offset": np.cumsum([0, *map(len, tokens)]).tolist()[:-1],
        }
        if not body.get("echo"):
            return {"text": text, "logprobs": {k: v[-len(made) :] for k, v in told.items()}}
        return {"text": body["prompt"] + text, "logprobs": told}


@pytest.mark.long
@pytest.mark.parametrize("begin", [False, True])
def test_likelihoods_behind_an_echo_are_those_of_the_engine(
    engine: EngineAnswers, tmp_path: Path, begin: bool
) -> None:
    texts = [(text, f" {word}") for text in prompting.texts(4) for word in (*LABELS, "so it is")]
    texts.append(("ends with a blank ", "and goes on"))
    bos = "prepend" if begin else "none"
    spec = engine.backbone.spec.model_copy(update={"bos": bos})
    rows = continuation_rows(type(engine.encoder)(
        spec, engine.encoder.tokenizer, engine.encoder.context, engine.encoder.rows
    ), texts)  # fmt: skip
    expected = [each.sum() for each in engine._scorer.prepare(rows)()]
    with serving(Endpoint(answer=Reference(engine, begin=begin))) as server:
        spec_of = endpoint(server.url, offers=("text", "likelihoods"), repeat=0.5)
        asking = spec_of.answers(Store(tmp_path))
        found, tokens = asking.likelihoods(texts)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert tokens == 10 * len(texts)
    asked = read_asked(Store(tmp_path), "tiny")
    # Three texts at least are continued, and echoed, before the first likelihood.
    checks = [each for each in server.asked if "echo" not in each]
    assert len(checks) >= 3
    assert asked.requests == len(server.asked) == len(texts) + asked.twice + 2 * len(checks)
    assert 0 < asked.twice == asked.same


@pytest.mark.parametrize("most", [0, 1, 30])
def test_the_engine_says_which_answers_reached_their_limit(
    engine: EngineAnswers, most: int
) -> None:
    texts = prompting.texts(8)
    rows = engine.encoder.encode(texts)
    replies = engine.write(texts, [("a", n) for n in range(8)], Writing(most, 1.0))
    for row, reply in zip(rows, replies, strict=True):
        whole = most and reply.tokens - len(row) == most
        assert reply.finish_reason == ("length" if whole else "stop")


@pytest.mark.slow
def test_greedy_answers_are_those_of_a_server_of_transformers(
    engine: EngineAnswers, tmp_path: Path
) -> None:
    """`transformers serve` gives no log-probabilities, so labels are read from answers alone."""
    texts = prompting.texts(6)
    with transformers_serve(engine.backbone.spec.id) as url:
        for method in (
            # An endpoint cannot be given the begin of the model's turn.
            ZeroShot(**CHAT, system="Answer in one word.", cue=""),
            FewShot(**CHAT, cue=""),
            ZeroShot(**{**CHAT, "prompt_format": "raw"}),
            ChainOfThought(**{**CHAT, "prompt_format": "raw"}, reasoning_tokens=9),
        ):
            spec = endpoint(url, offers=("chat", "text")).model_copy(
                update={"id": engine.backbone.spec.id}
            )
            run = Run("run", seed=7, recipe={"shots": SHOTS if isinstance(method, FewShot) else ()})
            ours = labelled(predictor(engine, method), run, texts, texts)
            who = predictor(spec.answers(Store(tmp_path)), method)
            theirs = labelled(who, run, texts, texts)
            assert ours["texts"] == theirs["texts"]
            assert ours["labels"] == theirs["labels"]


FAULTS = [
    ("401", ConfigError, "refuses the key"),
    ("404", ConfigError, "has no model 'tiny'"),
    ("429", WorkFailed, "asks to wait"),
    ("500", WorkFailed, "fails"),
    ("garbage", WorkFailed, "answers what is no completion"),
    ("no choices", WorkFailed, "answers what is no completion"),
    ("half a body", WorkFailed, "breaks off"),
    ("never", WorkFailed, "does not answer within 0.3 s"),
    ("drips", WorkFailed, "does not answer within 0.3 s"),
    ("endless", WorkFailed, "a reply of more than 1 MiB"),
    ("compressed", WorkFailed, "a compressed reply"),
    ("echoes the key", WorkFailed, "internal error at Bearer ***"),
]


def ask(spec: OpenAI, out: Path, count: int = 6) -> list[str]:
    """Answers to as many chats."""
    chats = [json.dumps([{"role": "user", "content": str(n)}]) for n in range(count)]
    keys = [("a", n) for n in range(count)]
    how = Writing(3, 0.5, chat=True)
    return [each.text for each in spec.answers(Store(out)).write(chats, keys, how)]


@pytest.mark.parametrize(("fault", "kind", "message"), FAULTS, ids=[each[0] for each in FAULTS])
def test_whatever_an_endpoint_does_is_one_line_without_the_key(
    fault: str,
    kind: type[RaybiasError],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bounded, "MOST", 2**20)
    with serving(Endpoint(fault=lambda number: fault)) as server:
        with pytest.raises(kind) as error:
            ask(endpoint(server.url, timeout_s=0.3), tmp_path)
        assert message in str(error.value)
        assert KEY not in str(error.value)
        assert not list(tmp_path.rglob("*.json"))


@pytest.mark.parametrize("fault", ["429", "500", "half a body", "never"])
def test_a_passing_fault_is_tried_again(fault: str, tmp_path: Path) -> None:
    first = Endpoint(fault=lambda number: fault if number == 1 else None)
    with serving(first) as server:
        assert ask(endpoint(server.url, timeout_s=0.5), tmp_path) == ["It is positive."] * 6
        assert len(server.asked) == 7


def test_a_key_that_an_endpoint_repeats_reaches_neither_answers_nor_notes(tmp_path: Path) -> None:
    message = {"role": "assistant", "content": f"yes {KEY}", "reasoning_content": f"it is {KEY}"}
    server = Endpoint(lambda _: {"message": message}, model=f"tiny-{KEY}", fingerprint=f"fp-{KEY}")
    with serving(server):
        said = ask(endpoint(server.url), tmp_path)
    assert set(said) == {"<think>it is ***</think>yes ***"}
    asked = read_asked(Store(tmp_path), "tiny")
    assert (set(asked.models), set(asked.fingerprints)) == ({"tiny-***"}, {"fp-***"})
    assert not any(KEY in each.read_text() for each in tmp_path.rglob("*.json"))


def test_a_log_probability_that_is_no_number_is_kept_nowhere(tmp_path: Path) -> None:
    wrong = [True]

    def lie(*echo: Any) -> Any:
        # Only the study's own texts, after the check of the server.
        return LIES["no numbers"](*echo) if wrong and echo[0][0] == "a" else echo

    with serving(Endpoint(respond=Imitation(lie=lie))) as server:
        spec = endpoint(server.url, offers=("text", "likelihoods"))
        for _ in range(2):
            remembered = RememberedAnswers(
                spec.answers(Store(tmp_path)), Store(tmp_path / "memory"), spec
            )
            with pytest.raises(ConfigError, match="gives a log-probability of nan"):
                remembered.likelihoods([("a", " b")])
            assert not list(tmp_path.rglob("*.parquet"))
        wrong.pop()
        assert remembered.likelihoods([("a", " b")])[0] == [true_likelihood("a", " b")]


def test_as_many_requests_are_under_way_as_the_study_says(tmp_path: Path) -> None:
    with serving(Endpoint(delay_s=0.1)) as server:
        ask(endpoint(server.url, at_once=5), tmp_path, 20)
    assert server.most_at_once == 5


def test_what_is_sampled_is_keyed_and_what_is_asked_twice_does_not_depend_on_order(
    tmp_path: Path,
) -> None:
    with serving(Endpoint(answer=lambda body: str(body["seed"]))) as server:
        spec = endpoint(server.url, repeat=0.3)
        once, again = (ask(spec, tmp_path / name) for name in ("one", "two"))
        assert len(set(once)) == 6
        assert once == again
        contents = [each["messages"][0]["content"] for each in server.asked]
    assert sorted(contents[: len(contents) // 2]) == sorted(contents[len(contents) // 2 :])


def test_label_scores_are_of_the_likeliest_first_tokens(tmp_path: Path) -> None:
    def answer(body: dict[str, Any]) -> dict[str, Any]:
        assert body["top_logprobs"] == 20
        likeliest = [(" pos", -0.5), ("Neut", -1.0), ("neut", -1.5), (" the", -3.0)]
        top = [{"token": token, "logprob": value, "bytes": None} for token, value in likeliest]
        first = {**top[0], "top_logprobs": top}
        return {
            "message": {"role": "assistant", "content": "pos", "reasoning_content": "negative?"},
            "logprobs": {"content": [first]},
        }

    method = ZeroShot(**{**CHAT, "unparsed": "likelihood"})
    with serving(Endpoint(answer=answer)) as server:
        spec = endpoint(server.url, offers=("chat", "first_tokens"))
        who = predictor(spec.answers(Store(tmp_path)), method)
        found = labelled(who, RUN, ["a"], ["text"])
    np.testing.assert_allclose(found["logits"], [[-3.0, np.logaddexp(-1.0, -1.5), -0.5]])
    assert found["texts"] == ["<think>negative?</think>pos"]
    assert found["labels"] == [2]
    assert found["parsed"] == [False]


def test_a_label_that_is_not_among_the_likeliest_tokens_is_neither_read_nor_calibrated(
    tmp_path: Path,
) -> None:
    def answer(body: dict[str, Any]) -> dict[str, Any]:
        likeliest = [(" the", -1.0), (" neg" if "dull" in str(body) else " a", -2.0)]
        top = [{"token": token, "logprob": value, "bytes": None} for token, value in likeliest]
        told = {"content": [{**top[0], "top_logprobs": top}]}
        return {"message": {"role": "assistant", "content": "the"}, "logprobs": told}

    run = Run("run", seed=7, recipe={"calibration": ["so it is"]})
    texts = ["a", "b"], ["it was long", "it was dull"]
    with serving(Endpoint(answer=answer)) as server:
        spec = endpoint(server.url, offers=("chat", "first_tokens"))
        answers = RememberedAnswers(spec.answers(Store(tmp_path)), Store(tmp_path / "memory"), spec)
        who = predictor(answers, ZeroShot(**{**CHAT, "read": "likelihood"}))
        found = labelled(who, run, *texts)
        # A word that is not told may be as likely as the least likely token that is.
        assert found["labels"] == [None, None]
        assert found["parsed"] == [False, False]
        for asked in (3, 3):  # the second time from the memory
            who = predictor(answers, ZeroShot(**{**CHAT, "read": "calibrated"}))
            with pytest.raises(WorkFailed, match="of 'negative' is not told for 1 of the 1"):
                labelled(who, run, *texts)
            assert len(server.asked) == asked
        assert {each["temperature"] for each in server.asked} == {0}


def test_shown_answers_of_an_endpoint_begin_with_their_label(tmp_path: Path) -> None:
    method = FewShot(**CHAT)
    run = Run("run", seed=7, recipe={"shots": SHOTS})
    with serving(Endpoint()) as server:
        who = predictor(endpoint(server.url).answers(Store(tmp_path)), method)
        labelled(who, run, ["a"], ["text"])
        (asked,) = server.asked
    said = [(each["role"], each["content"].splitlines()[-1]) for each in asked["messages"]]
    question = "Question: What is the sentiment of the text?"
    assert said == [
        ("user", question), ("assistant", "Negative."),
        ("user", question), ("assistant", "Neutral."),
        ("user", question), ("assistant", "Positive."),
        ("user", "Answer with one word."),
    ]  # fmt: skip


def test_a_budget_stops_before_what_it_would_not_end(tmp_path: Path) -> None:
    with serving(Endpoint()) as server:
        spec = endpoint(server.url)
        for budget in ({"requests": 10}, {"tokens": 100}, {"money": 1e-4}):
            out = tmp_path / next(iter(budget))
            options = {"prices": {"read": 1, "written": 1}, "budget": budget}
            limited = type(spec).model_validate({**spec.model_dump(), **options})
            ask(limited, out)
            before = len(server.asked)
            with pytest.raises(WorkFailed, match=rf"budget.{out.name} of \S+ is reached"):
                ask(limited, out)
            assert len(server.asked) == before
            ask(spec, out)


@pytest.mark.parametrize(
    ("method", "offers", "message"),
    [
        ({"kind": "soft_prompt"}, ["chat"], "needs a model's weights, which tiny does not offer; us"
         "e continuation, zero_shot, few_shot, cot, option_answer, coreference"),
        ({"kind": "zero_shot"}, ["chat"], "an answer's first tokens, which tiny does not offer; se"
         "t unparsed: invalid, or random"),
        ({"kind": "zero_shot", "unparsed": "invalid", "prompt_format": "raw"}, ["chat"],
         "completions of plain text, which tiny does not offer; set prompt_format: chat"),
        ({"kind": "zero_shot", "unparsed": "invalid", "system": "Be brief."}, ["text"],
         "answers to chats"),
        ({"kind": "option_likelihood"}, ["chat", "text"], "log-probabilities of a prompt's tokens"),
    ],
)  # fmt: skip
def test_a_method_that_an_endpoint_cannot_do_is_refused_with_what_can(
    method: dict[str, Any], offers: list[str], message: str
) -> None:
    kind = "questions" if "option" in method["kind"] else "probes"
    study = parse_study(
        {
            "name": "refused",
            "backbones": [{"endpoint": "http://127.0.0.1:1/v1", "model": "tiny", "offers": offers}],
            "methods": [method],
            "training": [{"source": "planted"}],
            kind: [{"source": {"questions": "bbq", "probes": "planted"}[kind]}],
        }
    )
    with pytest.raises(ConfigError) as error:
        fit_methods(study)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("backbone", "message"),
    [
        ({"key_variable": KEY}, "the key itself must not stand in a study"),
        ({"api_key": KEY}, "unknown key 'api_key'"),
        ({"endpoint": f"https://user:{KEY}@host/v1"}, "holds a password or token"),
        *(
            ({"endpoint": f"https://host/v1?{name}={KEY}"}, "an option of a URL that can be one")
            for name in ("key", "sig", "code", "pwd", "jwt", "api-version=1&x")
        ),
        ({"endpoint": f"https://host/v1?{KEY}"}, "an option of a URL that can be one"),
        ({"endpoint": "host/v1"}, "should match pattern"),
        ({"budget": {"money": 1}}, "budget.money needs prices"),
        ({"api": "telepathy"}, "unknown api of an endpoint; known: openai"),
        ({"dtype": "float32"}, "Input should be 'served'"),
    ],
)
def test_a_wrong_endpoint_is_one_line_that_shows_no_key(
    backbone: dict[str, Any], message: str
) -> None:
    given = {"endpoint": "http://127.0.0.1:1/v1", "model": "tiny", **backbone}
    with pytest.raises(ConfigError) as error:
        parse_study({"name": "a", "backbones": [given], "probes": [{"source": "planted"}]})
    assert message in str(error.value)
    assert KEY not in str(error.value)


def test_a_key_that_is_not_there_is_named_by_its_variable_or_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    with serving(Endpoint(key=None)) as server:
        with pytest.raises(ConfigError, match="variable OPENAI_API_KEY is not set"):
            ask(endpoint(server.url), tmp_path)
        with pytest.raises(ConfigError, match="key file /nowhere cannot be read"):
            ask(endpoint(server.url, key_file="/nowhere"), tmp_path)
        assert ask(endpoint(server.url, key_variable=None), tmp_path)
