"""The annotation round trip: Zhao2025's Table 5 from label files, kappa, kept pairs, bad files."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special, stats

from raybias.errors import DataError
from raybias.probes.styles import written
from raybias.probes.styles.written import LABELS


def textbook_kappa(codes_NA: np.ndarray) -> float:
    """Fleiss (1971), written out: agreeing pairs of annotators, against chance."""
    count, annotators = codes_NA.shape
    agreeing = [
        sum(row[a] == row[b] for a in range(annotators) for b in range(annotators) if a != b)
        for row in codes_NA
    ]
    observed = sum(agreeing) / (count * annotators * (annotators - 1))
    chance = sum(float((codes_NA == code).mean()) ** 2 for code in range(len(LABELS)))
    return (observed - chance) / (1 - chance)


def frame(codes_NA: np.ndarray) -> pl.DataFrame:
    ids = {"pair_id": [f"p{n}" for n in range(len(codes_NA))], "style": ["formal"] * len(codes_NA)}
    given = {f"a{a}": [LABELS[code] for code in codes_NA[:, a]] for a in range(codes_NA.shape[1])}
    return pl.DataFrame({**ids, **given})


def test_table_5_comes_out_as_printed(
    shared: Path,
    tmp_path: Path,
    run: Callable[..., Any],
) -> None:
    with (shared / "paper_tables" / "002_table5_annotations.csv").open() as file:
        printed = list(csv.DictReader(file))
    data = shared / "data" / "crows_pairs"
    original, styled, out = tmp_path / "o.csv", tmp_path / "styled.csv", tmp_path / "out"
    run("probes", "write", "crows_pairs", "--data", data, "--out", original)
    pairs = pl.read_csv(original)
    restyled = [
        pairs.with_columns(pl.lit(style).alias("style"), pl.col("sent_more", "sent_less") + " Yes.")
        for style in ("formal", "informal")
    ]
    pl.concat(restyled).write_csv(styled)
    export = ("annotate", "export", "crows_pairs", "--data", data, "--styled", styled)
    styles = ("--style", "formal", "--style", "informal")
    run(*export, *styles, "--out", out)
    for probe, style in [("winobias", "prefix_1"), ("crows_pairs", "original")]:
        wrong = ("annotate", "export", probe, "--data", data, "--style", style, "--out", "none")
        assert run(*wrong, code=2).err.count("\n") == 1
    assert "`not_sure`" in (out / "guidelines.md").read_text("utf-8")
    sheet = pl.read_csv(out / "sheet.csv", infer_schema=False)
    assert len(sheet) == 2 * 1508
    assert sheet["sent_more"].str.ends_with(" Yes.").all()

    names = ("annotator1", "annotator2", "annotator3")
    for number, name in enumerate(names):
        parts = []
        for style in ("formal", "informal"):
            rows = sheet.filter(style=style)
            labels = [
                r["label"] for r in printed if r["style"] == style for _ in range(int(r[name]))
            ]
            order = np.random.default_rng(number).permutation(len(rows))
            parts.append(rows.with_columns(pl.Series("label", [labels[n] for n in order])))
        # Annotators may sort their rows.
        pl.concat(parts).sample(fraction=1, shuffle=True, seed=number).write_csv(
            tmp_path / f"{name}.csv"
        )
    files = [tmp_path / f"{name}.csv" for name in names]
    shown = run("annotate", "import", out / "sheet.csv", *files, "--out", out).out
    shares = pl.read_csv(out / "shares.csv")
    for row, want in zip(shares.iter_rows(named=True), printed, strict=True):
        assert (row["style"], row["label"]) == (want["style"], want["label"])
        assert [row[name] for name in names] == [int(want[name]) for name in names]
        assert f"{100 * row['share']:.1f}" == want["printed_avg_pct"]
        assert f"{want['printed_avg_pct']}%" in shown

    agreed = pl.read_csv(out / "agreement.csv")
    first = agreed.row(0, named=True)
    kappa = f"{first['kappa']:.3f} [{first['kappa_low']:.3f}, {first['kappa_high']:.3f}]"
    assert f"{first['unanimous']} ({first['unanimous_share']:.1%})" in shown
    assert kappa in shown
    assert "95% intervals as if pairs were redrawn" in shown

    # Kept and mended rows are together a whole file of styled pairs.
    kept, rest = pl.read_csv(out / "kept.csv"), pl.read_csv(out / "rewrite.csv")
    assert agreed["unanimous_same"].sum() == len(kept)
    assert len(kept) + len(rest) == 2 * 1508
    assert not rest.filter(pl.all_horizontal(pl.col(names) == "same")).height
    both = ("--styled", out / "kept.csv", "--styled", out / "rewrite.csv")
    again = tmp_path / "again.csv"
    write = ("probes", "write", "crows_pairs", "--data", data, "--style", "formal", "--out", again)
    run(*write, *both)
    assert pl.read_csv(again).equals(restyled[0])


@given(
    st.integers(1, 4).flatmap(
        lambda annotators: st.lists(
            st.lists(st.integers(0, 2), min_size=annotators, max_size=annotators), min_size=1
        )
    )
)
def test_agreement_is_counted_and_kappa_is_the_textbook_formula(rows: list[list[int]]) -> None:
    codes = np.array(rows)
    found = written.agreement(frame(codes)).row(0, named=True)
    same = (codes == codes[:, :1]).all(axis=1)
    assert (found["pairs"], found["annotators"]) == codes.shape
    assert (found["unanimous"], found["unanimous_same"]) == (
        same.sum(), (same & (codes[:, 0] == 0)).sum(),
    )  # fmt: skip
    kappa = found["kappa"]
    assert found["unanimous_share"] == pytest.approx(same.mean())
    low, high = found["kappa_low"], found["kappa_high"]
    if codes.shape[1] == 1 or len(np.unique(codes)) == 1:
        assert kappa is low is high is None
        return
    assert kappa == pytest.approx(textbook_kappa(codes))
    # Nothing is known of other pairs if all agree, or without one that alone has another label.
    others = [np.delete(codes, n, axis=0) for n in range(len(codes))]
    undefined = len(codes) < 2 or any(len(np.unique(other)) == 1 for other in others)
    least = -1 / (codes.shape[1] - 1)
    if undefined or kappa > 1 - 1e-9 or kappa < least + 1e-9:
        assert low is high is None
        return
    without = np.array([textbook_kappa(other) for other in others])
    error = np.sqrt((len(codes) - 1) * without.var())
    if error < 1e-9:
        assert low is high is None
        return
    # The delta method on the logit scale of the range.
    place, ends = ((each - least) / (1 - least) for each in (kappa, np.array([low, high])))
    reach = stats.t.ppf(0.975, len(codes) - 1) * error / (place * (1 - place) * (1 - least))
    assert ends == pytest.approx(special.expit(special.logit(place) + reach * np.array([-1, 1])))
    assert least <= low <= kappa <= high <= 1


def test_published_numbers_are_labels_once_it_is_said_which(
    tmp_path: Path, run: Callable[..., Any]
) -> None:
    """Zhao2025's annotators wrote 0, 1 and 2; what these mean is printed nowhere."""
    rows = {"pair_id": list("abcd"), "style": ["formal"] * 4}
    texts = dict.fromkeys(("original_more", "original_less", "sent_more", "sent_less"), ["x."] * 4)
    sheet, out = tmp_path / "sheet.csv", tmp_path / "out"
    pl.DataFrame(rows | texts).write_csv(sheet)
    numbers = {"ann": [0, 0, 1, 2], "bob": [0, 1, 1, 2], "cat": [0, 0, 1, 0]}
    for name, labels in numbers.items():
        pl.DataFrame(rows | {"label": labels}).write_csv(tmp_path / f"{name}.csv")
    files = [str(tmp_path / f"{name}.csv") for name in numbers]
    command = ("annotate", "import", sheet, *files, "--out", out)
    said = run(*command, code=2).err
    assert "row 1: label '0' is none of same, different, not_sure; mend it, or say what" in said
    assert "--label 0=same --label 1=different --label 2=not_sure" in said
    given = ("--label", "0=same", "--label", "1=different")
    assert "row 4: label '2' is none of same" in run(*command, *given, code=2).err
    assert "'2' stands for 'unsure'" in run(*command, *given, "--label", "2=unsure", code=2).err
    assert "is not VALUE=LABEL" in run(*command, "--label", "0", code=2).err
    assert not out.exists()
    run(*command, *given, "--label", "2=not_sure")
    found = pl.read_csv(out / "shares.csv")
    assert found.select(*numbers).rows() == [(2, 1, 3), (1, 2, 1), (1, 1, 0)]
    assert pl.read_csv(out / "kept.csv")["pair_id"].to_list() == ["a"]
    meant = {"0": "same", "1": "different", "2": "not_sure"}
    tables = written.import_annotation(str(sheet), files, str(tmp_path / "again"), labels=meant)
    assert tables["shares"].rows() == found.rows()


