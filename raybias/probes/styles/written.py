"""Read pairs in a style that people wrote, and have people annotate styled pairs (Zhao2025)."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Final

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy import special

from raybias.config.card import OWN, Column
from raybias.errors import ConfigError, DataError
from raybias.probes.checks import among, checked, column, distinct, whole
from raybias.probes.published.crows_pairs import ORIGINAL, SIDES, PairWarning, check_sides
from raybias.schema import PAIRS, REPEAT
from raybias.storage import Store, split_uri
from raybias.table_files import as_text, csv_text, read_frame

Counts = npt.NDArray[np.float64]
SAME: Final = "same"
LABELS: Final = (SAME, "different", "not_sure")
IDS: Final = ("pair_id", "style")
_OLD: Final = ("original_more", "original_less")
#: Columns of the tables that have a column for each annotator too.
_COLUMNS: Final = (*IDS, *_OLD, *SIDES, "label", "share")
_NAMED: Final = 3
_LABELLED: Final = "what the values mean: --label 0=same --label 1=different --label 2=not_sure"
#: A kappa nearer than this to an end of its range is at it.
_EDGE: Final = 1e-12


def own_styled_pairs(pairs: pl.DataFrame, style: str, uris: Sequence[str]) -> pl.DataFrame:
    """Read the same pairs in a style from files (schema.PAIRS), in the order of `pairs`.

    The files together have every pair once, and perhaps other styles and repeats. A column `kept`
    marks pairs whose original stands. `PairWarning` counts unknown ids.
    """
    where = ", ".join(uris)
    parts = []
    for uri in uris:
        part = checked(read_frame(*split_uri(uri)), OWN["styled"], where=uri)
        check_sides(part, where=uri)
        # Of the pairs that a study wrote several times, the first.
        first = ~pl.col("pair_id").str.contains(REPEAT)
        parts.append(part.filter(first, style=style))
    rows = pl.concat(parts).with_columns(kept=pl.col("kept").str.to_lowercase() == "true")
    if rows.is_empty():
        raise DataError(f"no rows of style {style!r}", where=where, cure="check the column `style`")
    known = rows["pair_id"].is_in(pairs["pair_id"].to_list())
    if len(unknown := rows.filter(~known)["pair_id"]):
        warnings.warn(
            f"{where}: {len(unknown)} rows have ids that the probe has not ({_some(unknown)});"
            " they are left out",
            PairWarning,
            stacklevel=2,
        )
    rows = rows.filter(known)
    repeated = rows.filter(rows["pair_id"].is_duplicated())["pair_id"].unique(maintain_order=True)
    missing = pairs.filter(~pairs["pair_id"].is_in(rows["pair_id"].to_list()))["pair_id"]
    for ids, fault, cure in (
        (repeated, "given more than once", "give each once"),
        (missing, "missing", "a style needs every pair; give the original where none is adequate"),
    ):
        if len(ids):
            said = f"{len(ids)} of {len(pairs)} pairs are {fault} in style {style!r}"
            raise DataError(f"{said} ({_some(ids)})", where=where, cure=cure)
    styled = pairs.drop("style", "kept", *SIDES).join(rows, on="pair_id", maintain_order="left")
    return styled.select(PAIRS.names)


def refuse_written(style: str, uris: Sequence[str]) -> None:
    """Refuse files that have pairs of a style which a model is to make (`ConfigError`)."""
    for uri in uris:
        if style in as_text(column(read_frame(*split_uri(uri)), "style", where=uri), where=uri):
            raise ConfigError(
                f"the style {style!r} is in styles.files and in styles.rewriting",
                where=uri,
                cure="take it out of one of them",
            )


def read_sheet(uri: str) -> pl.DataFrame:
    """Read a sheet as it was given to the annotators; it has each pair once in a style."""
    sheet = checked(read_frame(*split_uri(uri)), OWN["sheet"], where=uri)
    distinct(_id(sheet), where=uri)
    return sheet


def read_labels(
    sheet: pl.DataFrame, uris: Sequence[str], meant: Mapping[str, str] | None = None
) -> pl.DataFrame:
    """Read each annotator's labels, in a column named after the file; refuse other rows.

    meant: the label that each other value of the files stands for, such as `{"0": "same"}`.
    """
    labels = sheet.select(IDS)
    codes = {_plain(value): label for value, label in (meant or {}).items()}
    for value, label in codes.items():
        if label not in LABELS:
            raise ConfigError(
                f"{value!r} stands for {label!r}, which is none of {', '.join(LABELS)}",
                where="--label",
                cure=_LABELLED,
            )
    for uri in uris:
        frame = checked(read_frame(*split_uri(uri)), map(Column, (*IDS, "label")), where=uri)
        name = split_uri(uri)[1].rpartition(".")[0]
        if name in labels.columns or name in _COLUMNS:
            raise DataError(
                f"two files are named {name!r}, or a column of a table is",
                where=uri,
                cure="name each after its annotator",
            )
        written = frame["label"].map_elements(_plain, return_dtype=pl.String)
        given = frame.select(*IDS, label=written.replace(codes))
        # As the file has it, whatever stands for what.
        known = [*LABELS, *codes]
        among(written.alias("label"), known, where=uri, cure=f"mend it, or say {_LABELLED}")
        cure = "all annotators must label the same sheet, whole"
        whole(_id(given), _id(sheet), where=uri, cure=cure)
        labels = labels.join(given.rename({"label": name}), on=IDS, maintain_order="left")
    return labels


def _plain(label: str) -> str:
    """Write a label as `LABELS` do: `Not sure` is `not_sure`."""
    return re.sub(r"[\s-]+", "_", label.strip().lower())


def label_shares(labels: pl.DataFrame) -> pl.DataFrame:
    """Count each annotator's labels by style: style, label, a count each, share of all."""
    names = _annotators(labels)
    rows = [
        (style, label, *(int((part[name] == label).sum()) for name in names))
        for (style,), part in labels.group_by("style", maintain_order=True)
        for label in LABELS
    ]
    counts = pl.DataFrame(rows, schema=["style", "label", *names], orient="row")
    given = pl.sum_horizontal(names)
    return counts.with_columns((given / given.sum().over("style")).alias("share"))


