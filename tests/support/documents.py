"""The blocks of our Markdown files, and the YAML of cluster/ after README.md's `envsubst`."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = ROOT / "cluster"
KUBERAY = CLUSTER / "kuberay"

FILLED = {
    "IMAGE": "registry.example/raybias:0.1.0",
    "REGISTRY": "registry.example",
    "SECURITY_GROUP": "sg-0123456789abcdef0",
    "PROJECT": "my-raybias-project",
    "OUT": "gs://bucket/study",
}


@dataclass(frozen=True)
class Block:
    """A fenced block with the language that it names, or an indented one."""

    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """Its lines without comments, those that end in a backslash joined with the next."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [said for line in lines if (said := line.partition("   #")[0].strip())]


def blocks(path: Path) -> Iterator[Block]:
    """Every block of a file, in order."""
    for token in MarkdownIt("commonmark").parse(path.read_text("utf-8")):
        if token.type in ("fence", "code_block"):
            yield Block(token.info.strip(), token.content)


def documents(path: Path) -> list[dict[str, Any]]:
    """The YAML documents of a file with every ${NAME} filled in; others are a KeyError."""
    text = re.sub(r"\$\{(\w+)\}", lambda found: FILLED[found[1]], path.read_text())
    return list(yaml.safe_load_all(text))


def pins() -> dict[str, str]:
    """Versions of constraints.txt by package."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if "==" in line)
