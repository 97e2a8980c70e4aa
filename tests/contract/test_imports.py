"""Imports point one way; the contracts are in pyproject.toml."""

from __future__ import annotations

from pathlib import Path

from importlinter.cli import lint_imports


def test_imports_point_one_way() -> None:
    pyproject = Path(__file__).parents[2] / "pyproject.toml"
    assert lint_imports(config_filename=str(pyproject), no_cache=True) == 0
