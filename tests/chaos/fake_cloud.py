"""Ray's autoscaler on its fake provider, whose nodes are processes of this machine.

`ray.cluster_utils.AutoscalingCluster` ends every Ray of the machine when it starts, and it and the
provider's own name want a file that no wheel holds. So the cluster is started here, with a
configuration of our own that names the provider's class.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
from arena import free_port

HEAD = "ray.head.default"
#: What the fake provider takes for the head's id.
HEAD_ID = "fffffffffffffffffffffffffffffffffffffffffffffffffff00000"


def configuration(address: str, *, fewest: int, most: int) -> dict[str, Any]:
    """A head without CPUs, and workers of two that come under load and go when idle."""
    # Every list of Ray's schema must be there.
    lists = (
        *("cluster_synced_files", "initialization_commands", "setup_commands"),
        *("head_setup_commands", "worker_setup_commands", "head_start_ray_commands"),
        *("worker_start_ray_commands", "rsync_exclude", "rsync_filter"),
    )
    worker = {
        "resources": {"CPU": 2, "object_store_memory": 100 * 2**20},
        "node_config": {},
        "min_workers": fewest,
        "max_workers": most,
    }
    return {
        "cluster_name": "fake",
        "max_workers": most,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 0.15,
        "provider": {
            "type": "external",
            "module": "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider",
            "use_node_id_as_ip": True,
            "disable_node_updaters": True,
            "disable_launch_config_check": True,
            "gcs_address": address,
            "head_node_id": HEAD_ID,
            "launch_multiple": True,
        },
        "head_node_type": HEAD,
        "available_node_types": {
            HEAD: {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "worker": worker,
        },
        **{name: [] for name in lists},
        "auth": {},
        "docker": {},
        "file_mounts": {},
        "file_mounts_sync_continuously": False,
    }


@contextmanager
def fake_cloud(*, fewest: int, most: int) -> Iterator[str]:
    """The address of an autoscaling cluster that ends with the body."""
    folder = Path(tempfile.mkdtemp(prefix="rb", dir="/tmp"))
    address = f"127.0.0.1:{free_port()}"
    config = folder / "cloud.json"
    config.write_text(json.dumps(configuration(address, fewest=fewest, most=most)))
    env = os.environ | {
        "RAY_TMPDIR": str(folder),
        "RAY_FAKE_CLUSTER": "1",
        # Or `ray start` takes a token that it finds in the home folder, and clients do not.
        "RAY_AUTH_MODE": "disabled",
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
    }
    log = (folder / "head.log").open("w")
    head = subprocess.Popen(
        [
            *(str(Path(sys.executable).with_name("ray")), "start", "--head", "--block"),
            *("--node-ip-address=127.0.0.1", f"--port={address.rpartition(':')[2]}"),
            *("--num-cpus=0", "--object-store-memory=100000000", "--include-dashboard=false"),
            f"--dashboard-port={free_port()}",
            *("--disable-usage-stats", f"--autoscaling-config={config}"),
        ],
        env=env,
        stdout=log,
        stderr=log,
    )
    try:
        yield address
    finally:
        every = psutil.process_iter(["environ"])
        family = [p for p in every if (p.info["environ"] or {}).get("RAY_TMPDIR") == str(folder)]
        head.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            head.wait(timeout=20)
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        head.wait()
        log.close()
        shutil.rmtree(folder, ignore_errors=True)


def workers(address: str) -> int:
    """How many worker nodes are alive; -1 while the head is starting."""
    from ray._raylet import GcsClient

    try:
        infos = GcsClient(address=address).get_all_node_info().values()
    except Exception:  # whatever GCS says before it is there
        return -1
    return sum(info.state == 0 and not info.is_head_node for info in infos)
