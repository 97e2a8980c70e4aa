"""Print the gaps of any classifier's decisions, with an interval for each scope.

    python docs/examples/gaps_with_intervals.py decisions.csv

decisions.csv has the columns group, label and pred; template_id, term and run_id, where they are
known, say which examples share a sentence, a word for the group and a seed.
"""

import sys

import polars as pl

import raybias

estimates = raybias.measure(pl.read_csv(sys.argv[1]))
gaps = estimates.filter(statistic="gap", condition="").sort("score", "group", "scope")
with pl.Config(tbl_rows=-1, tbl_cols=-1):
    print(gaps.select("score", "group", "scope", "value", "low", "high", "p", "survives"))
