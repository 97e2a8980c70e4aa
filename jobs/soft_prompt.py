"""Soft prompts of OPT and LLaMA on sentiment, probed on age and sexuality (001).

From the checkout:  ray job submit --working-dir . -- python jobs/soft_prompt.py --out s3://...

A cluster with tokens, Ray's default, wants RAY_AUTH_MODE=token where you submit.
The options are those of `raybias run`. The job's exit code is the study's result:
0 done, 1 the work failed, 2 the study or the cluster cannot be used as they are.
"""

import sys
from pathlib import Path

from raybias.cli import main

HERE = Path(__file__).resolve()
OUT = Path.home() / "raybias-out" / HERE.stem  # a job's working folder is deleted after it

if __name__ == "__main__":
    options = sys.argv[1:]
    given = any(option.partition("=")[0] == "--out" for option in options)
    place = [] if given else ["--out", str(OUT)]
    main(["run", str(HERE.with_suffix(".yaml")), *place, *options])
