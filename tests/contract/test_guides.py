"""The commands of docs/, run in this process on small files that stand in for a user's.

test_documented.py parses these and those that need Ray, the hub or hours.
"""

from __future__ import annotations

import gzip
import json
import re
import shlex
import shutil
from glob import glob
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from raybias.stats.metric import metrics
from support import prompting, question_data, studies
from support.answer_data import bbq_file, bbq_line, predictions, stereoset
from support.commands import exit_code
from support.documents import ROOT, blocks
from support.report_outs import make_study, write_out
from support.stats_data import two_years
from support.studies import NO_RAY, save

DOCS = ROOT / "docs"


def commands(page: str) -> list[str]:
    """The lines of a page's blocks of commands; what they print is left out."""
    plain = (block for block in blocks(DOCS / f"{page}.md") if not block.language)
    return [line for block in plain if not block.text.startswith("$ ") for line in block.commands]


def follow(line: str, **stand_ins: str) -> None:
    """Run a line as a shell would in the working folder, with other words for some of its words."""
    for shown, here in stand_ins.items():
        line = line.replace(shown, here)
    program, *words = (
        name
        for word in shlex.split(line, comments=True)
        for name in (sorted(glob(word)) if "*" in word else [word])  # noqa: PTH207
    )
    assert program == "raybias"
    assert exit_code(*words) == 0, line


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.long
def test_the_pages_on_comparing(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("BASE", "CANDIDATE"):
        write_out(Path(name), make_study(), templates=600)
    write_out(Path("OUT"), make_study(("opt-125m", "opt-350m")))
    # The commands after them need a real model.
    gate, arms, options, triples, accepted, policy, *_ = commands("comparing")
    items = stereoset(8, 4)
    Path("dev.json").write_text(json.dumps(items))
    for seed, name in enumerate(("base", "candidate")):
        Path(f"preds_{name}.jsonl").write_bytes(bbq_file())
        Path(f"predictions_{name}.json").write_text(json.dumps(predictions(items, seed)))
    follow(options)
    follow(triples)
    follow(accepted)
    follow(gate)
    assert Path("compared/compare.md").exists()
    (rules,) = (b.text for b in blocks(DOCS / "comparing.md") if b.text.startswith("margin:"))
    for shown, here in {"regard": "planted", "race": "origin", "[black, asian]": "quixlan"}.items():
        rules = rules.replace(shown, here)
    Path("policy.yaml").write_text(rules)
    follow(policy)
    assert json.loads(Path("compared/compare.json").read_text())["policy"]["verdict"] == "go"
    # The made-up OUT has two models of one method.
    follow(arms.replace(",method=lora", "").replace("opt-125m,method=full", "opt-350m"))
    assert "0.000" in capsys.readouterr().out

    study = save(Path(), "soft_prompt")
    (steps,) = (b.text for b in blocks(DOCS / "comparing.md") if b.text.startswith("- run"))
    run, compare, _ = (step["run"] for step in yaml.safe_load(steps))
    follow(f"{run} {shlex.join(NO_RAY)}", **{"$CHECKPOINT": "tiny", "study.yaml": str(study)})
    Path("released").mkdir()
    shutil.copytree("candidate", "released/OUT")
    # A model of random weights, which can do nothing, passes no gate.
    assert exit_code(*shlex.split(compare.replace("s3://", ""))[1:]) == 4


@pytest.mark.long
def test_the_page_on_questions() -> None:
    study = studies.questions(Path())
    follow(f"raybias run {study} --out OUT {shlex.join(NO_RAY)}")
    for name in ("Age", "Nationality", "Sexual_orientation"):
        lines = [json.dumps(bbq_line(number, category=name)) for number in range(24)]
        Path(f"preds_{name}.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    items = json.loads(Path("dev.json").read_text())["data"]
    scored = {
        task: [
            {"id": sentence["id"], "score": 0.5} for each in of for sentence in each["sentences"]
        ]
        for task, of in items.items()
    }
    for name in ("gpt2_race", "bert-base-cased_race"):
        text = json.dumps(scored)
        Path(f"predictions_{name}.json").write_text(text)
        Path(f"predictions_{name}.json.gz").write_bytes(gzip.compress(text.encode()))
    Path("race.json.gz").write_bytes(gzip.compress(Path("dev.json").read_bytes()))
    for line in commands("options"):
        follow(line)
    measured = pl.read_csv("scored/estimates.csv")
    assert set(measured["kind"]) == {*question_data.FOLDERS}


@pytest.mark.long
def test_the_page_on_metrics(shared: Path) -> None:
    published = Path("data/regard_published")
    published.mkdir(parents=True)
    file = shared / published / "regard_opt-125m.tsv.gz"
    shutil.copy(file, published)
    shape, listing, loans, *years, jobs, of_persons, example = commands("metrics")
    follow(listing)
    follow(re.sub(r"\[.*\]", "", shape), **{"FILES...": str(file), "DIR": "first"})
    people = pl.DataFrame(
        {
            "sex": ["female", "male"] * 30,
            "race": ["black", "white", "asian"] * 20,
            "person": [f"p{row % 20}" for row in range(60)],
        }
    )
    words = pl.Series(["approved", "denied", "denied", "approved", "approved"] * 12)
    people.with_columns(paid=words, decided=words.reverse()).write_csv("loans.csv")
    follow(loans)
    two_years(Path()).rename("compas-scores-two-years.csv")
    for by_number_or_word in years:
        follow(by_number_or_word)
    said = pl.Series(["nurse", "surgeon", "teacher", "nurse", "teacher"] * 24)
    of_two = {
        "gender": ["women", "men"] * 60,
        "label": said,
        "pred": said.shift(1, fill_value="nurse"),
    }
    pl.DataFrame(of_two).write_csv("bios.csv")
    follow(jobs)
    follow(of_persons)
    follow(example)
    assert Path("DIR/estimates.csv").exists()


def test_a_function_of_the_page_on_ones_own_model(shared: Path) -> None:
    (function,) = (b for b in blocks(DOCS / "guides/own_model.md") if b.language == "python")
    Path("mine.py").write_text(function.text)
    Path("data").mkdir()
    Path("data/amazon").symlink_to(shared / "data/amazon_templates")
    (audit,) = (line for line in commands("guides/own_model") if "mine.py" in line)
    follow(f"{audit} --out of-mine")
    gaps = pl.read_parquet("of-mine/tables/estimates.parquet").filter(statistic="gap")
    assert {*gaps["group"]} == {"adult", "old", "young"}


@pytest.mark.long
def test_the_page_on_ones_own_probe() -> None:
    study, metric = (block for block in blocks(DOCS / "guides/own_probe.md") if block.language)
    exec(compile(metric.text, "own_probe.md", "exec"), {"__name__": "own_metric"})
    # Taken out again, since other tests of this process compute all metrics there are.
    assert metrics._entries.pop("neutral_negative").above == "harm"
    new, check = commands("guides/own_probe")
    Path("data").mkdir()
    follow(new)
    rows = [{"text": f"The {word} clerk was {how}.", "label": label, "attribute": "age",
             "group": group, "template_id": how, "term": word}
            for label, how in enumerate(("awful", "here", "kind"))
            for group, words in {"young": ("young", "junior"), "old": ("old", "senior")}.items()
            for word in words]  # fmt: skip
    pl.DataFrame(rows).write_csv("data/mine.csv")
    # What the card says by default of its file.
    pl.DataFrame(rows).with_columns(pl.col("label") - 1).write_csv("data/sentences.csv")
    follow(check)
    prompting.save("opt", Path("tiny"))
    content: dict[str, Any] = {
        "name": "own",
        "backbones": [{"id": "tiny", "dtype": "float32", "bos": "prepend"}],
        "methods": [{"kind": "zero_shot", "seeds": [1, 2]}],
    }
    Path("study.yaml").write_text(yaml.safe_dump(content | yaml.safe_load(study.text)))
    follow(f"raybias run study.yaml --out out {shlex.join(NO_RAY)}")
    assert Path("out/report.html").exists()