def agreement(labels: pl.DataFrame) -> pl.DataFrame:
    """Compute how far annotators agree on each style.

    Gives style, pairs, annotators; `unanimous` pairs, which all call the same, their share, and the
    `unanimous_same` ones among them; Fleiss' (1971) `kappa`, null if all labels are alike or there
    is one annotator, with the ends of its 95% interval. Kappa is low where nearly all labels are
    alike, however often annotators agree: read it with the share.
    """
    names = _annotators(labels)
    n = len(names)
    given = pl.concat_list(names).list
    rows = []
    for (style,), part in labels.group_by("style", maintain_order=True):
        counts = part.select(given.count_matches(each).alias(each) for each in LABELS)
        counts_NL = counts.to_numpy().astype(float)
        unanimous = int((counts_NL.max(axis=1) == n).sum())
        same = (counts[SAME] == n).sum()
        kappa = _kappa(counts_NL)
        rows.append((style, len(part), n, unanimous, unanimous / len(part), same, *kappa))
    columns = ["style", "pairs", "annotators", "unanimous", "unanimous_share", "unanimous_same"]
    ends = dict.fromkeys(("kappa", "kappa_low", "kappa_high"), pl.Float64)
    return pl.DataFrame(rows, [*columns, *ends], schema_overrides=ends, orient="row")


