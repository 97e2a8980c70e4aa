"""A study of a model behind an endpoint on real Ray: one process asks, and its key is nowhere."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import polars as pl
import psutil
import pytest
import ray

from support.endpoint import KEY, Endpoint, label_of, save_study, serving
from support.method_study import run

pytest.importorskip("openai", reason="the extra raybias[endpoints] is not installed")
pytestmark = pytest.mark.cluster


def test_the_key_of_an_endpoint_is_nowhere_in_ray_or_in_out(
    tmp_path: Path, ray_cluster: None
) -> None:
    out = tmp_path / "out"
    with serving(Endpoint(answer=label_of, delay_s=0.05)) as server:
        printed = run(save_study(tmp_path, server), out)
    assert 1 < server.most_at_once <= 4
    assert pl.read_parquet(out / "predictions/mine/*/*.parquet").height == 3 * 30
    assert KEY not in printed
    # What Ray knows and logs, and what processes show of themselves.
    session = Path(ray._private.worker._global_node.get_session_dir_path())
    places = [*out.rglob("*"), *session.rglob("*"), *Path("/proc").glob("[0-9]*/cmdline")]
    processes = psutil.Process().children(recursive=True)
    places += [Path(f"/proc/{each.pid}/environ") for each in processes]
    seen = 0
    for place in places:
        with suppress(OSError):
            assert KEY.encode() not in place.read_bytes(), place
            seen += 1
    assert seen > 100
