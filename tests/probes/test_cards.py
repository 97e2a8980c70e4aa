"""Probes of one's own from a card: each kind is read, and each mistake is one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import polars as pl
import pytest
import yaml

import raybias
from raybias.config import PairProbe, Probe, QuestionProbe
from raybias.config.card import CardKind, parse_card
from raybias.errors import BadInput
from raybias.probes import question_items
from raybias.probes.own import commented_card
from support import question_data
from support.documents import ROOT, blocks

SAID = {"about": "a test", "harm": "higher is worse"}
LABELS = {
    "sentence": [f"The {word} clerk {verb}." for verb in ("won", "sat") for word in ("old", "new")],
    "sentiment": ["1", "1", "0", "0"],
    "who": ["old", "young"] * 2,
    "frame": ["a", "a", "b", "b"],
}
PAIRS = {"more": ["a b", "c d"], "less": ["a x", "c x"], "made_by": ["p", "p"]}
TRIPLES = {"stereotype": ["a", "b"], "anti_stereotype": ["c", "d"], "unrelated": ["e", "f"]}
DECISIONS = {"decision_id": ["1", "1"], "text": ["Lend?", "Lend?"], "age": ["20", "60"]}


def card(folder: Path, kind: str, rows: dict[str, list[str]], **fields: object) -> str:
    pl.DataFrame(rows).write_csv(folder / "rows.csv")
    path = folder / "card.yaml"
    path.write_text(yaml.safe_dump({"kind": kind, "file": "rows.csv", **SAID, **fields}))
    return str(path)


def label_card(folder: Path, **fields: object) -> str:
    mapped: dict[str, object] = {
        "columns": {"text": "sentence", "label": "sentiment", "group": "who",
                    "template_id": "frame"},
        "values": {"attribute": "age"},
        "codes": {"label": {"0": "neutral", "1": "positive"}},
    }  # fmt: skip
    return card(folder, "label", LABELS, **{**mapped, **fields})


def test_a_card_of_each_kind(tmp_path: Path) -> None:
    items = raybias.probe_items(Probe(source="file", data=label_card(tmp_path)))
    assert items["label"].to_list() == [2, 2, 1, 1]
    assert items["attribute"].unique().to_list() == ["age"]
    assert items["template_id"].to_list() == ["a", "a", "b", "b"]
    assert items["item_id"][0] == "card/00000"

    columns = {"sent_more": "more", "sent_less": "less", "cluster": "made_by"}
    path = card(tmp_path, "pair", PAIRS, columns=columns, values={"bias_type": "age"})
    pairs = raybias.pair_items(PairProbe(source="pairs", data=path))
    found = pairs.select("sent_more", "bias_type", "cluster").rows()
    assert found == [("a b", "age", "p"), ("c d", "age", "p")]

    path = card(tmp_path, "triple", TRIPLES, values={"domain": "age", "term": "old"})
    items = question_items(QuestionProbe(source="triples", data=path))
    assert items["task"].unique().to_list() == ["sentences"]
    assert items["anti_stereotype"].to_list() == ["c", "d"]

    items = question_items(QuestionProbe(source="options", data=str(question_data.card(tmp_path))))
    assert items["label"].to_list()[:4] == [2, 0, 2, 1]
    # Ann follows the stereotype in bad questions, Bo in good ones: the target is Ann in all.
    assert items["target"].unique().to_list() == [0]
    assert items["context"].to_list()[:2] == ["ambig", "disambig"]

    path = card(tmp_path, "decision", DECISIONS, people=["age"], reference={"age": "60"})
    items = question_items(QuestionProbe(source="decisions", data=path))
    found = items.select("person", "favourable", "reference").rows()
    assert found == [("age=20", "yes", "age=60"), ("age=60", "yes", "age=60")]


def test_lines_of_json_with_nested_fields(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text(
        '{"q": {"id": 1, "text": "Lend?"}, "who": {"age": 20}}\n'
        '{"q": {"id": 1, "text": "Lend?"}, "who": {"age": 60}}\n'
    )
    path = card(
        tmp_path, "decision", DECISIONS, people=["age"], file="rows.jsonl",
        columns={"decision_id": "q.id", "text": "q.text"},
    )  # fmt: skip
    with pytest.raises(BadInput, match="no column 'age'"):
        question_items(QuestionProbe(source="decisions", data=path))
    with pytest.raises(BadInput, match="is of kind decision; read it with source decisions"):
        question_items(QuestionProbe(source="triples", data=path))
    (tmp_path / "rows.jsonl").write_text('{"q": {"id": 1, "text": "Lend?"}, "age": 20}\n')
    items = question_items(QuestionProbe(source="decisions", data=path))
    assert items.select("decision_id", "person").rows() == [("1", "age=20")]


def documented(about: str, folder: Path) -> Path:
    """A card of docs/options.md, with a local file in the place of the hub's."""
    texts = [each.text for each in blocks(ROOT / "docs" / "options.md") if each.language == "yaml"]
    (text,) = (text for text in texts if f"about: {about}" in text)
    content = yaml.safe_load(text)
    if content.pop("hub", None):
        del content["revision"], content["subset"]
        content["file"] = "esbbq.jsonl"
    (folder / "card.yaml").write_text(yaml.safe_dump(content, allow_unicode=True))
    return folder / "card.yaml"


