"""No Ray without its token, no path out of a folder, and nothing unpickled or run."""

from __future__ import annotations

import ast
from contextlib import nullcontext
from pathlib import Path

import pytest

import raybias
from raybias import config
from raybias.errors import ConfigError, OutputError, PlanError
from raybias.runtime.ray_session import connected
from raybias.runtime.serve import app
from raybias.storage import Store


def test_no_ray_is_started_without_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    # Another test's Ray may be connected to this process.
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    with pytest.raises(PlanError, match="RAY_AUTH_MODE=disabled: without its token"), connected():
        pass


def test_nothing_is_served_by_a_cluster_that_asks_for_no_token(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app, "connected", lambda address: nullcontext(False))
    monkeypatch.setattr(app, "asks_for_token", lambda: False)
    with pytest.raises(PlanError, match="Ray asks for no token"), app.serve_out(str(tmp_path)):
        pass


@pytest.mark.parametrize("name", ["../x", "a/../../x", "/etc/passwd", "a\\..\\x", "a\0b", ".."])
def test_no_name_leads_out_of_a_store(tmp_path: Path, name: str) -> None:
    store = Store(tmp_path / "out")
    for use in (store.read_bytes, store.exists, store.delete, store.files):
        with pytest.raises(OutputError, match="leads out"):
            use(name)
    with pytest.raises(OutputError, match="leads out"):
        store.write_text(name, "x")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../x", "a/b", "..", ".hidden", "/x", "a\\b", "x\n", "é/"])
def test_no_name_of_a_study_is_a_path(name: str) -> None:
    planted = {"backbones": ["planted"], "training": [{"source": "planted"}]}
    for changes in (
        {"name": name},
        {"backbones": [{"id": "planted", "name": name}]},
        {"training": [{"source": "planted", "name": name}]},
        {"probes": [{"source": "planted", "name": name}]},
    ):
        with pytest.raises(ConfigError):
            config.parse_study(
                {"name": "s", **planted, "probes": [{"source": "planted"}], **changes}
            )


def test_the_package_neither_unpickles_nor_trusts_code() -> None:
    refused = {("torch", "load")}
    for file in Path(raybias.__file__).parent.rglob("*.py"):
        # `raybias data convert` alone, of weights alone (tests/engine/test_conversion.py).
        allowed = {("torch", "load")} if file.name == "conversion.py" else set()
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name for alias in node.names} | {getattr(node, "module", "")}
                assert not names & {"pickle", "dill", "cloudpickle", "joblib", "marshal"}, file
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                called = (node.value.id, node.attr)
                assert called not in refused - allowed, file
            if isinstance(node, ast.keyword) and node.arg == "weights_only":
                assert isinstance(node.value, ast.Constant), file
                assert node.value.value is True, file
            if isinstance(node, ast.keyword) and node.arg in ("trust_remote_code", "allow_pickle"):
                assert isinstance(node.value, ast.Constant), file
                assert node.value.value is False, file
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "YAML":
                assert {each.arg: each.value.value for each in node.keywords}["typ"] == "safe"
            assert not (isinstance(node, ast.Name) and node.id in ("eval", "exec")), file
