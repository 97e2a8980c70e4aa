"""The package of docs/extending.md, installed into a folder as pip would."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs" / "extending.md"


def install(folder: Path, **others: str) -> None:
    """Write the modules that the page shows; make their entry points known, and others."""
    text = DOCS.read_text("utf-8")
    package = folder / "my_package"
    package.mkdir(parents=True)
    for name, code in re.findall(r"`my_package/(\w+)\.py`:\n\n```python\n(.*?)```", text, re.S):
        (package / f"{name}.py").write_text(code)
    own = tomllib.loads(_block("toml"))["project"]["entry-points"]["raybias"]
    list_entry_points(folder, {**own, **others})


def list_entry_points(folder: Path, modules: dict[str, str]) -> None:
    """Make a folder on PYTHONPATH an installed package with entry points."""
    facts = folder / "my_package-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1.0\n")
    lines = [f"{name} = {module}" for name, module in modules.items()]
    (facts / "entry_points.txt").write_text("\n".join(["[raybias]", *lines, ""]))


def study() -> str:
    """The study file that the page shows."""
    return _block("yaml")


def _block(language: str) -> str:
    (block,) = re.findall(rf"```{language}\n(.*?)```", DOCS.read_text("utf-8"), re.S)
    return str(block)
