"""List, check and download the public data sets that sources.yaml pins by address and sha256."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from hashlib import sha256
from importlib import resources
from pathlib import Path

import polars as pl
from pydantic import TypeAdapter

from raybias.config import parse_yaml
from raybias.config.section import Section
from raybias.errors import DataError, WorkFailed
from raybias.probes.checks import needed, read_lines
from raybias.storage import Store, shortest_path
from raybias.table_files import read_frame


class DataFile(Section):
    """What one published file must be."""

    rows: int | None = None
    """Records, a header not counted; none where it is not known."""
    sha256: str | None = None
    """None where it is not published openly."""
    origin: str | None = None
    """Path below `base` where it differs from the file's name."""
    header: bool = False
    """Whether the first line of a text file is a header (it always is in .csv)."""


class Part(Section):
    """Files of one origin that belong together."""

    name: str
    licence: str
    """The terms that their publishers state."""
    page: str
    """Where a person reads about them."""
    files: dict[str, DataFile]
    """By their path in the folder that the readers take."""
    base: str | None = None
    """Address that `origin` is below; none means by hand."""
    revision: str = ""
    """The pinned commit."""
    optional: bool = False
    """Whether the whole part may be absent."""


class DataSet(Section):
    """One public data set."""

    about: str
    parts: tuple[Part, ...]

    @property
    def by_hand(self) -> str:
        """How to get what has no stable address; empty where all can be downloaded."""
        pages = [part.page for part in self.parts if not part.base]
        return f"take it from {pages[0]} under its authors' terms, then check it" if pages else ""

    def files(self) -> Iterator[tuple[Part, str, DataFile]]:
        """Yield every file with its part and its path."""
        for part in self.parts:
            for path, file in part.files.items():
                yield part, path, file


def registry() -> dict[str, DataSet]:
    """Load every known data set by name."""
    text = resources.files("raybias.probes").joinpath("sources.yaml").read_text("utf-8")
    return TypeAdapter(dict[str, DataSet]).validate_python(parse_yaml(text))


def data_set(name: str) -> DataSet:
    """Load one data set; `DataError` for an unknown name."""
    known = registry()
    if name not in known:
        raise DataError(f"no data set {name!r}", cure=f"choose from {', '.join(known)}")
    return known[name]


def place_of(source: str, data: str | None, *, where: str) -> str:
    """Return where the files of a probe or training set are; `DataError` if there are none."""
    place = needed(data, where=where)
    store = Store(place)
    if store.is_local and not store.exists("") and source in (known := registry()):
        shown = shortest_path(store.uri)
        brings = f"`raybias data download {source} --out {shlex.quote(shown)}` brings it"
        raise DataError("no such folder", where=shown, cure=known[source].by_hand or brings)
    return place


def recognise(store: Store) -> str:
    """Find the data set of which the folder has the most files; `DataError` if it has none."""
    found = {
        name: sum(_locate(store, part, path) is not None for part, path, _ in entry.files())
        for name, entry in registry().items()
    }
    name = max(found, key=lambda each: found[each])
    if not found[name]:
        raise DataError(
            "holds no files of a known data set",
            where=store.uri,
            cure=f"give the folder of one of {', '.join(found)}",
        )
    return name


def data_sets() -> pl.DataFrame:
    """List the public data sets: one row for each part, with licence and pinned revision."""
    return pl.DataFrame(
        {
            "name": name,
            "part": part.name,
            "optional": part.optional,
            "files": len(part.files),
            "rows": sum(file.rows or 0 for file in part.files.values()),
            "revision": part.revision if part.base else f"{part.revision} by hand".strip(),
            "licence": part.licence,
            "source": part.page,
        }
        for name, entry in registry().items()
        for part in entry.parts
    )


def check_data(folder: str | Path, name: str | None = None) -> pl.DataFrame:
    """Compare a folder with the published files: name, file, rows (null if missing), finding, ok.

    Files of an optional part may be absent together as long as some part is there.

    Parameters
    ----------
    name: of a data set; recognised by its files by default.

    Raises
    ------
    DataError: no such data set, or none that could be recognised.
    """
    store = Store(folder)
    name = name or recognise(store)
    entry = data_set(name)
    there = {
        part.name: any(_locate(store, part, path) for path in part.files) for part in entry.parts
    }
    return pl.DataFrame(
        {"name": name, **_checked(store, part, path, part.optional and not there[part.name])}
        for part, path, _ in entry.files()
    )


def download_data(
    name: str,
    out: str | Path,
    *,
    mirror: str | None = None,
    on_file: Callable[[str], None] | None = None,
) -> None:
    """Fetch a public data set at its pinned revision; files that are there and right stay.

    Parameters
    ----------
    out: local folder, which probes and training sets take as `data`.
    mirror: address that serves the files under their names in the folder.
    on_file: called with each file's path once it is there.

    Raises
    ------
    DataError: no such data set, or none that is published at a stable address.
    OutputError: the folder cannot be written.
    WorkFailed: a file cannot be fetched or is not the published one; whole files before it stay.
    """
    entry, store = data_set(name), Store(out)
    if entry.by_hand:
        raise DataError(f"{entry.about} has no stable address", cure=entry.by_hand)
    for part, path, file in entry.files():
        url = f"{mirror.rstrip('/')}/{path}" if mirror else f"{part.base}{file.origin or path}"
        if not store.exists(path) or sha256(store.read_bytes(path)).hexdigest() != file.sha256:
            store.write_bytes(path, _fetched(url, file.sha256))
        if on_file:
            on_file(path)


def _fetched(url: str, known_hash: str | None) -> bytes:
    import requests

    try:
        answer = requests.get(url, timeout=30)
        answer.raise_for_status()
    except requests.RequestException as error:
        told = error.response
        said = "the server does not answer" if told is None else f"{told.status_code} {told.reason}"
        cure = "check the network, or give a mirror"
        raise WorkFailed(f"cannot fetch ({said})", where=url, cure=cure) from error
    if sha256(answer.content).hexdigest() != known_hash:
        raise WorkFailed(
            "is not the published file (its sha256 differs)",
            where=url,
            cure="nothing was written for it; try again or use another mirror",
        )
    return answer.content


def _locate(store: Store, part: Part, path: str) -> str | None:
    """Find the file in its place, or deeper, as archives fetched by hand unpack."""
    if store.exists(path):
        return path
    if part.base:
        return None
    hits = [each for each in store.files(recursive=True) if each.endswith(f"/{path}")]
    return hits[0] if hits else None


def _checked(store: Store, part: Part, path: str, may_miss: bool) -> dict[str, object]:
    expected = part.files[path]
    place = _locate(store, part, path)
    if place is None:
        finding = "absent (optional)" if may_miss else "missing"
        return {"file": path, "rows": None, "finding": finding, "ok": may_miss}
    csv = place.endswith(".csv")
    rows = read_frame(store, place).height if csv else len(read_lines(store, place))
    rows -= expected.header and not csv
    wrong = []
    if expected.rows not in (None, rows):
        wrong.append(f"rows should be {expected.rows}")
    if expected.sha256 not in (None, sha256(store.read_bytes(place)).hexdigest()):
        wrong.append("sha256 differs")
    known = "rows" if expected.rows else "there"
    good = "ok" if expected.sha256 else f"ok ({known}; no published hash)"
    return {"file": place, "rows": rows, "finding": ", ".join(wrong) or good, "ok": not wrong}
