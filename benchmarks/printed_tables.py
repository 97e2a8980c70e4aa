"""Judge the printed tables of Zhao2025 by themselves: which hold, and which rule made them.

A printed number holds when ours is within one unit of its last digit (0.01), since the
paper computed some numbers from printed ones and cut others.

    python benchmarks/printed_tables.py paper_tables --size GPT-2=124M --out published

Tables are CSV files, told apart by their columns. It needs no model and measures no time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Final

import polars as pl
import typer

from raybias.measures.pair_means import UNWEIGHTED, WEIGHTED, two_proportions
from raybias.measures.paired import size_trends, sizes_in_names
from raybias.stats.intervals import false_discovery

#: Pairs of CrowS-Pairs by bias type.
CROWS_PAIRS: Final[Mapping[str, int]] = {
    "race-color": 516, "gender": 262, "socioeconomic": 172, "nationality": 159, "religion": 105,
    "age": 87, "sexual-orientation": 84, "physical-appearance": 63, "disability": 60,
}  # fmt: skip
_TEXTS: Final = pl.String()
_NUMBER: Final = pl.Float64()
#: Columns of the printed tables, which tell them apart, for `read_tables`.
PRINTED: Final[Mapping[str, pl.Schema]] = {
    "table2": pl.Schema({**dict.fromkeys(("style", "statistic", "model", "bias_type"), _TEXTS),
                         "value": _NUMBER, "printed_bold": _NUMBER}),
    "table3": pl.Schema({**dict.fromkeys(("style", "model", "wino_type"), _TEXTS),
                         "mean_diff_pct": _NUMBER}),
    "tables6_7": pl.Schema({**dict.fromkeys(("first", "second", "bias_type", "model"), _TEXTS),
                            "t_value": _NUMBER}),
    "tables8_9": pl.Schema({**dict.fromkeys(("style", "bias_type", "model"), _TEXTS),
                            "score_pct": _NUMBER}),
    "tables10_17": pl.Schema({
        **dict.fromkeys(("model", "prompt", "style"), _TEXTS),
        **dict.fromkeys(("t1_pro", "t1_anti", "t1_diff", "t2_pro", "t2_anti", "t2_diff"), _NUMBER),
    }),
}  # fmt: skip
_PAIRS: Final = sum(CROWS_PAIRS.values())
_AVG: Final = "AVG"
#: One unit of the last printed digit, and room for binary fractions.
_UNIT: Final = 0.01 + 1e-9
_HALF: Final = 0.005 + 1e-9


@dataclass(frozen=True)
class Check:
    """One claim about a printed table: how many of its numbers hold, and those that do not."""

    table: str
    claim: str
    holds: int
    of: int
    exceptions: tuple[str, ...]


def check_published(
    tables: Mapping[str, pl.DataFrame],
) -> tuple[list[Check], dict[str, pl.DataFrame]]:
    """Judge the printed tables that are given.

    Parameters
    ----------
    tables: of `read_tables`, by name (a key of `PRINTED`).

    Returns
    -------
    The checks, and tables with a row per printed number: `published_table2` (bold marks and
    extremes need Tables 8 and 9 too), `published_table3` (needs Tables 10 to 17),
    `published_tables8_9` (AVG under both definitions), `published_tables10_17`.
    """
    checks: list[Check] = []
    rows: dict[str, pl.DataFrame] = {}
    if "tables10_17" in tables:
        rows["published_tables10_17"] = differences(tables["tables10_17"])
        checks.append(_check(rows["published_tables10_17"], "Tables 10-17",
                             "the difference is |pro - anti|"))  # fmt: skip
    if "table3" in tables and "tables10_17" in tables:
        rows["published_table3"] = winobias_means(tables["table3"], tables["tables10_17"])
        checks.append(_check(rows["published_table3"], "Table 3",
                             "the mean of six absolute differences of Tables 10-17"))  # fmt: skip
    if "tables8_9" in tables:
        found = rows["published_tables8_9"] = averages(tables["tables8_9"])
        for exact, name, words in (
            (True, WEIGHTED, "AVG over pairs, where every type is a count of its pairs"),
            (False, UNWEIGHTED, "AVG as the mean of the types, in all other blocks"),
        ):
            part = found.filter(exact=exact).rename({name: "computed", f"{name}_holds": "holds"})
            checks.append(_check(part, "Tables 8 and 9", words))
    if "table2" in tables and "tables8_9" in tables:
        marks = bold_marks(tables["table2"], tables["tables8_9"])
        ends = extremes(tables["table2"], tables["tables8_9"])
        rows["published_table2"] = pl.concat([marks, ends], how="diagonal")
        checks.append(_check(marks, "Table 2", "bold is a two-proportion z test of AVG, n 1508"))
        checks += [
            _check(ends.filter(statistic=name), "Table 2", f"{name} is the {word} change in size")
            for name, word in (("MIN", "smallest"), ("MAX", "largest"))
        ]
    if "tables6_7" in tables:
        checks.append(list_pairs(tables["tables6_7"]))
    return checks, rows


def differences(detail: pl.DataFrame) -> pl.DataFrame:
    """Tables 10 to 17, a row per difference: printed, `computed` |pro - anti|, signed, `holds`."""
    parts = [
        detail.select(
            "model", "prompt", "style", wino_type=pl.lit(f"type{number}"),
            printed=f"t{number}_diff", signed=pl.col(f"t{number}_pro") - pl.col(f"t{number}_anti"),
        )
        for number in (1, 2)
    ]  # fmt: skip
    table = pl.concat(parts).with_columns(computed=pl.col("signed").abs())
    return table.with_columns(holds=_near("printed", _UNIT))


def winobias_means(summary: pl.DataFrame, detail: pl.DataFrame) -> pl.DataFrame:
    """Table 3, a row per number: printed, `computed` from Tables 10 to 17, signed, `holds`."""
    by = ["model", "style", "wino_type"]
    means = differences(detail).group_by(by).agg(
        pl.col("printed").mean().alias("computed"), pl.col("signed").mean()
    )  # fmt: skip
    table = summary.rename({"mean_diff_pct": "printed"})
    joined = table.join(means, on=by, how="left", maintain_order="left")
    return joined.with_columns(holds=_near("printed", _UNIT))


def averages(scores: pl.DataFrame) -> pl.DataFrame:
    """AVG of Tables 8 and 9 under both definitions, a row per model and style.

    Returns
    -------
    model, style, printed, `avg_weighted` and `avg_unweighted` of the printed scores, `exact`
    (every printed score is 100 k / n of a whole k) and whether each definition holds.
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

    Returns
    -------
    style, model, statistic "AVG_delta", printed (the change), bold (as printed), z, p_value,
    q_value (Benjamini-Hochberg over these) and `holds`: bold exactly where |z| > 1.96.
    """
    base = scores.filter(bias_type=_AVG, style="original").select("model", base="score_pct")
    changes = summary.filter(statistic="AVG_delta").rename({"value": "printed"})
    table = changes.join(base, on="model", how="left", maintain_order="left")
    before = table["base"] / 100
    z, p = two_proportions(before.to_numpy(), (before + table["printed"] / 100).to_numpy(), _PAIRS)
    return table.select(
        "style", "model", "statistic", "printed", pl.Series("z", z), pl.Series("p_value", p),
        q_value=false_discovery(pl.Series(p)),
        bold=pl.col("printed_bold") > 0,
    ).with_columns(holds=pl.col("bold") == (pl.col("z").abs() > 1.96))  # fmt: skip


def extremes(summary: pl.DataFrame, scores: pl.DataFrame) -> pl.DataFrame:
    """MIN and MAX of Table 2 beside the smallest and largest changes of Tables 8 and 9.

    Returns
    -------
    style, model, statistic, bias_type and printed as printed, `computed` (the change of the
    least or greatest size over types, with its sign) and `computed_type`, and `holds`, for
    the number.
    """
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
    return joined.with_columns(holds=_near("printed", _UNIT))


def list_pairs(t_values: pl.DataFrame) -> Check:
    """Which of the 15 pairs of six lists Tables 6 and 7 print."""
    lists = [f"{style}_{side}" for style in ("original", "informal", "formal")
             for side in ("stereo", "anti")]  # fmt: skip
    printed = {frozenset(pair) for pair in t_values.select("first", "second").unique().rows()}
    pairs = list(combinations(lists, 2))
    missing = tuple(f"{a} and {b}" for a, b in pairs if {a, b} not in printed)
    return Check("Tables 6 and 7", "pairs of lists printed", len(pairs) - len(missing),
                 len(pairs), missing)  # fmt: skip


def style_effects(scores: pl.DataFrame) -> pl.DataFrame:
    """Tables 8 and 9 as scores and changes by model, for `size_trends`."""
    base = scores.filter(style="original").select("model", "bias_type", base="score_pct")
    table = scores.join(base, on=["model", "bias_type"], how="left", maintain_order="left")
    return table.select(
        "model", "style", attribute="bias_type", method=pl.lit("published"),
        probe=pl.lit("crows_pairs"), value="score_pct",
        effect=pl.when(pl.col("style") != "original").then(pl.col("score_pct") - pl.col("base")),
    )  # fmt: skip


def _near(printed: str, tolerance: float) -> pl.Expr:
    near = (pl.col("computed") - pl.col(printed)).abs() <= tolerance
    return near.fill_null(False)


def _check(table: pl.DataFrame, name: str, claim: str) -> Check:
    wrong = [_named(row) for row in table.filter(~pl.col("holds")).iter_rows(named=True)]
    return Check(name, claim, int(table["holds"].sum()), table.height, tuple(wrong))


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
        for name, types in PRINTED.items():
            if {*types} <= {*frame.columns}:
                found[name] = frame.select(
                    pl.when(pl.col(column) != "").then(column).cast(dtype, strict=False)
                    for column, dtype in types.items()
                )
                break
    return found


def trends(tables: Mapping[str, pl.DataFrame], sizes: Mapping[str, float]) -> pl.DataFrame:
    """Correlate the printed scores and changes of Tables 8 and 9 with model size."""
    effects = style_effects(tables["tables8_9"])
    return size_trends(effects, {**sizes_in_names(effects["model"]), **sizes})


def said(checks: list[Check]) -> Iterator[str]:
    """Say of each claim how many numbers hold, and which do not."""
    for each in checks:
        yield f"{each.table}: {each.claim}: {each.holds} of {each.of}"
        yield from (f"  not {exception}" for exception in each.exceptions[:4])
        if len(each.exceptions) > 4:
            yield f"  and {len(each.exceptions) - 4} more"


def main(
    folder: Annotated[Path, typer.Argument(help="Folder of the tables as CSV files.")],
    size: Annotated[
        list[str] | None,
        typer.Option(help="Parameters of a model, as GPT-2=124M."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for a row per printed number.")] = None,
) -> None:
    """Judge the printed tables of Zhao2025 by themselves."""
    tables = read_tables(folder)
    checks, rows = check_published(tables)
    print(*said(checks), sep="\n")
    if "tables8_9" in tables:
        named = dict(each.rsplit("=", 1) for each in size or [])
        units = {"K": 1e3, "M": 1e6, "B": 1e9}
        sizes = {model: float(text[:-1]) * units[text[-1]] for model, text in named.items()}
        found = rows["published_size"] = trends(tables, sizes)
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
