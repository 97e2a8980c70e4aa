"""The calibration study on a Ray cluster, a smaller twin of `raybias demo`.

From the checkout:  ray job submit --working-dir jobs -- python demo.py [--out URI] [options]

A cluster with tokens, Ray's default, wants RAY_AUTH_MODE=token where you submit.
The options are those of `raybias run`. The job's exit code is the study's result:
0 done, 1 the work failed, 2 the study or the cluster cannot be used as they are.
"""

from raybias.cli.start import run_beside

if __name__ == "__main__":
    run_beside(__file__)
