"""docs/reference is what the package says, and the JSON Schema takes what the study file takes."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from typer.testing import CliRunner

import raybias
from raybias.cli import app

ROOT = Path(raybias.__file__).parents[1]
STUDIES = sorted([*ROOT.glob("jobs/*.yaml"), ROOT / "cluster/study.yaml"])
LEAST = {"name": "s", "backbones": "planted"}


def test_the_reference_is_current(monkeypatch: pytest.MonkeyPatch) -> None:
    """`make docs` mends it."""
    for name, value in {"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"}.items():
        monkeypatch.setenv(name, value)
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs/reference.py")
    assert spec is not None
    assert spec.loader is not None
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    for name, text in reference.pages().items():
        assert (ROOT / "docs/reference" / name).read_text("utf-8") == text, (
            f"run `make docs`: {name}"
        )


@pytest.fixture(scope="module")
def schema() -> Any:
    printed = CliRunner().invoke(app, ["plan", "--schema"]).stdout
    found = json.loads(printed)
    jsonschema.Draft202012Validator.check_schema(found)
    return found


@pytest.mark.long
@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.name)
def test_every_study_here_fits_the_schema(schema: Any, study: Path) -> None:
    jsonschema.validate(yaml.safe_load(study.read_text("utf-8")), schema)


@pytest.mark.parametrize(
    ("change", "fits"),
    [
        ({}, True),
        ({"methods": [{"seeds": 7, "keep": 1}]}, True),
        ({"methods": [{"kind": "zero_shot"}, {"kind": "lora", "rank": 4}]}, True),
        ({"methods": [{"kind": "zero_shot", "rank": 4}]}, False),
        ({"methods": [{"rank": 4}]}, False),
        ({"methods": [{"kind": "unheard_of"}]}, False),
        ({"profile": "lenient"}, False),
        ({"backbone": "planted"}, False),
    ],
)
def test_the_schema_takes_what_a_study_takes(
    schema: Any, change: dict[str, Any], fits: bool
) -> None:
    content = {**LEAST, "training": [{"source": "planted"}], "probes": [{"source": "planted"}]}
    content |= change
    errors = list(jsonschema.Draft202012Validator(schema).iter_errors(content))
    assert bool(errors) != fits
    try:
        raybias.Study.model_validate(content)
    except ValueError:
        assert not fits
    else:
        assert fits
