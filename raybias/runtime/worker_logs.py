"""What the workers of a Ray that raybias started printed, kept in OUT.

Ray leaves a file for each process under /tmp, until the machine is started anew; a cluster's own
stay on its nodes, where its operators look for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from raybias.redaction import redact
from raybias.storage import Store

#: In OUT.
WORKER_LOGS: Final = "logs/workers.txt"
#: Characters kept of a process, from its end: a worker that fails says so last.
_KEPT: Final = 100_000


@contextmanager
def keeping_worker_logs(store: Store) -> Iterator[None]:
    """Write what workers printed to OUT when the context ends, whether with an error or not."""
    import ray

    (node,) = ray.nodes()
    # Sockets and logs are folders of the session's.
    folder = Path(node["RayletSocketName"]).parents[1] / "logs"
    try:
        yield
    finally:
        if said := worker_logs(folder):
            store.write_text(WORKER_LOGS, said)


def worker_logs(folder: Path) -> str:
    """Join what each worker of a session printed, passwords in URLs redacted.

    Parameters
    ----------
    folder: of a Ray session's logs.
    """
    parts = []
    for file in sorted(folder.glob("worker-*")):
        lines = file.read_text("utf-8", errors="replace")[-_KEPT:].splitlines()
        # Ray writes between the lines whose they are.
        names = dict.fromkeys(each.partition(":actor_name:")[2] for each in lines)
        name = ", ".join(filter(None, names)) or "task"
        said = [line for line in lines if line.strip() and not line.startswith(":")]
        if said:
            kind = "standard error" if file.suffix == ".err" else "standard output"
            parts.append("\n".join((f"== {name}, {kind} ({file.name})", *said)))
    return redact("\n\n".join(parts) + "\n") if parts else ""