def test_bad_label_files_are_named(tmp_path: Path) -> None:
    pairs = {"pair_id": ["a", "b"], "style": ["formal", "formal"]}
    texts = {
        name: ["x.", "y."] for name in ("original_more", "sent_more", "original_less", "sent_less")
    }
    pl.DataFrame({**pairs, **texts}).write_csv(tmp_path / "sheet.csv")
    sheet = written.read_sheet(str(tmp_path / "sheet.csv"))

    def read(*labels: object, ids: tuple[str, ...] = ("a", "b"), name: str = "ann") -> pl.DataFrame:
        rows = {"pair_id": ids, "style": ["formal"] * len(ids), "label": labels}
        pl.DataFrame(rows).write_csv(tmp_path / f"{name}.csv")
        return written.read_labels(sheet, [str(tmp_path / f"{name}.csv")])

    assert read("Same", "Not sure")["ann"].to_list() == ["same", "not_sure"]
    for labels, ids, message in [
        (("same",), ("a",), r"ann\.csv: lacks row 'b \(formal\)' \(1 of 2\); all"),
        (("same",) * 3, ("a", "b", "c"), r"row 3: row 'c \(formal\)' is not in the sheet"),
        (("same",) * 2, ("a", "a"), r"row 2: row 'a \(formal\)' is already in row 1"),
        (("same", "no"), ("a", "b"), r"row 2: label 'no' is none of same, different, not_sure"),
        (("same", None), ("a", "b"), r"row 2: label is empty"),
    ]:
        with pytest.raises(DataError, match=message):
            read(*labels, ids=ids)
    read("same", "same")
    twice = [str(tmp_path / "ann.csv")] * 2
    with pytest.raises(DataError, match=r"two files are named 'ann'"):
        written.read_labels(sheet, twice)
