"""README.md, guides and cluster/README.md as a user follows them: what needs no cloud is run.

What stands in for what is not here: a random model in a folder of the hub id's name, the data
already downloaded, a short tuning, and a labeller behind the real HTTP application.
"""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
import uvicorn
import yaml

from raybias.cli import main
from raybias.config import load_study
from raybias.runtime.serve.http import Limits, token_digest, web
from raybias.storage import Store
from support.documents import ROOT, blocks
from support.tiny import save_model

pytestmark = pytest.mark.cluster
#: README.md, and what it leads on to; a block that stands in two of them counts once.
PAGES = [ROOT / name for name in ("README.md", "docs/reference.md", *(
    f"docs/guides/{page}.md" for page in ("own_model", "cluster", "output")))]  # fmt: skip
README = list(dict.fromkeys(block for page in PAGES for block in blocks(page)))
STUDIES = [block for block in README if block.language == "yaml"]
PYTHON = [block for block in README if block.language == "python"]
#: Each parses (tests/contract/test_documented.py).
COMMANDS = [command for block in README if not block.language for command in block.commands]
#: What makes the README's study short.
SHORT = """
methods: [{kind: soft_prompt, seeds: [1001], keep: 1, max_steps: 2, validation_rows: 8}]
resources: {train_workers: 1, replicas_max: 1}
limit: 20
"""


@pytest.fixture(scope="module")
def place(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder, with what the README's study names."""
    folder = tmp_path_factory.mktemp("readme")
    for name, kept in (("sst5", "sst5"), ("amazon", "amazon_templates")):
        shutil.copytree(shared / "data" / kept, folder / "data" / name, copy_function=shutil.copy)
    shutil.copy(shared / "data/regard_published/regard_opt-125m.tsv.gz", folder)
    save_model(folder / "facebook/opt-1.3b", positions=128)
    (folder / "opt-age.yaml").write_text(STUDIES[0].text + SHORT)
    return folder


@pytest.fixture(scope="module")
def printed(place: Path) -> str:
    """Standard output of the README's commands of `raybias`, run in order."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        for command in COMMANDS:
            if command.startswith(("raybias data", "raybias plan", "raybias run")):
                patch.setattr("sys.argv", words := shlex.split(command))
                with redirect_stdout(said), pytest.raises(SystemExit) as ended:
                    main(words[1:])
                assert not ended.value.code, command
    return said.getvalue()


def test_every_study_is_taken(place: Path) -> None:
    """The later ones are parts, which are read together with those before them."""
    content: dict[str, Any] = {}
    for number, block in enumerate(STUDIES):
        content |= yaml.safe_load(block.text)
        # With the backbones that its methods are limited to.
        named = [name for each in content.get("methods", ()) for name in each.get("backbones", ())]
        whole = content | {"backbones": [*content["backbones"], *named]}
        (place / f"{number}.yaml").write_text(yaml.safe_dump(whole))
        load_study(place / f"{number}.yaml")
    overrides = re.findall(r"`--set (\S+)`", "".join(page.read_text("utf-8") for page in PAGES))
    assert overrides
    (place / "whole.yaml").write_text(STUDIES[0].text)
    study = load_study(place / "whole.yaml", overrides=tuple(overrides))
    assert study.methods[0].max_steps == 20_000


def test_the_commands_make_a_study_and_python_goes_on_with_it(
    place: Path, printed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "sst5: " in printed
    assert "report: " in printed
    (table,) = (block for block in README if block.text.startswith("model"))
    # What stands behind the gap follows from the data, which are few here.
    shown, found = (
        next(re.sub(r"\(.*?\)", "", line).split() for line in text.splitlines()
             if line.startswith("model "))
        for text in (table.text, printed)
    )  # fmt: skip
    assert shown[:5] == found[:5] == ["model", "attribute", "group", "score", "gap"]
    (tree,) = (block for block in README if block.text.startswith("study.yaml"))
    listed = set(re.findall(r"^([\w.]+)/?", tree.text, flags=re.M)) | {"pair_scores", "coreference"}
    assert {path.name for path in (place / "out/opt-age").iterdir()} <= listed
    monkeypatch.chdir(place)
    names: dict[str, Any] = {}
    for block in PYTHON:
        exec(compile(block.text, "README.md", "exec"), names)
    assert names["gaps"].height > 0
    assert names["published"].height > 0


class Labeller:
    """Knows the runs that a study kept, and calls all they are asked positive."""

    def __init__(self, out: Path) -> None:
        self.rows = Store(out).read_table("runs.parquet").to_pylist()

    def runs(self) -> list[dict[str, Any]]:
        return [{"run": row["run_id"]} for row in self.rows if row["selected"]]

    async def label(self, run: str, texts: Sequence[str]) -> list[dict[str, Any]]:
        return [{"label": "positive"} for _ in texts]


@contextmanager
def listening(application: Any) -> Iterator[int]:
    """Serve an ASGI application on loopback; gives the port."""
    with socket.create_server(("127.0.0.1", 0)) as bound:
        server = uvicorn.Server(uvicorn.Config(application, log_level="error", lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            while not server.started:
                assert thread.is_alive()
                time.sleep(0.01)
            yield bound.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_curl_is_answered(place: Path, printed: str) -> None:
    (call,) = (command for command in COMMANDS if command.startswith("curl"))
    (make,) = (command for command in COMMANDS if command.startswith("openssl"))
    subprocess.run(["bash", "-c", make], cwd=place, check=True)
    digest = token_digest((place / "token").read_text().strip())
    with listening(web(Labeller(place / "out/opt-age"), Limits(), digest)) as port:
        call = call.replace("localhost:8000", f"--silent --noproxy '*' 127.0.0.1:{port}")
        done = subprocess.run(
            ["bash", "-c", call], cwd=place, capture_output=True, text=True, check=True
        )
    assert '"label":"positive"' in done.stdout, done.stdout


CLUSTER = [line for block in blocks(ROOT / "cluster/README.md") for line in block.commands]
#: What is run of cluster/README.md. `tests/contract/test_documented.py` parses all of it.
CLUSTER_RUN = ("ray get-auth-token", "chmod", "raybias plan")


def test_what_needs_no_cloud_is_run(
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "cluster").mkdir()
    shutil.copy(ROOT / "cluster/study.yaml", tmp_path / "cluster")
    (tmp_path / "cluster/data").symlink_to(place / "data")
    for backbone in load_study(ROOT / "cluster/study.yaml").backbones:
        folder = tmp_path / "cluster" / backbone.id
        folder.parent.mkdir(exist_ok=True)
        folder.symlink_to(place / "facebook/opt-1.3b")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for command in CLUSTER:
        if not command.startswith(CLUSTER_RUN):
            continue
        if command.startswith("raybias"):
            with pytest.raises(SystemExit) as ended:
                main(shlex.split(command)[1:])
            assert not ended.value.code
        else:
            subprocess.run(["bash", "-c", command], check=True, capture_output=True)
    assert (tmp_path / ".ray/auth_token").stat().st_mode & 0o077 == 0
    planned = capsys.readouterr().out
    for name in ("opt-125m", "opt-1.3b", "opt-6.7b"):
        assert f"tune {name} on sst5" in planned
