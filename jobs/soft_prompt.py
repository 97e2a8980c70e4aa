"""Soft prompts of OPT and LLaMA on sentiment, probed on age, sexuality and disability (Tian2023).

From the checkout:  ray job submit --working-dir jobs -- python soft_prompt.py --out s3://...
Options and exit codes are as jobs/demo.py says.
"""

from raybias.cli.start import run_beside

if __name__ == "__main__":
    run_beside(__file__)
