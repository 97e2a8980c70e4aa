"""What others build on, both ways: names, commands, study fields, columns, OUT, imports."""

from __future__ import annotations

import inspect
import json
import os
import re
import runpy
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import raybias
from raybias import schema
from raybias.cli import app
from support.documents import ROOT, blocks

STUDY = {"--set", "--limit", "--profile"}
RAY = {"--address", "--debug"}
PAIRS = {"--data", "--attribute", "--style", "--styled", "--evidential", "--question", "--seed"}
COMMANDS = {
    "run": {"STUDY.yaml", "--out", *STUDY, *RAY, "--skip-unfit", "--no-convert"},
    "plan": {
        *("STUDY.yaml", "--out", *STUDY, "--address", "--assume", "--schema"),
        *("--peak-tflops", "--utilisation", "--scale", "--skip-unfit", "--no-convert"),
    },
    "demo": {"--out", *RAY},
    "doctor": {"--address", "--out", "--hub", "--no-hub"},
    "compare": {
        *(
            "BASE",
            "CANDIDATE",
            "--base",
            "--candidate",
            "--scope",
            "--gate",
            "--policy",
            "--accept",
            "--verify",
            "--items",
        ),
        "--out",
    },
    "audit": {
        *("MODEL", "--probe", "--method", "--data", "--budget", "--looks", "--margin", "--out"),
        *("--task", "--labels", "--threshold", "--truncate", "--write", "--no-convert", *RAY),
    },
    "measure": {
        *("FILES", "--kind", "--items", "--profile", "--out"),
        *("--metric", "--list", "--scope", "--margin", "--interval", "--reference", "--positive"),
        *("--background", "--by", "--group-column", "--label-column", "--pred-column", "--target"),
        *("--cut", "--cluster", "--threshold", "--favourable"),
    },
    "report": {"OUT", "--profile", "--figures", "--verify", "--to", "--out"},
    "serve": {
        *("OUT", "--host", "--port", "--token-file", "--allowed-host", "--model", "--replicas"),
        *("--max-queued", "--max-texts", "--timeout", *RAY),
    },
    "probes list": set(),
    "probes new": {"KIND", "--out"},
    "probes check": {"CARD"},
    "probes write": {"NAME", "--out", "--unmarked", *PAIRS},
    "data list": set(),
    "data check": {"DIR", "--name"},
    "data download": {"NAME", "--out", "--mirror"},
    "data convert": {"MODEL", "--out", "--revision"},
    "annotate export": {"WHAT", "--out", "--of-group", *PAIRS},
    "annotate import": {"WHAT", "FILES", "--label", "--out"},
}
FUNCTIONS = {
    "check_data": ("folder", "name"),
    "check_probe": ("card",),
    "compare": (
        *("base", "candidate", "base_is", "candidate_is", "scope", "margin", "policy", "accept"),
        *("verify", "items", "out"),
    ),
    "audit": (
        *("model", "probe", "task", "method", "labels", "threshold", "truncate", "data", "budget"),
        *("looks", "margin", "out", "address", "convert", "command", "tell"),
    ),
    "convert": ("model", "out", "revision"),
    "data_sets": (),
    "demo": ("out", "address", "command"),
    "design": ("files", "target", "profile", "scope"),
    "doctor": ("address", "out", "hub"),
    "export": ("study", "form", "out", "verify"),
    "download_data": ("name", "out", "mirror", "on_file"),
    "judge_labels": ("study", "sheet", "labels"),
    "judge_sheet": ("study", "out", "of_group", "seed"),
    "load_study": ("path", "overrides", "profile", "limit"),
    "measure": (
        *("given", "kind", "items", "metric", "profile", "scope", "interval", "margin", "by"),
        *("cut", "cluster", "label_column", "pred_column", "positive", "favourable", "threshold"),
        *("reference_groups", "background", "out", "command", "report_classes"),
    ),
    "open": ("out",),
    "pair_items": ("probe", "styles", "files", "options", "seed"),
    "plan": (
        *("study", "out", "address", "assume", "peak_tflops", "utilisation", "scale"),
        "skip_unfit",
    ),
    "probe_items": ("probe", "labels"),
    "run": ("study", "out", "address", "command", "skip_unfit"),
    "serve": ("out", "options"),
    "study_schema": (),
    "write_report": ("out", "profile", "figures", "verify"),
}
RESULTS = {
    *("study", "out", "report", "tables", "table", "gaps", "accuracy", "answers", "runs"),
    *("by_group", "overall", "difference"),
    *("estimates", "predictions"),
}
#: Of an OUT with every kind of work; tests/cluster/test_readme.py holds README's tree to a run.
OUT = {
    *("study.yaml", "items", "styled", "adapters", "prompts", "runs.parquet", "pair_scores"),
    *("coreference", "predictions", "tables", "figures", "results.json", "train", "report.html"),
    "statement.html",
    *("lease.json", "schedule.parquet", "readers", "options", "triples", "decisions", "cards"),
    *("sentences", "evidence", "endpoints", "labels", "seal.json", "parts"),
}


