"""Which weights a study is about: commits of the hub, hashes of folders, refusals (10 s)."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from raybias.config import Study, parse_study
from raybias.engine.checkpoint import file_hashes
from raybias.errors import ModelError, OutputError
from raybias.planning.prepared import check_folders, hashes_of, resolve_models
from raybias.runtime.study import prepare
from raybias.storage import Store
from raybias.study_record import Record, begin, make_record, read_record, resumed
from support import backbones

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER = "76543210fedcba9876543210fedcba9876543210"
LOCATE = """
import json, sys
from raybias.engine.checkpoint import locate
from raybias.errors import ModelError
found = {}
for name in sys.argv[1:]:
    place, _, revision = name.partition("@")
    try:
        found[name] = locate(place, revision or None).commit
    except ModelError as error:
        found[name] = str(error)
print(json.dumps(found))
"""


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files as in a model's folder, hashed into a cache of their own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "tiny"
    folder.mkdir()
    for name in ("model.safetensors", "config.json", "tokenizer.json", "chat_template.jinja"):
        (folder / name).write_text(name)
    (folder / "README.md").write_text("of no consequence")
    return folder


def study_of(model: str | Path, **changes: object) -> Study:
    content = {
        "name": "mine",
        "backbones": [{"id": str(model), "name": "tiny", "dtype": "float32"}],
        "training": [{"source": "planted"}],
        "probes": [{"source": "planted"}],
    }
    return parse_study({**content, **changes})


def record_of(model: Path) -> Record:
    study = resolve_models(study_of(model))
    return make_record(study, {}, command="test", models=hashes_of(study))


def test_other_files_under_the_same_name_are_another_study(model: Path) -> None:
    store = Store(model.parent / "out")
    begin(store, record_of(model))
    assert replace(read_record(store), begun="") == record_of(model)
    (model / "README.md").write_text("changed")
    assert resumed(store, record_of(model)).hash == read_record(store).hash
    for name in ("model.safetensors", "tokenizer.json", "chat_template.jinja"):
        (model / name).write_text(name[::-1])
        with pytest.raises(
            OutputError, match=rf"models\.tiny\.{name} is \w{{12}}\.\., now \w{{12}}"
        ):
            resumed(store, record_of(model))
        (model / name).write_text(name)
    (model / "generation_config.json").write_text("{}")
    with pytest.raises(OutputError, match=r"generation_config\.json is None, now"):
        resumed(store, record_of(model))


def test_known_hashes_are_used_again_and_a_read_only_home_costs_nothing(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = file_hashes(model)
    cache = model.parent / "cache" / "raybias" / "sha256.json"
    known = json.loads(cache.read_text())
    weights = str((model / "model.safetensors").resolve())
    known[weights]["sha256"] = "known"
    cache.write_text(json.dumps(known))
    assert file_hashes(model)["model.safetensors"] == "known"
    cache.write_text("broken {")
    assert file_hashes(model) == first
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert file_hashes(model) == first


#: Files of org/good; the last three hold its weights once more, or what is not read.
HELD = ("config.json", "model.safetensors", "tokenizer.json", "original/model.safetensors",
        "consolidated.safetensors", "pytorch_model.bin")  # fmt: skip
FETCH = """
import sys
from pathlib import Path
from typing import Any
from raybias.config import Backbone
from raybias.engine.checkpoint import fetched
folder = Path(fetched(Backbone(id="org/good", revision=sys.argv[1])))
print(*sorted(path.name for path in folder.rglob("*")))
"""


class _Hub(BaseHTTPRequestHandler):
    """Answers as the hub does to a HEAD of a model's config.json."""

    ANSWERS = {  # noqa: RUF012
        "/org/good/resolve/main/config.json": (200, {"X-Repo-Commit": COMMIT, "ETag": '"a"'}),
        "/org/good/resolve/v1/config.json": (200, {"X-Repo-Commit": OTHER, "ETag": '"b"'}),
        **{
            f"/org/good/resolve/{COMMIT}/{name}": (200, {"X-Repo-Commit": COMMIT, "ETag": '"a"'})
            for name in ("config.json", "model.safetensors", "tokenizer.json")
        },
        "/org/good/resolve/v2/config.json": (404, {"X-Error-Code": "RevisionNotFound"}),
        "/org/gated/resolve/main/config.json": (403, {"X-Error-Code": "GatedRepo"}),
        "/org/bare/resolve/main/config.json": (404, {"X-Error-Code": "EntryNotFound"}),
        "/org/cached/resolve/main/config.json": (503, {}),
    }

    #: What `org/pickled` holds at every revision.
    pickled = Path()

    def do_HEAD(self) -> None:
        lacking = "EntryNotFound" if "pickled" in self.path else "RepoNotFound"
        status, headers = self.ANSWERS.get(self.path, (404, {"X-Error-Code": lacking}))
        if (content := self.pickled_file()) is not None:
            etag = f'"{hashlib.sha256(content).hexdigest()}"'
            headers = {"X-Repo-Commit": COMMIT, "ETag": etag, "Content-Length": str(len(content))}
            status = 200
        self.send_response(status)
        for name, value in {"Content-Length": "2", **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def pickled_file(self) -> bytes | None:
        """The content of the file of `org/pickled` that is asked for."""
        if not self.path.startswith("/org/pickled/resolve/"):
            return None
        path = self.pickled / self.path.rpartition("/")[2]
        return path.read_bytes() if path.is_file() else None

    def do_GET(self) -> None:
        """Answers as to a listing of a commit's files and to their content."""
        listed: Any = {"sha": COMMIT, "id": "org/good"}
        if "/tree/" in self.path:
            names = (
                [path.name for path in self.pickled.iterdir()] if "pickled" in self.path else HELD
            )
            listed = [{"type": "file", "path": f, "size": 2, "oid": "a"} for f in names]
        elif "pickled" in self.path:
            names = [path.name for path in self.pickled.iterdir()]
            listed = {**listed, "siblings": [{"rfilename": name} for name in names]}
        content = json.dumps(listed).encode() if self.path.startswith("/api/") else b"{}"
        content = self.pickled_file() or content
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        for name, value in {"X-Repo-Commit": COMMIT, "ETag": '"a"'}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def hub() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Hub) as server:
        threading.Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A hub cache with one model."""
    folder = tmp_path / "hub" / "models--org--cached"
    snapshot = folder / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text("{}")
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text(COMMIT)
    return tmp_path / "hub"


def python(code: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """A process, since the hub's client reads its environment once."""
    kept = {k: v for k, v in os.environ.items() if k not in ("HF_HUB_OFFLINE", "HF_ENDPOINT")}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=kept | environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.long
