"""A small study of every method, and `raybias run` as tests call it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import yaml
from typer.testing import CliRunner

from raybias.cli import app
from support import prompting

TUNED = {"learning_rates": [1e-3], "max_steps": 6, "eval_every": 3, "seeds": [1, 2], "keep": 1}


def save(folder: Path, *kinds: str) -> Path:
    """A study file of these methods, or all, with its model, training set and probe in `folder`."""
    prompting.save("opt", folder / "tiny")
    texts = prompting.texts(60)
    sentences = folder / "sentences"
    sentences.mkdir()
    for split, part in {"train": texts[:36], "validation": texts[36:]}.items():
        labels = [n % 3 for n in range(len(part))]
        pl.DataFrame({"text": part, "label": labels}).write_csv(sentences / f"{split}.csv")
    pl.DataFrame(
        {
            "text": prompting.texts(30),
            "label": [n // 5 % 3 for n in range(30)],
            "attribute": "colour",
            "group": [("red", "blue", "green")[n % 3] for n in range(30)],
            "template_id": [f"t{n // 3}" for n in range(30)],
            "term": [("red", "blue", "green")[n % 3] for n in range(30)],
        }
    ).write_csv(folder / "probe.csv")
    content: dict[str, Any] = {
        "name": "methods",
        "backbones": [{"id": "tiny", "dtype": "float32", "bos": "prepend"}],
        "training": [{"source": "file", "name": "sentences", "data": "sentences"}],
        "methods": [
            {"kind": "zero_shot", "seeds": [1, 2]},
            {"kind": "few_shot", "seeds": [1, 2]},
            {"kind": "cot", "seeds": [1], "reasoning_tokens": 6},
            {"kind": "soft_prompt", "prompt_length": 4, **TUNED},
            {"kind": "lora", **TUNED},
            {"kind": "full", **TUNED},
        ],
        "probes": [{"source": "file", "name": "mine", "data": "probe.csv"}],
        "resources": {
            "rows_per_shard": 16,
            "train_workers": 1,
            "replicas_max": 1,
            "deterministic": True,
        },
    }
    if kinds:
        content["methods"] = [each for each in content["methods"] if each["kind"] in kinds]
    path = folder / "methods.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


#: Options of `run` that do without Ray, whatever cluster the tests share.
NO_RAY = ("--address", "none")


def run(study: Path, out: Path, *options: str) -> str:
    """What `raybias run` prints on standard output; its error is raised."""
    result = CliRunner().invoke(app, ["run", str(study), "--out", str(out), *options])
    if result.exception is not None:
        raise result.exception
    return result.stdout