def test_the_documented_cards_read_the_kin_of_bbq(tmp_path: Path) -> None:
    question_data.kobbq(tmp_path)
    path = documented("KoBBQ", tmp_path)
    items = question_items(QuestionProbe(source="options", data=str(path)))
    assert items.select("category", "template_id").unique(maintain_order=True).rows() == [
        ("gender_identity", "001"),
        ("gender_identity", "002"),
    ]
    assert items["options"][0].to_list() == ["the 'X'", "Y", "알 수 없음"]
    # X follows the stereotype in questions that ask for it, Y in those that ask for the opposite.
    assert items["target"].unique().to_list() == [0]
    assert items.select("context", "polarity", "label", "unknown").rows()[:3] == [
        ("ambig", "neg", 2, 2),
        ("ambig", "nonneg", 2, 2),
        ("disambig", "neg", 1, 2),
    ]
    question_data.esbbq(tmp_path)
    path = documented("EsBBQ", tmp_path)
    items = question_items(QuestionProbe(source="options", data=str(path)))
    assert items.select("target", "unknown", "label").rows() == [(1, 2, 2)] * 2 + [(1, 2, 0)] * 2
    assert items["item_id"].to_list() == ["0", "1", "2", "3"]


def test_files_of_two_languages_are_not_one_probe(tmp_path: Path) -> None:
    for name in ("Age_en.jsonl", "Age_es.jsonl"):
        (tmp_path / name).write_bytes(question_data.bbq(tmp_path).read_bytes())
    (tmp_path / "Age.jsonl").unlink()
    with pytest.raises(BadInput, match="has question Age/0 more than once; give one file"):
        question_items(QuestionProbe(source="bbq", data=str(tmp_path)))


@pytest.mark.parametrize("kind", get_args(CardKind))
def test_new_cards_are_whole(kind: str, tmp_path: Path, run: Callable[..., Any]) -> None:
    out = tmp_path / "mine.yaml"
    run("probes", "new", kind, "--out", out)
    assert parse_card(out.read_text(), where="mine").kind == kind
    assert "template_id" in out.read_text() or kind not in ("label", "options")
    assert "is there already" in run("probes", "new", kind, "--out", out, code=2).err
    with pytest.raises(BadInput, match="no kind of probe 'bias'; choose from label"):
        commented_card("bias")


