"""Tuned and prompted classifiers on the Amazon, Regard and NS-Prompts probes (Kohankhaki2024).

From the checkout:  ray job submit --working-dir jobs -- python template_probes.py --out s3://...
Options and exit codes are as jobs/demo.py says.
"""

from raybias.cli.start import run_beside

if __name__ == "__main__":
    run_beside(__file__)
