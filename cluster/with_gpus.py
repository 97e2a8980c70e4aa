"""Bring the GPUs of an autoscaling cluster up, then run a command.

raybias plans for the nodes that are there when a study starts, and for those that its
`resources.nodes` names, which Ray then waits for without end. This waits before the plan is
made, and not for ever. On the head, as a job:

    python cluster/with_gpus.py 8 -- bash cluster/study.sh s3://bucket/study

asks the autoscaler for eight GPUs, waits until they are there, takes the wish back and runs what
follows `--`. From then on the autoscaler follows the study's own tasks: idle nodes go after their
time, and come again when tasks wait for them. Exits with the command's status, with 1 where the
GPUs do not come, with 2 for a wrong call.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

WAIT = 30 * 60
POLL = 10


def main(arguments: Sequence[str]) -> int:
    """Run the command line.

    Parameters
    ----------
    arguments: how many GPUs, then the command and its arguments.

    Returns
    -------
    The exit status.
    """
    parser = argparse.ArgumentParser(description="Run COMMAND once the cluster has GPUS GPUs.")
    parser.add_argument("gpus", type=int)
    parser.add_argument("command", nargs="+")
    given = parser.parse_args(arguments)
    if given.gpus < 1:
        parser.error("GPUS is a whole number from 1 on")
    # `ray job stop` ends the driver with SIGTERM; the wish must not outlive it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        have = ask(given.gpus)
        if have < given.gpus:
            print(
                f"with_gpus: {have} of {given.gpus} GPUs came within {WAIT // 60} minutes;"
                " ask for fewer, or see `ray status` for what the provider said",
                file=sys.stderr,
            )
            return 1
    finally:
        ask(0)
    return subprocess.run(given.command, check=False).returncode


def ask(gpus: int) -> int:
    """Ask the autoscaler for GPUs and wait for them; 0 takes the wish back and waits for none.

    Returns
    -------
    The GPUs there are, once they suffice or the wait is over.
    """
    import ray
    from ray.autoscaler.sdk import request_resources

    ray.init(address="auto", log_to_driver=False)
    try:
        # The wish stays with the cluster until the next one, so this driver may leave.
        request_resources(bundles=[{"GPU": 1}] * gpus)
        end = time.monotonic() + WAIT
        while (have := int(ray.cluster_resources().get("GPU", 0))) < gpus:
            if time.monotonic() > end:
                break
            print(f"with_gpus: {have} of {gpus} GPUs", file=sys.stderr)
            time.sleep(POLL)
        return have
    finally:
        ray.shutdown()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
