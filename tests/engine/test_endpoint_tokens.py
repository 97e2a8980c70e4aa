"""Likelihoods behind an endpoint: the truth or a refusal, whatever a server echoes."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raybias.errors import RaybiasError
from raybias.providers.openai import OpenAI, read_asked
from raybias.providers.token_alignment import (
    ServerFault,
    find_spelling,
    place_tokens,
    read_log_probabilities,
)
from raybias.storage import Store
from support.endpoint import Endpoint, serving
from support.imitations import (
    LIES,
    Imitation,
    Lie,
    byte_level,
    continue_text,
    cut_tokens,
    true_likelihood,
)

pytest.importorskip("openai", reason="the extra raybias[endpoints] is not installed")

#: What a server may do without changing a log-probability.
HARMLESS = [
    "none", "offsets of -1", "offsets in bytes", "offsets that run away", "a begin token",
    "byte-level marks", "marks for blanks",
]  # fmt: skip
PAIRS = [
    ("The cook was", " kind"),
    ("Q: Who is it?\n\nA:", " the old man"),
    ("She said, \u201cno\u201d, at the caf\u00e9", " again and again"),
    ("It ends with a blank ", "and goes on"),
]
WORDS = st.text(st.sampled_from("abc xyz.,\n\u00e9\u2019"), min_size=1, max_size=30)


def endpoint(url: str) -> OpenAI:
    return OpenAI(
        endpoint=url, model="m", name="m", key_variable=None, retries=0, repeat=0.0,
        offers=("text", "likelihoods"),
    )  # fmt: skip


def likelihoods(lie: Lie, out: Path, pairs: list[tuple[str, str]]) -> list[float]:
    """What an endpoint whose server tells this lie makes of pairs."""
    with serving(Endpoint(key=None, respond=Imitation(lie=lie))) as server:
        return endpoint(server.url).answers(Store(out)).likelihoods(pairs)[0]


@pytest.mark.parametrize("name", HARMLESS)
def test_what_changes_no_log_probability_changes_no_likelihood(name: str, tmp_path: Path) -> None:
    expected = [true_likelihood(*pair) for pair in PAIRS]
    assert likelihoods(LIES[name], tmp_path, PAIRS) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("name", sorted(LIES.keys() - {*HARMLESS, "undecoded bytes"}))
def test_what_a_server_tells_wrongly_is_one_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(RaybiasError, match=r"m at http://127\.0\.0\.1:") as error:
        likelihoods(LIES[name], tmp_path, PAIRS)
    assert "the endpoint " in str(error.value)
    assert "\n" not in str(error.value)


@given(
    names=st.lists(st.sampled_from(sorted(LIES)), min_size=1, max_size=3),
    text=WORDS.filter(lambda text: bool(text.strip())),
    after=WORDS.filter(lambda text: bool(text.strip())).map(lambda text: f" {text.strip()}"),
)
def test_a_likelihood_is_the_truth_or_refused(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], text: str, after: str
) -> None:
    def lie(*echo: Any) -> Any:
        return functools.reduce(lambda parts, name: LIES[name](*parts), names, echo)

    try:
        (likelihood,) = likelihoods(lie, tmp_path_factory.mktemp("out"), [(text, after)])
    except RaybiasError:
        return
    assert likelihood == pytest.approx(true_likelihood(text, after), abs=1e-9)


def test_a_server_is_checked_once_in_an_out(tmp_path: Path) -> None:
    with serving(Endpoint(key=None, respond=Imitation())) as server:
        for _ in range(2):
            endpoint(server.url).answers(Store(tmp_path)).likelihoods(PAIRS)
        # Three texts are continued and echoed, and then each pair is asked for, twice.
        assert len(server.asked) == 2 * 3 + 2 * len(PAIRS)
        assert read_asked(Store(tmp_path), "m").checked == 3


@pytest.mark.parametrize(
    "text", ["Eine gro\u00dfe Stadt", "\u201cno\u201d, she said \U0001f642", "a\u2581b"]
)
@pytest.mark.parametrize(
    "write",
    [
        list,
        lambda tokens: ["<s>", *tokens, " x"],
        lambda tokens: ["", *tokens],
        lambda tokens: [byte_level(token) for token in tokens],
        lambda tokens: [
            "bytes:" + "".join(f"\\x{byte:02x}" for byte in t.encode()) for t in tokens
        ],
    ],
)
def test_tokens_are_placed_by_what_they_spell(
    text: str, write: Callable[[list[str]], list[str]]
) -> None:
    tokens = cut_tokens(text)
    placement = place_tokens(write(tokens), text)
    starts = [len("".join(tokens[:n]).encode()) for n in range(len(tokens))]
    assert placement.starts == tuple((start, start) for start in starts)


def test_bytes_that_a_server_cannot_decode_are_skipped_but_not_where_a_text_begins() -> None:
    # A tokenizer cuts the mark of three bytes in two.
    tokens = ["it", "\ufffd", "\ufffd", "s", " so"]
    placement = place_tokens(tokens, "it\u2019s so")
    assert placement.indices_from(len("it\u2019s".encode())) == range(4, 5)
    assert placement.indices_from(len("it\u2019".encode())) == range(3, 5)
    twice = place_tokens(["it", *["\ufffd"] * 4], "it\u2019\u2019")
    with pytest.raises(ServerFault, match="does not decode the tokens where"):
        twice.indices_from(len("it\u2019".encode()))


def test_a_token_across_the_border_belongs_to_the_text_before_it() -> None:
    placement = place_tokens(["a", " wit", "hout", " it"], "a without it")
    assert placement.indices_from(len("a with")) == range(3, 4)
    chosen = place_tokens(["a", " wit"], "a wit").indices_from(len("a w"))
    with pytest.raises(ServerFault, match="no token that begins in the continuation"):
        read_log_probabilities(["a", " wit"], [None, -1.0], chosen)


def test_the_first_token_of_all_needs_no_log_probability_and_no_other_is_without() -> None:
    assert read_log_probabilities(["a", "b"], [None, -1.0], range(2)) == [-1.0]
    with pytest.raises(ServerFault, match="a log-probability of None"):
        read_log_probabilities(["a", "b", "c"], [None, None, -1.0], range(1, 3))
    # One certain token is no fault, where others are not certain.
    assert read_log_probabilities(["a", "b", "c"], [None, -1.0, 0.0], range(2, 3)) == [0.0]


@given(text=st.text(min_size=1, max_size=12), tokens=st.lists(st.text(max_size=4), max_size=6))
def test_tokens_that_are_placed_spell_their_text(text: str, tokens: list[str]) -> None:
    try:
        placement = place_tokens(tokens, text)
    except ServerFault:
        return
    if "\ufffd" in "".join(tokens):
        return
    placed = tokens[placement.first : placement.first + len(placement.starts)]
    assert len(tokens) - len(placed) <= 2
    shown = "".join(placed)
    plain = shown == text
    marks = byte_level(text) == shown or shown.replace("\u2581", " ").strip() == text.strip()
    assert plain or marks or "bytes:" in shown or "<0x" in shown


@pytest.mark.parametrize(
    ("tokens", "answer", "first"),
    [
        (["neg", "ative"], "negative", "neg"),
        ([" neg", "ative", "<|im_end|>"], "negative", "neg"),
        (["\u0120neg", "ative"], "negative", "neg"),
        (["\u2581neg", "ative"], "negative", "neg"),
        (["\n", "neg", "ative", "\n"], "negative", ""),
        (["It", " is", " \ufffd", "\ufffd"], "It is \U0001f642", "It"),
    ],
)
def test_an_answers_tokens_are_spelled_as_the_answer(
    tokens: list[str], answer: str, first: str
) -> None:
    spelled = find_spelling(tokens, answer)(tokens[:1])[0].decode()
    assert spelled.strip() == first


@pytest.mark.parametrize("tokens", [["Okay", ","], ["token_id:7"], [""], []])
def test_tokens_that_are_not_the_answer_are_refused(tokens: list[str]) -> None:
    with pytest.raises(ServerFault):
        find_spelling(tokens, "negative")


def test_the_imitated_model_knows_the_likelihood_of_what_it_writes() -> None:
    (token, value), *_ = continue_text("The cook", 1)
    assert true_likelihood("The cook", token) == value
