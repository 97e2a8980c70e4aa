"""What others build on: public names, commands and their options, table columns, imports."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import raybias
from raybias import schema
from raybias.cli import app

COMMANDS = {
    "run": {"--out", "--set", "--limit", "--profile", "--address", "--debug"},
    "plan": {
        *("--out", "--set", "--limit", "--profile", "--address", "--assume"),
        *("--peak-tflops", "--utilisation"),
    },
    "demo": {"--out", "--address", "--debug"},
    "doctor": {"--address", "--out"},
    "gaps": {"--out", "--profile", "--interval", "--reference", "--metric"},
    "pairs": {"--out", "--profile", "--scale", "--margin", "--size"},
    "report": {"--profile"},
    "serve": {"--host", "--port", "--token-file", "--model", "--max-queued", "--timeout"},
    "probes list": set(),
    "probes write": {"--attribute", "--data", "--out"},
    "data list": set(),
    "data check": set(),
    "data download": set(),
}


def test_the_public_names() -> None:
    assert sorted(raybias.__all__) == [
        *("Backbone", "BadInput", "ChainOfThought", "Coreference", "FewShot", "Full", "Ia3"),
        "Lora",
        *("PairProbe", "PairScore", "Probe", "RaybiasError", "Results", "SoftPrompt", "Study"),
        *("TrainingSet", "WorkFailed", "ZeroShot"),
        "gaps",
        "load_study",
        "open",
        "plan",
        "probe_items",
        "run",
        "write_report",
    ]
    for name in raybias.__all__:
        assert getattr(raybias, name).__doc__


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_its_options(command: str) -> None:
    result = CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}).invoke(
        app, [*command.split(), "--help"]
    )
    assert result.exit_code == 0
    options = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", result.stdout))
    assert options >= COMMANDS[command]


def test_the_columns_that_others_read() -> None:
    assert schema.ITEMS.names == [
        "item_id", "label", "attribute", "group", "text", "template_id", "term",
    ]  # fmt: skip
    assert schema.GAPS.names[:10] == [
        "model", "attribute", "group", "rate", "gap", "low", "high", "half_width", "n_runs",
        "significant",
    ]  # fmt: skip
    assert schema.ACCURACY.names[:5] == ["model", "attribute", "mean", "sd", "n_runs"]


def test_files_alone_need_neither_torch_nor_ray() -> None:
    code = (
        "import sys, raybias, raybias.cli, raybias.stats, raybias.report, raybias.probes;"
        "heavy = {'torch', 'ray', 'transformers', 'datasets'} & set(sys.modules);"
        "sys.exit(', '.join(sorted(heavy)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"imported: {done.stderr}"
