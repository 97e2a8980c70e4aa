"""The blocks of our Markdown files, as a reader sees them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[2]


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
