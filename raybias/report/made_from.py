"""Say what a page was made from: the command, its date, the version, and each file's sha256."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import version

from raybias.errors import OutputError
from raybias.report.summary_tables import SummaryTable
from raybias.seal import digest
from raybias.storage import Store, split_uri


def made_from(paths: Sequence[str], *, command: str = "") -> SummaryTable:
    """List the command, date and version, and the sha256 of each file.

    Parameters
    ----------
    paths: files, and folders of them.
    """
    rows = [("command", command)] if command else []
    rows += [("date", datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"))]
    rows += [("raybias", version("raybias"))]
    for path in paths:
        if Store(path).is_file():
            store, name = split_uri(path)
            names = [name]
        else:
            store = Store(path)
            names = store.files(recursive=True)
        rows += [(store.uri_of(name), digest(store.read_bytes(name))) for name in names]
    return SummaryTable("Command, date, version, and sha256 of the files", ("what", "value"),
                        tuple(rows))  # fmt: skip


def refuse_study(store: Store) -> None:
    """Refuse a folder whose report.html is a study's.

    Raises
    ------
    OutputError: it holds a study.
    """
    if store.exists("study.yaml"):
        raise OutputError(
            "holds a study, whose report.html this would replace",
            where=store.uri,
            cure="give another --out, or use `raybias report`",
        )