def test_the_public_names() -> None:
    classes = {
        *("Backbone", "BadInput", "ChainOfThought", "Classify", "Continuation", "Coreference"),
        *("DecisionLikelihood", "Full", "Lora", "OptionAnswer", "OptionLikelihood", "PairProbe"),
        *("PairScore", "Probe", "QuestionProbe", "RaybiasError", "Results", "SoftPrompt", "Study"),
        *("FewShot", "SentenceLikelihood", "TrainingSet", "TripleLikelihood", "WorkFailed"),
        *("ZeroShot", "Prefix"),
    }
    assert {*raybias.__all__} == classes | {*FUNCTIONS}
    for name in raybias.__all__:
        assert getattr(raybias, name).__doc__
    for name, parameters in FUNCTIONS.items():
        assert tuple(inspect.signature(getattr(raybias, name)).parameters) == parameters, name
    assert {name for name in dir(raybias.Results) if not name.startswith("_")} == RESULTS


def commands(group: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """Every command of a Typer app with its words."""
    for name, command in group.commands.items():
        words = f"{place} {name}".strip()
        if hasattr(command, "commands"):
            yield from commands(command, words)
        else:
            yield words, command


def test_the_commands_and_their_options() -> None:
    found = dict(commands(typer.main.get_command(app)))
    assert {*found} == {*COMMANDS}
    for name, command in found.items():
        words = {
            word
            for each in command.params
            for word in (
                (*each.opts, *each.secondary_opts)
                if each.param_type_name == "option"
                else (each.metavar or each.name.upper(),)
            )
        }
        assert words - {"--help"} == COMMANDS[name] | {"--json", "--quiet"}, name


def test_every_command_prints_text_or_rows_or_nothing() -> None:
    for command in ("probes list", "data list", "measure --list", "probes new label"):
        text, rows, nothing = (
            CliRunner().invoke(app, [*command.split(), *more]).stdout
            for more in ([], ["--json"], ["--quiet"])
        )
        assert text
        assert not nothing
        assert all(isinstance(json.loads(row), dict) for row in rows.splitlines())
    assert "RAYBIAS_QUIET" not in os.environ


def test_the_program_says_its_version_and_completes_its_commands() -> None:
    said = CliRunner().invoke(app, ["--version"])
    assert (said.exit_code, said.stdout) == (0, f"raybias {version('raybias')}\n")
    program = typer.main.get_command(app)
    options = {name for each in program.params for name in each.opts}
    assert {"--version", "--install-completion", "--show-completion"} <= options


def test_every_field_of_a_study_says_what_it_is() -> None:
    """docs/reference/study.md lists them, and tests/contract/test_reference.py holds it to them."""
    sections = {**raybias.study_schema()["$defs"], "Study": raybias.study_schema()}
    for name, section in sections.items():
        for field, content in section.get("properties", {}).items():
            assert content.get("description") or field == "kind", f"{name}.{field}"


def test_the_layout_of_an_out_is_documented() -> None:
    (tree,) = (b for b in blocks(ROOT / "docs/guides/output.md") if b.text.startswith("study.yaml"))
    listed = {
        name.rstrip("/").split("/")[0]
        for line in tree.text.splitlines()
        if not line.startswith(" ")
        for name in re.findall(r"[a-z_]+(?:\.[a-z]+|/\S*)", line.split("  ")[0])
    }
    assert listed == OUT


def test_the_columns_that_others_read() -> None:
    assert schema.ITEMS.names == [
        "item_id", "label", "attribute", "group", "text", "template_id", "term", "family",
    ]  # fmt: skip
    assert schema.ESTIMATES.names == [
        "kind", "model", "method", "dataset", "probe", "style", "condition", "attribute", "group",
        "score", "statistic", "scope", "value", "low", "high", "p", "q", "significant", "survives",
        "mde", "n", "units", "reason",
    ]  # fmt: skip


def test_the_package_is_a_command_too_and_help_is_wrapped_by_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", ["raybias", "audit", "--help"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_module("raybias", run_name="__main__")
    assert "The study stands in OUT/study.yaml, and the same command" in capsys.readouterr().out


@pytest.mark.long
def test_a_plain_install_plans_a_study(tmp_path: Path) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extra = {re.split(r"[>=<~\[]", line)[0].replace("-", "_")
             for name, lines in project["optional-dependencies"].items() for line in lines
             if name not in ("dev", "docs", "bench")}  # fmt: skip
    hidden = sorted(extra - {"transformers"})
    assert "openai" in hidden
    # As a process that does not have them: whoever looks for one finds nothing.
    (tmp_path / "sitecustomize.py").write_text(
        "from importlib.machinery import PathFinder\n"
        "found = PathFinder.find_spec\n"
        "def find(cls, name, path=None, target=None):\n"
        f"    return None if name.partition('.')[0] in {hidden} else found(name, path, target)\n"
        "PathFinder.find_spec = classmethod(find)\n"
    )
    command = [sys.executable, "-m", "raybias", "plan", "jobs/demo.yaml"]
    path = os.pathsep.join((str(tmp_path), str(ROOT)))
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