def _kappa(counts_NL: Counts) -> tuple[float | None, float | None, float | None]:
    """Compute Fleiss' kappa of counts of labels by pair, and its 95% interval; None if unknown.

    The standard error is the jackknife's over pairs (Tukey 1958); the interval is Student's, on the
    logit scale of kappa's range.
    """
    pairs, annotators = len(counts_NL), float(counts_NL[0].sum())
    if annotators < 2:
        return None, None, None
    label_L = counts_NL.sum(axis=0)
    squares_N = (counts_NL**2).sum(axis=1)
    value = float(_fleiss(label_L, squares_N.sum(), pairs, annotators))
    if np.isnan(value):
        return None, None, None

    least = -1 / (annotators - 1)
    place = (value - least) / (1 - least)
    if pairs < 2 or not _EDGE < place < 1 - _EDGE:
        return value, None, None
    without_N = _fleiss(label_L - counts_NL, squares_N.sum() - squares_N, pairs - 1, annotators)
    error = float(np.sqrt((pairs - 1) * without_N.var()))
    if not error > _EDGE:
        return value, None, None

    slope = place * (1 - place) * (1 - least)
    reach = special.stdtrit(pairs - 1, 0.975) * error / slope
    middle = special.logit(place)
    low, high = (special.expit(middle + sign * reach) for sign in (-1, 1))
    return value, float(least + (1 - least) * low), float(least + (1 - least) * high)


def _fleiss(label_L: Counts, squares: Counts, pairs: int, annotators: float) -> Counts:
    """Compute kappa [...] of sums [..., L] of labels, and [...] of the squares of pairs' counts."""
    chance = ((label_L / (pairs * annotators)) ** 2).sum(axis=-1)
    observed = (squares / pairs - annotators) / (annotators * (annotators - 1))
    return np.asarray((observed - chance) / np.where(chance < 1, 1 - chance, np.nan))


def export_annotation(pairs: pl.DataFrame, out: str) -> pl.DataFrame:
    """Write guidelines.md and sheet.csv, a row per pair and style, and return the sheet."""
    original = pl.col("style") == ORIGINAL
    old = pairs.filter(original).select("pair_id", **dict(zip(_OLD, SIDES, strict=True)))
    shown = [name for both in zip(_OLD, SIDES, strict=True) for name in both]
    styled = pairs.filter(~original).join(old, on="pair_id", maintain_order="left")
    sheet = styled.select(*IDS, *shown, label=pl.lit(""))
    guidelines = resources.files("raybias").joinpath("assets/annotation.md").read_text("utf-8")
    store = Store(out)
    store.write_text("sheet.csv", csv_text(sheet))
    store.write_text("guidelines.md", guidelines)
    return sheet


def import_annotation(
    sheet: str, files: Sequence[str], out: str, *, labels: Mapping[str, str] | None = None
) -> dict[str, pl.DataFrame]:
    """Read annotators' labels of a sheet, a file each, and write four tables as CSV to `out`.

    labels: what other values in the files mean, such as `{"0": "same"}`; nothing is guessed.

    The tables are `shares` of labels and `agreement` by style; pairs to be `kept`, which all
    annotators call the same; and pairs to `rewrite`, with the originals and labels.
    """
    given = read_sheet(sheet)
    found = read_labels(given, files, labels)
    all_same = pl.all_horizontal(pl.col(_annotators(found)) == SAME)
    # Both begin with the columns of a file of styled pairs, so that they make one once the texts
    # to rewrite are mended.
    texts = found.join(given.select(*IDS, *SIDES, *_OLD), on=IDS, maintain_order="left")
    tables = {
        "shares": label_shares(found),
        "agreement": agreement(found),
        "kept": texts.filter(all_same).select(*IDS, *SIDES),
        "rewrite": texts.filter(~all_same).select(*IDS, *SIDES, *_OLD, *_annotators(found)),
    }
    store = Store(out)
    for name, frame in tables.items():
        store.write_text(f"{name}.csv", csv_text(frame))
    return tables


def _some(names: pl.Series) -> str:
    return ", ".join([*names.head(_NAMED), *(["..."] if len(names) > _NAMED else [])])


def _annotators(labels: pl.DataFrame) -> list[str]:
    return [name for name in labels.columns if name not in IDS]


def _id(frame: pl.DataFrame) -> pl.Series:
    return frame.select(pl.format("{} ({})", *IDS).alias("row")).to_series()
