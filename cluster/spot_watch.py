"""Tell Ray that this spot node is about to be taken away, as soon as its cloud says so.

    python cluster/spot_watch.py aws          # or gcp, azure: asks the metadata server
    python cluster/spot_watch.py --now 25     # the node goes in 25 seconds; waits for its end

Ray then puts nothing new on the node, packs leave their states, and what is lost with it counts as
preempted and not as failed (`resources.max_preemptions`). Runs on the node itself, from when Ray
starts there until the notice; a metadata server that does not answer is asked again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

SERVER = "http://169.254.169.254"
POLL_S = 2.0
TIMEOUT_S = 5.0
#: What Google Cloud leaves a node after its notice, which names no time; Azure's least.
NOTICE_S = 30


def aws(server: str) -> float | None:
    """Return the seconds until this EC2 instance is stopped, or None where it is not to be."""
    ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    token = ask(f"{server}/latest/api/token", ttl, method="PUT")
    try:
        shown = {"X-aws-ec2-metadata-token": token}
        notice = json.loads(ask(f"{server}/latest/meta-data/spot/instance-action", shown))
    except HTTPError as error:
        # Nothing is there before there is something to say.
        if error.code == 404:
            return None
        raise
    return seconds_until(datetime.fromisoformat(notice["time"]))


def gcp(server: str) -> float | None:
    """Return the seconds until this Compute Engine instance is stopped, or None."""
    url = f"{server}/computeMetadata/v1/instance/preempted"
    return NOTICE_S if ask(url, {"Metadata-Flavor": "Google"}).strip() == "TRUE" else None


def azure(server: str) -> float | None:
    """Return the seconds until this virtual machine is evicted, or None."""
    url = f"{server}/metadata/scheduledevents?api-version=2020-07-01"
    events = json.loads(ask(url, {"Metadata": "true"}))["Events"]
    for event in events:
        if event["EventType"] == "Preempt":
            when = event.get("NotBefore")
            return seconds_until(parsedate_to_datetime(when)) if when else NOTICE_S
    return None


CLOUDS = {"aws": aws, "gcp": gcp, "azure": azure}


def ask(url: str, headers: Mapping[str, str], *, method: str = "GET") -> str:
    """Ask the metadata server, through no proxy."""
    request = Request(url, headers=dict(headers), method=method)
    with build_opener(ProxyHandler({})).open(request, timeout=TIMEOUT_S) as reply:
        return str(reply.read().decode("utf-8"))


def seconds_until(when: datetime) -> float:
    """Return the seconds until a time, at least one."""
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(1.0, (when - datetime.now(UTC)).total_seconds())


def drain(seconds: float) -> int:
    """Have Ray drain this node; return the status of `ray drain-node`."""
    command = [
        "ray", "drain-node",
        "--reason", "DRAIN_NODE_REASON_PREEMPTION",
        "--reason-message", "the cloud takes this node away",
        "--deadline-remaining-seconds", str(int(seconds)),
    ]  # fmt: skip
    return subprocess.run(command, check=False).returncode


def main(arguments: Sequence[str]) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(description="Drain this node when its cloud takes it away.")
    parser.add_argument("cloud", nargs="?", choices=CLOUDS)
    parser.add_argument("--now", type=float, metavar="SECONDS")
    parser.add_argument("--server", default=SERVER, help="the metadata server")
    given = parser.parse_args(arguments)
    if (given.cloud is None) == (given.now is None):
        parser.error("give a cloud, or --now")
    if given.now is not None:
        status = drain(given.now)
        # A pod's processes are ended as soon as its preStop hook has: packs need the time.
        if status == 0:
            time.sleep(given.now)
        return status
    told = ""
    while True:
        try:
            left = CLOUDS[given.cloud](given.server)
        except (OSError, ValueError, KeyError) as error:
            left = None
            if told != str(error):
                told = str(error)
                print(f"spot_watch: {given.server}: {told}", file=sys.stderr, flush=True)
        # Ray that is not up yet is told again.
        if left is not None and drain(left) == 0:
            return 0
        time.sleep(POLL_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
