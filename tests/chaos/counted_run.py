"""`raybias` whose replicas write down each shard that they begin, for a bout to count. No test.

    RAYBIAS_CHAOS_LOG=FILE RAYBIAS_CHAOS_PAUSE=SECONDS python counted_run.py run STUDY.yaml ...

The pause stretches a shard of the tiny planted model, so that kills fall into one.
"""

from __future__ import annotations

import os
import time
from typing import Any

from raybias.cli import main
from raybias.runtime.predict import replica

LOG = os.environ["RAYBIAS_CHAOS_LOG"]
PAUSE_S = float(os.environ["RAYBIAS_CHAOS_PAUSE"])


class CountedReplica(replica._multiplexed(16)):  # type: ignore[misc]
    """A replica that says what it begins to compute."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        prepare = self.worker.prepare

        def prepared(run: Any, shard: Any, items: Any) -> Any:
            compute = prepare(run, shard, items)

            def counted() -> Any:
                # One write of one line to a file opened for appending is whole.
                with open(LOG, "a") as log:  # noqa: PTH123
                    log.write(f"{time.time()} {shard.file}\n")
                time.sleep(PAUSE_S)
                return compute()

            return counted

        self.worker.prepare = prepared


if __name__ == "__main__":
    # A class of this script is sent by value, so that replicas need no path to it.
    replica._multiplexed = lambda runs: CountedReplica
    main()
