"""What else differs between two arms than the model: what is listed, what a gate refuses."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import typer
import yaml

import raybias
from raybias.cli import app
from raybias.errors import ConfigError
from raybias.report.compare_cures import OPTION, OWN, own_cure
from support.commands import exit_code, refused
from support.documents import ROOT
from support.report_outs import make_study, marked_study, write_marked, write_out
from support.stats_data import crossed

#: Where the cures of refusals are written that reading the files of a comparison can raise.
READING = (
    "report/compare*.py",
    "measures/compare*.py",
    "measures/reading.py",
    "report/files.py",
    "stats/predictions.py",
    "stats/foreign.py",
    "stats/class*.py",
    "stats/label*.py",
    "stats/file_classes.py",
)
CUE = "The sentiment is"
LORA = {"kind": "lora", "name": "soft_prompt"}


def recorded(out: Path, **changes: Mapping[str, str]) -> Path:
    """Change parts of OUT/study.yaml."""
    content = yaml.safe_load((out / "study.yaml").read_text())
    for name, values in changes.items():
        content[name] |= values
    (out / "study.yaml").write_text(yaml.safe_dump(content))
    return out


def prompted(out: Path, **recipe: object) -> Path:
    """Write what all prompted classifiers of an OUT were asked."""
    for file in out.glob("prompts/*.json"):
        file.write_text(json.dumps(json.loads(file.read_text()) | recipe))
    return out


def listed(one: Path, other: Path, **arms: Any) -> list[str]:
    found = raybias.compare(one, other, **arms)
    return [f"{each.kind}: {each.text}" for each in found.differences]


def test_what_only_models_names_places_and_resources_differ_in_is_not_listed(
    tmp_path: Path,
) -> None:
    one = write_out(tmp_path / "one", make_study(methods=[LORA]))
    other = write_out(
        tmp_path / "other",
        make_study(
            ("another",),
            methods=[{**LORA, "seeds": [*range(11, 21)]}],
            name="otherwise",
            resources={"tokens_per_batch": 64},
            tracking={"wandb": "w"},
        ),
    )
    recorded(tmp_path / "other", versions={"torch": "2.13.0+cu130", "ray": "9", "python": "3.13"})
    assert listed(Path(one.uri), Path(other.uri)) == []


@pytest.mark.parametrize(
    ("method", "record", "kind", "text"),
    [
        ({"weight_decay": 0.5}, {}, "settings", "soft_prompt: weight_decay 0.0001 and 0.5"),
        ({}, {"data": {"training planted": "cc"}}, "training", "planted has other sentences"),
        ({}, {"versions": {"raybias": "0.2.0"}}, "versions", "raybias 0.1.0 and 0.2.0"),
        ({}, {"versions": {"torch": "2.14.0+cpu"}}, "versions", "torch 2.13.0 and 2.14.0"),
    ],
)
def test_a_gate_refuses_what_else_differs_until_it_is_accepted(
    method: dict[str, Any],
    record: dict[str, dict[str, str]],
    kind: str,
    text: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    write_out(one, make_study(methods=[LORA]))
    write_out(other, make_study(methods=[{**LORA, **method}]))
    recorded(other, **record)
    (said,) = listed(one, other)
    assert said.startswith(f"{kind}: {text}")
    rules = {"rules": [{"name": "all", "tier": "critical", "margin": 0.9}]}
    (tmp_path / "policy.yaml").write_text(yaml.safe_dump(rules))
    out = tmp_path / "compared"
    for gate in (("--gate", "margin=0.9"), ("--policy", tmp_path / "policy.yaml")):
        words = ("compare", one, other, *gate, "--out", out)
        line = refused(capsys, *words)
        assert text in line
        assert line.endswith(f"--accept {kind}")
        assert not out.exists()
        others = "settings" if kind == "prompts" else "prompts"
        assert f"--accept {others},{kind}" in refused(capsys, *words, "--accept", others)
    assert exit_code(*words, "--accept", f"{kind},models") == 0
    assert f"The arms differ in more than the model: {kind}." in capsys.readouterr().out
    assert json.loads((out / "compare.json").read_text())["differences"][0]["kind"] == kind
    for page in ("compare.html", "compare.md"):
        assert text in (out / page).read_text()
    with pytest.raises(ConfigError, match="differ in more than the model"):
        raybias.compare(one, other, policy=rules)
    assert "no difference that can be accepted" in refused(capsys, *words, "--accept", "cue")


def test_one_model_by_its_weights_and_behind_an_endpoint_is_asked_in_other_words(
    tmp_path: Path,
) -> None:
    """A chat of weights begins the answer; that of an endpoint asks for one word instead."""
    asked = {"kind": "zero_shot", "prompt_format": "chat", "cue": CUE}
    server = {"endpoint": "http://localhost:1/v1", "model": "m0", "name": "m0"}
    outs = {}
    for name, backbone in (("weights", {"id": "m0"}), ("server", server)):
        study = marked_study(backbones=[backbone], methods=[asked])
        write_marked(tmp_path / name, study)
        outs[name] = tmp_path / name
    sampling = {"temperature": 0.8, "top_k": 50}
    turn = f"<|im_start|>user\nSay it: {{text}}<|im_end|>\n<|im_start|>assistant\n{CUE}"
    said = json.dumps([{"role": "user", "content": "Say it: {text}\nAnswer with one word."}])
    prompted(outs["weights"], prompt=turn, prompt_format="chat", sampling=sampling)
    prompted(outs["server"], prompt=said, prompt_format="chat", sampling={"temperature": 0.8})
    assert listed(outs["weights"], outs["server"]) == [
        f"prompts: zero_shot: the cue '{CUE}' in the base alone",
        "prompts: zero_shot: the request 'Answer with one word.' in the candidate alone",
    ]
    # Marks of turns are the models' own, and no words of ours.
    other = turn.replace("<|im_start|>", "[").replace("<|im_end|>", "]")
    prompted(outs["server"], prompt=other, sampling=sampling | {"eos_ids": [7]})
    assert listed(outs["weights"], outs["server"]) == []
    prompted(outs["server"], sampling=sampling | {"top_k": 5})
    assert listed(outs["weights"], outs["server"]) == ["decoding: zero_shot: top_k 50 and 5"]
    prompted(outs["weights"], prompt="{text} It is", prompt_format="raw")
    prompted(outs["server"], prompt="{text} It was", prompt_format="raw", sampling=sampling)
    assert listed(outs["weights"], outs["server"]) == [
        "prompts: zero_shot: other words, or demonstrations"
    ]


def test_methods_that_are_compared_may_differ_and_one_out_is_like_itself(tmp_path: Path) -> None:
    methods = [{"kind": "zero_shot"}, {"kind": "few_shot", "name": "nine", "temperature": 0.1}]
    out = tmp_path / "out"
    write_marked(out, marked_study(methods=methods))
    arms = {"base_is": {"method": "zero_shot"}, "candidate_is": {"method": "nine"}}
    assert listed(out, out, **arms) == []
    other = tmp_path / "other"
    write_marked(other, marked_study(methods=[methods[0], {**methods[1], "temperature": 0.9}]))
    # Only the settings of what is compared count.
    assert listed(out, other, **arms) == []
    chosen = {"method": "nine"}
    assert listed(out, other, base_is=chosen, candidate_is=chosen) == [
        "decoding: nine: temperature 0.1 and 0.9"
    ]


@pytest.mark.parametrize("runs", [1, 3])
def test_seeds_are_said_to_be_redrawn_only_where_there_are_several(
    runs: int, tmp_path: Path
) -> None:
    arms = []
    for seed in (1, 2):
        pred_RTGW = np.random.default_rng(seed).integers(0, 2, (runs, 20, 3, 2))
        arms.append(tmp_path / f"{seed}.parquet")
        crossed(pred_RTGW).with_columns(parsed=pl.lit(value=True)).write_parquet(arms[-1])
    notes = raybias.compare(*arms).notes
    (covers,) = (note for note in notes if note.startswith("Intervals cover"))
    unknown = "words for the groups are redrawn (other seeds are not known)."
    assert covers.endswith(unknown) == (runs == 1)
    assert ("seeds, sentences and words" in covers) == (runs > 1)


def table(folder: Path, name: str, **columns: list[Any]) -> str:
    """Write a table of 48 predictions, without templates."""
    rows = {"group": ["a", "b"] * 24, "label": [0, 0, 1, 1] * 12, "pred": [0, 1, 1] * 16}
    path = folder / "home" / name
    path.parent.mkdir(exist_ok=True, parents=True)
    pl.DataFrame({**rows, **columns}).write_csv(path)
    return str(path)


def test_a_cure_names_no_option_that_compare_lacks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = typer.main.get_command(app).commands["compare"]  # type: ignore[attr-defined]
    options = {name for option in command.params for name in option.opts if name[:2] == "--"}
    assert options - {"--json", "--quiet"} == OWN
    texts = {
        node.value
        for pattern in READING
        for path in (ROOT / "raybias").glob(pattern)
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    named = [text for text in texts if OPTION.search(text)]
    assert any("--label-column" in text for text in named)
    for text in named:
        assert {*OPTION.findall(own_cure(text))} <= options, text
    good = table(tmp_path, "good.csv")
    for wrong, cure in (
        ({"label": ["no", "yes"] * 24}, "write labels and predictions of both arms as 0 and 1"),
        ({"pred": [0, 1, 2, 3] * 12}, "write labels and .*; or write a column pred of 0 and 1"),
        ({"group": None}, "call the columns label, pred and group"),
    ):
        columns = {name: values or [""] * 48 for name, values in wrong.items()}
        path = table(tmp_path, "wrong.csv", **columns)
        if wrong.get("group", 1) is None:
            pl.read_csv(path).drop("group").write_csv(path)
        line = refused(capsys, "compare", good, path)
        assert re.search(cure, line), line
        assert not OPTION.findall(line)


@pytest.mark.parametrize(
    ("columns", "unit"),
    [
        ({}, r"[\d,]+ rows, not 48"),
        ({"source_id": [f"s{n // 2}" for n in range(48)]}, r"[\d,]+ source examples, not 24"),
        ({"template_id": [f"t{n // 4}" for n in range(48)]}, r"[\d,]+ templates, not 12"),
        (
            {"template_id": [f"{n}" for n in range(48)], "item_id": [f"{n}" for n in range(48)]},
            r"[\d,]+ sentences, not 48",
        ),
    ],
)
def test_advice_names_the_units_that_the_data_have(
    columns: dict[str, list[str]], unit: str, tmp_path: Path
) -> None:
    turned = [(n % 3 > 0) != (n % 5 == 0) for n in range(48)]
    paths = [table(tmp_path, "one.csv", **columns), table(tmp_path, "two.csv", **columns)]
    pl.read_csv(paths[1]).with_columns(pred=pl.Series(turned).cast(pl.Int8)).write_csv(paths[1])
    found = raybias.compare(*paths)
    whole = found.changes.filter(score="selection_rate")["reason"]
    assert re.fullmatch(unit, whole[0]), whole
    if "template" not in unit:
        assert "template" not in found.markdown().replace("no templates are known", "")


def test_arms_are_named_without_the_folders_of_their_user(tmp_path: Path) -> None:
    one, two = table(tmp_path / "x", "one.csv"), table(tmp_path / "y", "one.csv")
    found = raybias.compare(one, two, out=tmp_path / "out")
    assert (found.base, found.candidate) == ("x/home/one.csv", "y/home/one.csv")
    both = raybias.compare(one, one, base_is={"model": "one"})
    assert (both.base, both.candidate) == ("one.csv (model one)", "one.csv")
    for name in ("compare.md", "compare.html", "compare.json"):
        assert str(tmp_path) not in (tmp_path / "out" / name).read_text()
