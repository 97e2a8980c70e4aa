"""A driver to be killed: tunes a study with its own local Ray. Not a test itself."""

from __future__ import annotations

import sys

import ray

from raybias.config import load_study
from raybias.planning.inventory import assumed
from raybias.planning.plan import plan
from raybias.planning.prepared import PreparedStudy
from raybias.storage import Store
from support.tuning import tune


def main() -> None:
    study, out = load_study(sys.argv[1]), sys.argv[2]
    ray.init(
        address="local",
        num_cpus=2,
        _temp_dir=sys.argv[3],
        log_to_driver=False,
        logging_level="ERROR",
        object_store_memory=256 * 2**20,
    )
    prepared = PreparedStudy.of(study)
    made = plan(prepared, assumed("cpus=2,memory=16GiB"))
    tune(prepared, study.backbones[0], study.training[0], made, Store(out))
    ray.shutdown()


if __name__ == "__main__":
    main()