def test_check_says_what_a_design_cannot_show(tmp_path: Path) -> None:
    found = raybias.check_probe(label_card(tmp_path))
    said = str(found)
    assert "old has one word: the group and that word cannot be told apart" in said
    assert "2 templates of old: too few" in said
    assert "old lacks 1 of 3 labels" in said
    assert "the card does not say, under validity: language" in said
    # 1.96 sqrt(.0007/5 + .0062/2 + .0131/10) for five runs and two templates.
    assert found.parts["gap +- (5 runs, sentences)"].to_list() == ["0.132", "0.132"]
    options = str(raybias.check_probe(question_data.card(tmp_path)))
    assert "4 templates of age ambig: too few" in options
    assert "the target of age is always option 0" in options


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"colums": {}}, "unknown key 'colums'; did you mean 'columns'"),
        ({"about": ""}, "about: String should have at least 1 character"),
        ({"hub": "a/b", "revision": "c"}, "give `file` or `hub`, and not both"),
        ({"file": None}, "give `file` or `hub`, and not both"),
        ({"file": None, "hub": "a/b"}, "`hub` needs a `revision`"),
        ({"revision": "c"}, "`revision` and `subset` are of a `hub` data set"),
        ({"file": "none.csv"}, "no such file"),
        ({"columns": {"texts": "sentence"}}, "columns names 'texts', which the kind"),
        ({"columns": {"text": ["a", "b"]}}, "columns.text names 2 columns; give one"),
        ({"columns": {"text": "sentense"}}, "no column 'sentense'; rename 'sentence'"),
        ({"values": {"group": "x", "attribute": "age"}}, "group is in both `columns` and `values`"),
        ({"codes": {"label": {"0": "neutral"}}}, "sentiment '1' has no code; codes are of 0"),
        ({"codes": {"term": {"a": "b"}}}, "codes are of 'term', which is no column"),
        ({"groups": {"old": "above 65"}}, "group 'young' is none of old; add it to `groups`"),
        ({"parts": {"sentence": "("}}, "parts.sentence is no regular expression"),
        ({"parts": {"sentence": "The .*"}}, "parts.sentence has no named group that is a column"),
        ({"parts": {"sentence": "(?P<who>.*)"}}, "names 'who', which is no column"),
        ({"parts": {"sentence": "(?P<text>.*)"}}, "text is in `parts.sentence` and elsewhere"),
        ({"parts": {"sentence": "The old (?P<term>.*)"}}, "'The new clerk won.' does not match"),
        ({"parts": {"sentence": "(?=The)(?P<term>.*)"}}, "parts.sentence cannot be matched"),
        ({"people": ["age"]}, "`people` and `reference` are of decisions"),
        ({"validity": {"langauge": "x"}}, "validity: unknown key 'langauge'; did you mean"),
    ],
)
def test_a_mistake_is_one_line(
    fields: dict[str, object], message: str, tmp_path: Path, run: Callable[..., Any]
) -> None:
    (line,) = run("probes", "check", label_card(tmp_path, **fields), code=2).err.splitlines()
    assert message in line


@pytest.mark.parametrize(
    ("kind", "rows", "fields", "message"),
    [
        ("labels", LABELS, {}, "kind: Input should be 'label', 'pair'"),
        ("decision", DECISIONS, {}, "a decision needs `people`"),
        ("decision", DECISIONS, {"people": ["age"], "reference": {"race": "x"}}, "'race', which"),
        ("pair", PAIRS, {"groups": {"a": "b"}}, "`groups` are of labels and decisions"),
        ("triple", TRIPLES, {}, "no column 'domain'"),
    ],
)
def test_a_mistake_of_other_kinds(
    kind: str, rows: dict[str, list[str]], fields: dict[str, object], message: str, tmp_path: Path
) -> None:
    with pytest.raises(BadInput, match=message):
        raybias.check_probe(card(tmp_path, kind, rows, **fields))


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("mine.csv", {"right": "both"}, "label 'both' is none of the options"),
        ("mine.csv", {"context": "clear"}, "context 'clear' has no code"),
        ("mine.csv", {"a": None}, "question has the options"),
        ("mine.csv", {"passage": " "}, "text is empty"),
        ("KoBBQ_all_samples.tsv", {"choices": "a or b"}, "not a list of options; name the column"),
        ("KoBBQ_all_samples.tsv", {"choices": "[1, 2]"}, "choices is String, not a list of opt"),
    ],
)
def test_a_mistake_in_a_question(
    file: str, changes: dict[str, str | None], message: str, tmp_path: Path
) -> None:
    mine = file == "mine.csv"
    question_data.kobbq(tmp_path)
    path = question_data.card(tmp_path) if mine else documented("KoBBQ", tmp_path)
    mark = "," if mine else "\t"
    rows = pl.read_csv(tmp_path / file, separator=mark, infer_schema=False)
    wrong = rows.with_columns(pl.lit(value).alias(name) for name, value in changes.items())
    wrong.write_csv(tmp_path / file, separator=mark)
    with pytest.raises(BadInput, match=message):
        question_items(QuestionProbe(source="options", data=str(path)))
