"""CrowS-Pairs and WinoBias in nine styles, read by eight language models (Zhao2025).

From the checkout:  ray job submit --working-dir jobs -- python style.py --out s3://...
Options and exit codes are as jobs/demo.py says.
"""

from raybias.cli.start import run_beside

if __name__ == "__main__":
    run_beside(__file__)
