"""Judge the printed tables of Zhao2025 by themselves: which hold, and which rule made them.

A printed number holds when ours is within one unit of its last digit (0.01), since the
paper computed some numbers from printed ones and cut others.

    python benchmarks/printed_tables.py paper_tables --out published
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, product
from pathlib import Path
from typing import Annotated, Any, Final

import polars as pl
import typer

from raybias.measures.pair_means import UNWEIGHTED, WEIGHTED, two_proportions
from raybias.measures.paired import size_trends
from raybias.stats.intervals import false_discovery
from raybias.stats.size_trends import sizes_in_names

#: Pairs of CrowS-Pairs by bias type.
CROWS_PAIRS: Final[Mapping[str, int]] = {
    "race-color": 516, "gender": 262, "socioeconomic": 172, "nationality": 159, "religion": 105,
    "age": 87, "sexual-orientation": 84, "physical-appearance": 63, "disability": 60,
}  # fmt: skip
#: Columns of the printed tables, of texts and of numbers, which tell them apart.
PRINTED: Final[Mapping[str, tuple[str, str]]] = {
    "table2": ("style statistic model bias_type", "value printed_bold"),
    "table3": ("style model wino_type", "mean_diff_pct"),
    "tables6_7": ("first second bias_type model", "t_value"),
    "tables8_9": ("style bias_type model", "score_pct"),
    "tables10_17": ("model prompt style", "t1_pro t1_anti t1_diff t2_pro t2_anti t2_diff"),
}
_AVG: Final = "AVG"
#: One unit of the last printed digit, and room for binary fractions.
_UNIT: Final = 0.01 + 1e-9
_HALF: Final = 0.005 + 1e-9


def check_published(
    tables: Mapping[str, pl.DataFrame],
) -> tuple[pl.DataFrame, dict[str, pl.DataFrame]]:
    """Judge the printed tables of `read_tables`.

    Returns
    -------
    A row per claim (table, claim, how many numbers hold, of how many, the exceptions), and tables
    with a row per printed number.
    """
    detail = differences(tables["tables10_17"])
    means = winobias_means(tables["table3"], detail)
    found = averages(tables["tables8_9"])
    marks = bold_marks(tables["table2"], tables["tables8_9"])
    ends = extremes(tables["table2"], tables["tables8_9"])
    weighted, unweighted = (
        found.filter(exact=exact).rename({name: "computed", f"{name}_holds": "holds"})
        for exact, name in ((True, WEIGHTED), (False, UNWEIGHTED))
    )
    claims = (
        ("Tables 10-17", "the difference is |pro - anti|", detail),
        ("Table 3", "the mean of six absolute differences of Tables 10-17", means),
        ("Tables 8 and 9", "AVG over pairs, where every type is a count of its pairs", weighted),
        ("Tables 8 and 9", "AVG as the mean of the types, in all other blocks", unweighted),
        ("Table 2", "bold is a two-proportion z test of AVG, n 1508", marks),
        ("Table 2", "MIN is the smallest change in size", ends.filter(statistic="MIN")),
        ("Table 2", "MAX is the largest change in size", ends.filter(statistic="MAX")),
    )
    rows = {
        "published_tables10_17": detail,
        "published_table3": means,
        "published_tables8_9": found,
        "published_table2": pl.concat([marks, ends], how="diagonal"),
    }
    checks = [*(_check(*each) for each in claims), list_pairs(tables["tables6_7"])]
    return pl.DataFrame(checks, ["table", "claim", "holds", "of", "exceptions"], orient="row"), rows


def differences(tables10_17: pl.DataFrame) -> pl.DataFrame:
    """Tables 10 to 17, a row per difference: printed, `computed` |pro - anti|, signed, `holds`."""
    parts = [
        tables10_17.select(
            "model", "prompt", "style", wino_type=pl.lit(f"type{number}"),
            printed=f"t{number}_diff", signed=pl.col(f"t{number}_pro") - pl.col(f"t{number}_anti"),
        )
        for number in (1, 2)
    ]  # fmt: skip
    return pl.concat(parts).with_columns(computed=pl.col("signed").abs()).with_columns(_holds())


def winobias_means(table3: pl.DataFrame, detail: pl.DataFrame) -> pl.DataFrame:
    """Table 3, a row per number: printed, `computed` from Tables 10 to 17, signed, `holds`."""
    by = ["model", "style", "wino_type"]
    means = detail.group_by(by).agg(computed=pl.col("printed").mean(), signed=pl.mean("signed"))
    table = table3.rename({"mean_diff_pct": "printed"})
    return table.join(means, on=by, how="left", maintain_order="left").with_columns(_holds())


def averages(scores: pl.DataFrame) -> pl.DataFrame:
    """AVG of Tables 8 and 9 under both definitions, a row per model and style.

    Of the `exact` every printed score is 100 k / n of a whole k.
    """
    n = pl.col("bias_type").replace_strict(CROWS_PAIRS, default=None, return_dtype=pl.Int64)
    k = (pl.col("score_pct") * n / 100).round()
    kinds = scores.filter(pl.col("bias_type") != _AVG).with_columns(
        n=n, exact=(100 * k / n - pl.col("score_pct")).abs() <= _HALF
    )
    by = ["model", "style"]
    table = kinds.group_by(by, maintain_order=True).agg(
        (pl.col("score_pct") * pl.col("n")).sum().truediv(pl.col("n").sum()).alias(WEIGHTED),
        pl.col("score_pct").mean().alias(UNWEIGHTED),
        pl.col("exact").all(),
    )
    printed = scores.filter(bias_type=_AVG).select(*by, printed="score_pct")
    joined = table.join(printed, on=by, how="left", maintain_order="left")
    near = (
        ((pl.col(name) - pl.col("printed")).abs() <= _UNIT).alias(f"{name}_holds")
        for name in (WEIGHTED, UNWEIGHTED)
    )
    return joined.with_columns(near)


def bold_marks(summary: pl.DataFrame, scores: pl.DataFrame) -> pl.DataFrame:
    """Test Table 2's changes of AVG as the paper does, beside its printed marks.

    It holds if bold is printed exactly where |z| > 1.96.
    """
    base = scores.filter(bias_type=_AVG, style="original").select("model", base="score_pct")
    changes = summary.filter(statistic="AVG_delta").rename({"value": "printed"})
    table = changes.join(base, on="model", how="left", maintain_order="left")
    before = table["base"] / 100
    after = before + table["printed"] / 100
    z, p = two_proportions(before.to_numpy(), after.to_numpy(), sum(CROWS_PAIRS.values()))
    return table.select(
        "style", "model", "statistic", "printed", pl.Series("z", z), pl.Series("p_value", p),
        q_value=false_discovery(pl.Series(p)),
        bold=pl.col("printed_bold") > 0,
    ).with_columns(holds=pl.col("bold") == (pl.col("z").abs() > 1.96))  # fmt: skip


def extremes(summary: pl.DataFrame, scores: pl.DataFrame) -> pl.DataFrame:
    """MIN and MAX of Table 2 beside the changes of least and greatest size of Tables 8 and 9."""
    kinds = scores.filter(pl.col("bias_type") != _AVG)
    base = kinds.filter(style="original").select("model", "bias_type", base="score_pct")
    changes = kinds.filter(pl.col("style") != "original").join(base, on=["model", "bias_type"])
    moved = changes.with_columns(computed=pl.col("score_pct") - pl.col("base"))
    by = ["model", "style"]
    sized = moved.sort(pl.col("computed").abs()).group_by(by, maintain_order=True)
    ends = [
        end.select(*by, "computed", statistic=pl.lit(name), computed_type="bias_type")
        for end, name in ((sized.first(), "MIN"), (sized.last(), "MAX"))
    ]
    printed = summary.filter(pl.col("statistic").is_in(["MIN", "MAX"])).select(
        "style", "model", "statistic", "bias_type", printed="value"
    )
    joined = printed.join(pl.concat(ends), on=[*by, "statistic"], how="left", maintain_order="left")
    return joined.with_columns(_holds())


def list_pairs(t_values: pl.DataFrame) -> tuple[str, str, int, int, str]:
    """Which of the 15 pairs of six lists Tables 6 and 7 print."""
    sides = product(("original", "informal", "formal"), ("stereo", "anti"))
    pairs = list(combinations(map("_".join, sides), 2))
    printed = {frozenset(pair) for pair in t_values.select("first", "second").unique().rows()}
    missing = [f"{a} and {b}" for a, b in pairs if {a, b} not in printed]
    holds = len(pairs) - len(missing)
    return "Tables 6 and 7", "pairs of lists printed", holds, len(pairs), "; ".join(missing)


def _holds() -> pl.Expr:
    near = (pl.col("computed") - pl.col("printed")).abs() <= _UNIT
    return near.fill_null(False).alias("holds")


def _check(name: str, claim: str, table: pl.DataFrame) -> tuple[str, str, int, int, str]:
    wrong = [_named(row) for row in table.filter(~pl.col("holds")).iter_rows(named=True)]
    return name, claim, table.height - len(wrong), table.height, "; ".join(wrong)


def _named(row: Mapping[str, Any]) -> str:
    parts = [str(row[key]) for key in ("model", "style", "wino_type", "prompt") if row.get(key)]
    text = f"{' '.join(parts)}: printed {row['printed']:g}"
    if "z" in row:
        return f"{text} {'bold' if row['bold'] else 'not bold'}, z {row['z']:.2f}"
    return f"{text}, is {row['computed']:.2f}" if row["computed"] is not None else text


def read_tables(folder: Path) -> dict[str, pl.DataFrame]:
    """Read the printed tables in a folder, by the columns that tell each apart."""
    found = {}
    for file in sorted(folder.glob("*.csv")):
        frame = pl.read_csv(file, infer_schema=False)
        for name, (texts, numbers) in PRINTED.items():
            types = dict.fromkeys(texts.split(), pl.String()) | dict.fromkeys(
                numbers.split(), pl.Float64()
            )
            if {*types} <= {*frame.columns}:
                found[name] = frame.select(
                    pl.when(pl.col(column) != "").then(column).cast(dtype, strict=False)
                    for column, dtype in types.items()
                )
                break
    return found


def trends(scores: pl.DataFrame) -> pl.DataFrame:
    """Correlate the printed scores and changes of Tables 8 and 9 with model size."""
    base = scores.filter(style="original").select("model", "bias_type", base="score_pct")
    table = scores.join(base, on=["model", "bias_type"], how="left", maintain_order="left")
    effects = table.select(
        "model", "style", attribute="bias_type", method=pl.lit("published"),
        probe=pl.lit("crows_pairs"), value="score_pct",
        effect=pl.when(pl.col("style") != "original").then(pl.col("score_pct") - pl.col("base")),
    )  # fmt: skip
    return size_trends(effects, {**sizes_in_names(effects["model"]), "GPT-2": 124e6})


def main(
    folder: Annotated[Path, typer.Argument(help="Folder of the tables as CSV files.")],
    out: Annotated[Path | None, typer.Option(help="Folder for a row per printed number.")] = None,
) -> None:
    """Judge the printed tables of Zhao2025 by themselves."""
    tables = read_tables(folder)
    checks, rows = check_published(tables)
    for table, claim, holds, of, exceptions in checks.rows():
        print(f"{table}: {claim}: {holds} of {of}", *filter(None, [exceptions]), sep="; not ")
    found = rows["published_size"] = trends(tables["tables8_9"])
    ranks = found.filter(score="rank_correlation")
    alone, corrected = (ranks.filter(pl.col(p) <= 0.05).height for p in ("p", "q"))
    print(
        f"Model size: of {ranks.height} rank correlations of scores and effects with size, "
        f"{alone} have p at most 0.05, and {corrected} after correction."
    )
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for name, frame in rows.items():
            frame.write_csv(out / f"{name}.csv")


if __name__ == "__main__":
    typer.run(main)
