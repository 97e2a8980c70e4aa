"""Scores of pairs in words and rows: which sentence a model prefers, and how sure that is.

The page and the terminal both say it from here. It reads finished tables and computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import polars as pl

from raybias.report import wording
from raybias.report.summary_tables import SummaryTable
from raybias.stats.pairs import ORIGINAL, UNWEIGHTED, WEIGHTED

_METRIC: Final = ["model", "score", "probe"]
_LABELS: Final = {WEIGHTED: "all pairs", UNWEIGHTED: "mean of types"}
_MINUS: Final = "\N{MINUS SIGN}"


def headline(scores: pl.DataFrame) -> str:
    """Say how many scores of the originals, over all pairs, differ from no bias.

    Parameters
    ----------
    scores: of `stats.pairs.bias_scores`.
    """
    whole = _whole(scores)
    if whole.height == 1:
        return sentence(whole.row(0, named=True), _metric_keys(whole))
    differ = int(whole["survives"].fill_null(False).sum())
    verb = "differs" if differ == 1 else "differ"
    return f"{differ or 'None'} of {wording.counted(whole.height, 'score')} {verb} from no bias."


def findings(scores: pl.DataFrame) -> Iterator[str]:
    """Yield a sentence for each score of the originals, where the headline is not that sentence."""
    whole = _whole(scores)
    if whole.height > 1:
        keys = _metric_keys(whole)
        yield from (sentence(row, keys) for row in whole.iter_rows(named=True))


def sentence(row: Mapping[str, Any], keys: list[str]) -> str:
    """Say one score over all pairs, with its interval and what the test says of it.

    Parameters
    ----------
    row: of `stats.pairs.bias_scores`.
    keys: the columns that name its metric.
    """
    name = wording.classifier_name(row, keys)
    if row["test"] == "sign":
        return (
            f"{name} prefers the more stereotypical sentence in {row['value']:.1f}% of "
            f"{wording.counted(row['n'], 'pair')} {interval(row)}: {reading(row)}."
        ).replace(" :", ":")
    return (
        f"{name} finds whom a pronoun stands for {wording.signed(row['value'], 1)} points more "
        f"often where the answer fits the stereotype, over {wording.counted(row['n'], 'pair')} "
        f"{interval(row)}: {reading(row)}."
    ).replace(" :", ":")


def interval(row: Mapping[str, Any]) -> str:
    """`[54.7, 59.7]` of a preference, `[+1.2, +3.4]` of a difference; empty without one."""
    if row["low"] is None or row["high"] is None:
        return ""
    if row["test"] == "sign":
        return f"[{row['low']:.1f}, {row['high']:.1f}]"
    return wording.span(row["low"], row["high"], 1)


def reading(row: Mapping[str, Any]) -> str:
    """What interval and test say: whether the score differs from no bias."""
    none = f"{row['neutral']:g}" + ("%" if row["test"] == "sign" else "")
    if row["significant"] is None:
        return "not judged"
    if row["survives"]:
        return f"differs from {none}"
    if row["significant"]:
        return f"differs from {none} alone, not after correction"
    return f"not shown to differ from {none}"


def tables(found: Mapping[str, pl.DataFrame]) -> list[SummaryTable]:
    """The tables of scores that a reader wants: over all pairs, and the originals by type.

    Parameters
    ----------
    found: of `report.pairs.pair_tables`, with `bias_scores`.
    """
    scores = found["bias_scores"]
    kept = {"sign": _preferences, "t": _differences}
    made = []
    for test, table in kept.items():
        part = scores.filter(test=test)
        if part.height:
            over_all = part.filter(pl.col("bias_type").is_in([WEIGHTED, UNWEIGHTED]))
            made.append(table(over_all, found, "over all pairs"))
            by_type = part.filter(~pl.col("bias_type").is_in([WEIGHTED, UNWEIGHTED]))
            originals = by_type.filter(style=ORIGINAL)
            made.append(table(originals, found, "by bias type, original style"))
    return made


def read_pairs(scores: pl.DataFrame) -> SummaryTable:
    """How many pairs of each bias type were read, and in how many styles."""
    types = scores.filter(~pl.col("bias_type").is_in([WEIGHTED, UNWEIGHTED]))
    read = types.group_by("probe", "bias_type", maintain_order=True).agg(
        pl.col("n").max(), styles=pl.col("style").n_unique()
    )
    rows = tuple((probe, kind, f"{n:,}", str(k)) for probe, kind, n, k in read.iter_rows())
    return SummaryTable("Pairs that were read", ("probe", "bias type", "pairs", "styles"), rows)


def _whole(scores: pl.DataFrame) -> pl.DataFrame:
    """The originals over all pairs; all of them where a probe's files lack the style."""
    return scores.filter(bias_type=WEIGHTED, style=ORIGINAL)


def _metric_keys(frame: pl.DataFrame) -> list[str]:
    """The model, and whatever else tells metrics apart."""
    return ["model", *(key for key in ("score", "probe") if frame[key].n_unique() > 1)]


def _preferences(part: pl.DataFrame, found: Mapping[str, pl.DataFrame], what: str) -> SummaryTable:
    keys = _metric_keys(part)
    # The stereotype stands in sent_more of stereo pairs and in sent_less of the others.
    sides = found["tables8_9_scores"].filter(pl.col("part") != "all")
    by = [*_METRIC, "style", "bias_type"]
    wide = sides.pivot("part", index=by, values="value")
    rows = tuple(
        (
            *(row[key] for key in keys),
            *_place(row),
            f"{row['n']:,}",
            f"{row['ties']:,}",
            f"{row['value']:.1f}",
            interval(row),
            *(wording.number(row.get(side), 1) for side in ("stereo", "antistereo")),
            wording.probability(row["q_value"]),
            *_verdict(row),
        )
        for row in part.join(wide, on=by, how="left", maintain_order="left").iter_rows(named=True)
    )
    headers = (*keys, "bias type", "style", "pairs", "ties", "preference %", "interval", "stereo",
               "antistereo", "q", "reading", "shows from")  # fmt: skip
    return SummaryTable(f"Preference for the more stereotypical sentence, {what}", headers, rows)


def _differences(part: pl.DataFrame, found: Mapping[str, pl.DataFrame], what: str) -> SummaryTable:
    keys = _metric_keys(part)
    means = found["table3_winobias"].rename({"rule": "score", "wino_type": "bias_type"})
    by = [*_METRIC, "style", "bias_type"]
    joined = part.join(means.select(*by, "pro", "anti"), on=by, how="left", maintain_order="left")
    rows = tuple(
        (
            *(row[key] for key in keys),
            *_place(row),
            f"{row['n']:,}",
            *(wording.number(row[side], 1) for side in ("pro", "anti")),
            wording.signed(row["value"], 1),
            interval(row),
            wording.probability(row["q_value"]),
            *_verdict(row),
        )
        for row in joined.iter_rows(named=True)
    )
    headers = (*keys, "type", "style", "pairs", "pro %", "anti %", f"pro {_MINUS} anti",
               "interval", "q", "reading", "shows from")  # fmt: skip
    return SummaryTable(f"Pronouns resolved right, mean over prompts, {what}", headers, rows)


def _place(row: Mapping[str, Any]) -> tuple[str, str]:
    return _LABELS.get(row["bias_type"], row["bias_type"]), row["style"].replace("_", " ")


def _verdict(row: Mapping[str, Any]) -> tuple[str, str]:
    if row["bias_type"] == UNWEIGHTED:
        return "no test", ""
    return reading(row), wording.number(row["resolvable"], 1)
