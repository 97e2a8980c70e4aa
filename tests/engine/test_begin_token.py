"""Which token begins sentences, where a chat tokenizer leaves a doubt, and what turns with it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

import raybias
from raybias.config import Backbone
from raybias.engine.backbone import load_backbone
from raybias.engine.encoder import load_tokenizer
from raybias.engine.sentence_scores import CAUSAL, PairScorer
from raybias.errors import ModelError
from support import backbones, pair_models
from support.words import word_tokenizer

SPECIAL = ["<|endoftext|>", "<|turn|>", "<|over|>", "<s>"]
VOCABULARY = [*SPECIAL, *backbones.VOCABULARY]
#: A token opens each turn, as in SmolLM2; closes each, as in Qwen; or begins what the user says, as
#: in Llama 2.
OPENS = "{% for m in messages %}<|turn|>{{ m['content'] }}{% endfor %}"
CLOSES = "{% for m in messages %}{{ m['content'] }}<|over|>{% endfor %}"
BEGINS = "{% for m in messages %}{% if m['role'] == 'user' %}<s>{% endif %}{{ m['content'] }}{% endfor %}"  # noqa: E501
REFUSES = "{{ raise_exception('one message alone') }}"


def save(folder: Path, template: str | None = OPENS, **specials: str) -> str:
    """A random LLaMA with a chat template."""
    named = specials or {"bos_token": "<|turn|>", "eos_token": "<|over|>"}
    tokenizer = word_tokenizer(VOCABULARY, **named)
    tokenizer.add_special_tokens({"additional_special_tokens": SPECIAL})
    tokenizer.chat_template = template
    return str(backbones.save("llama", folder, tokenizer))


@pytest.mark.parametrize(
    ("template", "specials", "expected"),
    [
        (OPENS, {"bos_token": "<|turn|>", "eos_token": "<|over|>"}, ["<|endoftext|>", "<|turn|>"]),
        (CLOSES, {"eos_token": "<|over|>"}, ["<|endoftext|>", "<|over|>"]),
        (BEGINS, {"bos_token": "<s>", "eos_token": "<|over|>"}, ["<s>"]),
        (REFUSES, {"bos_token": "<|turn|>"}, ["<|turn|>"]),
        (None, {"bos_token": "<|turn|>"}, ["<|turn|>"]),
    ],
)
def test_a_token_that_marks_turns_begins_no_sentence(
    template: str | None, specials: dict[str, str], expected: list[str], tmp_path: Path
) -> None:
    encoder = load_tokenizer(Backbone(id=save(tmp_path, template, **specials)))
    assert encoder.begin_tokens == expected
    assert encoder.prompt_token_id == VOCABULARY.index(expected[0])


def test_bos_names_a_token(tmp_path: Path) -> None:
    folder = save(tmp_path)
    encoder = load_tokenizer(Backbone(id=folder, bos="<|turn|>"))
    assert encoder.begin_tokens == ["<|turn|>", "<|endoftext|>"]
    words = [VOCABULARY.index(word) for word in ("w1", "w2")]
    assert encoder.encode(["w1 w2"]) == [[VOCABULARY.index("<|turn|>"), *words]]
    assert load_tokenizer(Backbone(id=folder)).encode(["w1 w2"]) == [words]
    with pytest.raises(
        ModelError, match=r"bos: 'tokeniser' is no token of the tokenizer; name one"
    ):
        load_tokenizer(Backbone(id=folder, bos="tokeniser"))


def test_the_preferences_that_turn_are_those_that_the_other_token_changes(tmp_path: Path) -> None:
    folder = save(tmp_path)
    pairs = pair_models.pairs(60, seed=4)

    def scored(**options: Any) -> dict[str, list[Any]]:
        spec = Backbone(id=folder, dtype="float32", **options)
        return PairScorer(load_backbone(spec), CAUSAL).prepare(pairs)()

    ours, other = scored(), scored(bos="<|turn|>")
    for rule in CAUSAL:
        both = zip(ours[rule], other[rule], strict=True)
        changes = [None if rule == "perplexity" else a.preference != b.preference for a, b in both]
        assert [one.turned for one in ours[rule]] == changes
    assert any(one.turned for one in ours["prepend"])


@pytest.mark.long
def test_a_study_records_the_token_and_counts_what_turns(tmp_path: Path) -> None:
    folder, out = save(tmp_path / "chat"), tmp_path / "out"
    rows = [
        {"sent_more": more, "sent_less": less, "bias_type": "age", "direction": "stereo"}
        for more, less in pair_models.pairs(60, seed=4)
        if more != less
    ]
    pl.DataFrame(rows).write_csv(tmp_path / "pairs.csv")
    study = raybias.Study(
        name="begin",
        backbones=[{"id": folder, "dtype": "float32"}],
        methods=[{"kind": "pair_score"}],
        pairs=[{"source": "pairs", "data": str(tmp_path / "pairs.csv")}],
    )
    raybias.run(study, out=out)
    turned = pl.read_parquet(out / "pair_scores" / "**" / "*.parquet")["turned"].sum()
    assert turned
    assert (
        "begin_tokens:\n  chat:\n  - <|endoftext|>\n  - <|turn|>"
        in (out / "study.yaml").read_text()
    )
    said = (
        f"chat: {turned} of {len(rows)} preferences of pairs by prepend turn where sentences begin"
        " with <|turn|> instead of <|endoftext|>, which was used here."
    )
    assert said in (out / "report.html").read_text().replace("&lt;", "<").replace("&gt;", ">")
    table = pl.read_parquet(out / "tables" / "estimates.parquet")
    whole = table.filter(score="turned", condition="", attribute="avg_weighted")
    assert whole["value"].to_list() == pytest.approx([100 * turned / len(rows)])