def test_the_hub_is_asked_once_and_each_refusal_has_its_cure(hub: str, cache: Path) -> None:
    names = ["org/good", "org/good@v1", "org/good@v2", "org/gated", "org/none", "org/bare",
             "org/cached", "./nowhere"]  # fmt: skip
    done = python(LOCATE, *names, HF_ENDPOINT=hub, HF_HUB_CACHE=str(cache))
    found = json.loads(done.stdout)
    assert found["org/good"] == found["org/cached"] == COMMIT
    assert found["org/good@v1"] == OTHER
    for name, said in {
        "org/good@v2": "no such revision; give a branch, tag or commit",
        "org/gated": "is gated, and this machine has no access; accept its terms",
        "org/none": "a model that the hub shows to this machine; check the id",
        "org/bare": "has no config.json",
        "./nowhere": "cannot load (neither a folder here nor an id of the hub); check the path",
    }.items():
        assert said in found[name]
        assert "\n" not in found[name]
    assert done.stderr == ""


@pytest.mark.long
def test_a_machine_fetches_what_is_loaded_and_then_needs_no_hub(hub: str, tmp_path: Path) -> None:
    for environment in ({"HF_ENDPOINT": hub}, {"HF_HUB_OFFLINE": "1"}):
        done = python(FETCH, COMMIT, HF_HUB_CACHE=str(tmp_path), **environment)
        assert done.stdout.split() == sorted(HELD[:3]), done.stderr
    done = python(FETCH, OTHER, HF_HUB_CACHE=str(tmp_path), HF_HUB_OFFLINE="1")
    assert "org/good@7654" in done.stderr


LOAD = """
from raybias.config import Backbone
from raybias.engine.backbone import load_backbone
from raybias.engine.checkpoint import fetched, is_pickled
spec = Backbone(id="org/pickled", bos="prepend", dtype="float32")
assert is_pickled(spec)
weights = load_backbone(spec).model.state_dict().values()
print(fetched(spec), sum(float(tensor.double().sum()) for tensor in weights))
"""


@pytest.mark.long
def test_pickled_weights_of_the_hub_are_converted_where_they_are_fetched(
    hub: str, tmp_path: Path
) -> None:
    _Hub.pickled = backbones.save("opt", tmp_path / "opt")
    model = transformers.AutoModelForCausalLM.from_pretrained(_Hub.pickled)
    torch.save(model.state_dict(), _Hub.pickled / "pytorch_model.bin")
    (_Hub.pickled / "model.safetensors").unlink()
    expected = sum(float(tensor.double().sum()) for tensor in model.state_dict().values())
    folders = {"HF_HUB_CACHE": str(tmp_path / "hub"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    for environment in ({"HF_ENDPOINT": hub}, {"HF_HUB_OFFLINE": "1"}):
        done = python(LOAD, **folders, **environment)
        assert done.returncode == 0, done.stderr
        folder, total = done.stdout.split()
        assert Path(folder).is_relative_to(tmp_path / "cache")
        assert float(total) == pytest.approx(expected)


@pytest.mark.long
def test_without_network_the_cache_does_or_one_line_comes_without_a_retry(cache: Path) -> None:
    names = ("org/cached", f"org/cached@{COMMIT}", "org/good")
    for environment, said in (
        ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "the hub does not answer ("),
        ({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set"),
    ):
        done = python(LOCATE, *names, HF_HUB_CACHE=str(cache), **environment)
        found = json.loads(done.stdout)
        assert found["org/cached"] == found[f"org/cached@{COMMIT}"] == COMMIT
        assert said in found["org/good"]
        assert "this machine's cache does not have it; download it where" in found["org/good"]
        assert done.stderr == ""


def test_weights_that_are_not_whole_are_refused_before_out_is_written(tmp_path: Path) -> None:
    model = backbones.save("opt", tmp_path / "tiny")
    study = study_of(model)
    check_folders(study)
    weights = model / "model.safetensors"
    whole = weights.read_bytes()
    index = model / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": "other"}}))
    with pytest.raises(ModelError, match=r"lacks other, which model\.safetensors\.index\.json"):
        check_folders(study)
    index.unlink()
    weights.write_bytes(whole[:-1])
    with pytest.raises(ModelError, match=r"model\.safetensors is no whole file of safetensors"):
        check_folders(study)
    weights.unlink()
    out = Store(tmp_path / "out")
    with pytest.raises(ModelError, match=r"tiny: holds no weights \(\*\.safetensors\)"):
        prepare(study, out)
    assert not out.exists("")
