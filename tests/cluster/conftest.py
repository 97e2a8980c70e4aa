"""One real local Ray cluster for all tests of this folder."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from raybias.runtime.ray_session import connected

# Ray reads this when it is imported: a busy machine takes longer than its 30 s to start.
os.environ.setdefault("RAY_raylet_start_wait_time_s", "120")
# As cluster/Containerfile has it for Serve's proxies.
os.environ["RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S"] = "1"
# What workers need to reach a test's own S3 service, and no other.
os.environ |= {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_MAX_ATTEMPTS": "5",
}


@pytest.fixture(scope="session")
def on_every_node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers import from, as if what is put there were installed on nodes."""
    return tmp_path_factory.mktemp("installed")


@pytest.fixture(scope="session")
def ray_cluster(on_every_node: Path) -> Iterator[None]:
    """A cluster of this machine's CPUs, four at least, that ends with the session.

    Four CPUs are four slots, not four cores: tests compute on one thread each.
    """
    import ray

    # Socket paths of Ray must stay short; pytest's own temporary folders are too deep.
    folder = tempfile.mkdtemp(prefix="rb", dir="/tmp")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(on_every_node), prepend=os.pathsep)
        ray.init(
            address="local",
            num_cpus=4,
            _temp_dir=folder,
            log_to_driver=False,
            logging_level="ERROR",
            object_store_memory=256 * 2**20,
            include_dashboard=False,
            _system_config={"metrics_report_interval_ms": 5000},
        )
    try:
        with connected():
            yield
    finally:
        ray.shutdown()
        shutil.rmtree(Path(folder), ignore_errors=True)
