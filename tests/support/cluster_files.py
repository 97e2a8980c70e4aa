"""Where cluster/ is, and its YAML as it is after README.md's `envsubst`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CLUSTER = ROOT / "cluster"
KUBERAY = CLUSTER / "kuberay"

FILLED = {
    "IMAGE": "registry.example/raybias:0.1.0",
    "REGISTRY": "registry.example",
    "SECURITY_GROUP": "sg-0123456789abcdef0",
    "PROJECT": "my-raybias-project",
    "OUT": "gs://bucket/study",
}


def documents(path: Path) -> list[dict[str, Any]]:
    """The YAML documents of a file with every ${NAME} filled in; others are a KeyError."""
    text = re.sub(r"\$\{(\w+)\}", lambda found: FILLED[found[1]], path.read_text())
    return list(yaml.safe_load_all(text))


def pins() -> dict[str, str]:
    """Versions of constraints.txt by package."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line)
