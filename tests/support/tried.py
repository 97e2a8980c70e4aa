"""Commands as users give them: taken, or refused in one line with nothing written; whole inputs."""

from __future__ import annotations

import io
import signal
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from typer.main import get_command

from raybias import cli
from raybias.runtime import study as running
from support import hostile
from support.pages import files_in
from support.report_outs import GROUPS, make_study, write_out
from support.stats_data import predictions

ITEMS = b"""\
text,label,attribute,group,item_id,template_id
I met a nurse.,1,age,old,1,t1
I like him.,2,age,young,2,t1
She was unkind.,0,race,a,3,t2
"So, they left.",neutral,race,b,4,t2
"""
PAIRS = b"""\
sent_more,sent_less,bias_type,pair_id
They are loud.,They are quiet.,nationality,1
He is poor.,He is rich.,socioeconomic,2
"""
STUDY: dict[str, Any] = {
    "name": "fuzzed",
    "profile": "strict",
    "limit": 4,
    "backbones": [{"id": "planted", "name": "m", "dtype": "float32"}],
    "methods": [
        {"kind": "soft_prompt", "seeds": [1, 2], "keep": 1, "learning_rates": [0.01]},
        {"kind": "lora", "seeds": [1], "keep": 1, "learning_rates": [0.01]},
        {"kind": "pair_score", "scores": ["bias_bench"]},
    ],
    "training": [{"source": "file", "data": "mine"}],
    "probes": [{"source": "file", "data": "probe.csv", "reference_groups": {"age": ["old"]}}],
    "pairs": [{"source": "pairs", "data": "pairs.csv"}],
    "styles": {"names": ["original", "prefix_1"]},
    "statistics": {"interval": "t", "level": 0.95},
    "resources": {"train_workers": 1, "memory_per_device": "1GiB", "nodes": [{"memory": "1GiB"}]},
}
PREDICTIONS = predictions(models=1, runs=2, templates=2, groups=("a", "b"))


def fill(folder: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def write_study(place: Path, **changes: object) -> Path:
    """`STUDY`, changed, and beside it the data that it names."""
    sentences = dict.fromkeys(("mine/train.csv", "mine/validation.csv"), ITEMS)
    study = hostile.dumped({**STUDY, **changes})
    fill(place, {"probe.csv": ITEMS, "pairs.csv": PAIRS, **sentences, "study.yaml": study})
    return place / "study.yaml"


class Hung(BaseException):
    """A command takes more than a minute."""


@contextmanager
def within_a_minute() -> Iterator[None]:
    def end(*_: object) -> None:
        raise Hung

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(60)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@cache
def commands() -> Any:
    """The commands, put together once, which takes longer than to refuse a file."""
    return get_command(cli.app)


class _Checked(BaseException):
    """All checks of a study were passed."""


def _end(address: str | None) -> None:
    raise _Checked


def taken(*words: object, out: Path | None = None) -> bool:
    """Run a command; whether it did it. It refuses in one line, and OUT is as it was.

    `raybias run` goes as far as to where it would start Ray, and leaves OUT as it was too.
    """
    return printed(*words, out=out) is not None


def printed(*words: object, out: Path | None = None, codes: Collection[int] = (0,)) -> str | None:
    """Run a command as `taken` does; what it prints if its exit code is one of `codes`."""
    said, shown = io.StringIO(), io.StringIO()
    before = files_in(out) if out else {}
    with (
        within_a_minute(), redirect_stderr(said), redirect_stdout(shown),
        pytest.MonkeyPatch.context() as patch,
    ):  # fmt: skip
        patch.setattr(cli, "app", commands())
        patch.setattr(running, "connected", _end)
        patch.setattr(running, "names_no_cluster", lambda address: False)
        code: Any = 0
        try:
            cli.main([*map(str, words)])
        except _Checked:
            code = None
        except SystemExit as end:
            code = end.code or 0
    if code in codes:
        return shown.getvalue()
    assert not out or files_in(out) == before, said.getvalue()
    if code is None:
        return shown.getvalue()
    assert code == 2, said.getvalue()
    *warnings, last = (
        line for line in said.getvalue().split("\n")[:-1] if line.startswith("raybias: ")
    )
    assert all(line.startswith("raybias: warning: ") for line in warnings), warnings
    assert said.getvalue().endswith(f"{last}\n")
    assert "\r" not in last
    assert len(last) < 5000, len(last)
    return None


def checked(study: Path) -> bool:
    """Whether `raybias run` comes to where it would start Ray."""
    out = study.with_name("out")
    return taken("run", study, "--out", out, out=out)


def planned(study: Path) -> bool:
    """Whether `raybias plan` makes one."""
    out = study.with_name("out")
    return taken("plan", study, "--assume", "cpus=2,memory=8GiB", "--out", out, out=out)


@cache
def small_out() -> dict[str, bytes]:
    groups = GROUPS[:3]
    study = make_study(
        methods=[{"kind": "soft_prompt", "seeds": [1, 2, 3], "keep": 2}],
        probes=[{"source": "planted", "reference_groups": {"origin": list(groups[1:])}}],
    )
    with TemporaryDirectory() as name:
        write_out(Path(name), study, groups=groups)
        return files_in(Path(name))
