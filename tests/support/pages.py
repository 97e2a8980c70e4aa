"""Reports as a browser reads them, and a folder as its bytes."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

from raybias.storage import Store


class Page(HTMLParser):
    """Collects what a test asks of a page but its contents; balanced tags are checked."""

    VOID = frozenset({"meta", "br", "hr", "img", "link", "input"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.links: list[str] = []
        self.ids: list[str] = []
        self.text = ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.links += [v or "" for k, v in attrs if k in ("src", "href", "xlink:href", "action")]
        self.ids += [v or "" for k, v in attrs if k == "id"]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and not {"style", "script", "nav"} & {*self.open}:
            self.text += data


def page_of(store: Store) -> Page:
    """The page of an OUT, whose ids are unique."""
    page = Page(store.read_text("report.html"))
    assert len(page.ids) == len(set(page.ids))
    page.text = " ".join(page.text.split())
    return page


def files_in(folder: Path) -> dict[str, bytes]:
    """Every file of a folder by its path."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
