"""Judge files of predictions, scores and answers, wherever they come from: no model, no Ray.

Each function imports what it needs when it is called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from raybias.api.paths import Paths, listed
from raybias.config import Probe, Profile, Scope
from raybias.storage import Store

if TYPE_CHECKING:
    import polars as pl

    from raybias.report import Comparison


def compare(
    base: str | Path | Sequence[str | Path],
    candidate: str | Path | Sequence[str | Path],
    *,
    base_is: Mapping[str, str] | None = None,
    candidate_is: Mapping[str, str] | None = None,
    scope: Scope | None = None,
    margin: float | None = None,
    out: str | Path | None = None,
) -> Comparison:
    """Compare a candidate with its base: is any gap or score worse, better, or equivalent?

    Of model, method and training set, what is one in each arm is what is compared; by the rest,
    by probe, style and sentence, and by seed where both have the same seeds, arms are matched.

    Parameters
    ----------
    base, candidate: an OUT, files and folders of predictions, or of answers about pairs, as
        `measure` takes.
    base_is, candidate_is: which of an arm's rows are meant, by model, method, dataset,
        probe or style, so that two arms of one OUT can be compared.
    scope: what intervals cover (`Statistics.scope`); by default the study's, else the widest.
    margin: the largest change of a gap that does not matter; the study's, else 0.02.
    out: folder or URI for compare.csv, compare.md, compare.json and compare.html.

    Raises
    ------
    DataError: a file is missing or malformed, or one arm lacks a probe, classifier or sentence of
        the other.
    ConfigError: studies with other profiles, templates, label words or rules.
    """
    from raybias import report

    arms = [[arm] if isinstance(arm, str | Path) else arm for arm in (base, candidate)]
    found = report.compare(
        *arms, base_is=base_is, candidate_is=candidate_is, scope=scope, margin=margin
    )
    if out is not None:
        found.write(Store(out))
    return found


def design(
    files: Paths,
    *,
    target: float | None = None,
    profile: Profile | None = None,
    scope: Scope | None = None,
) -> pl.DataFrame:
    """Predict which seeds, templates and words to add for narrow intervals (`schema.DESIGN`).

    Parameters
    ----------
    files: as for `measure`; a tuned study is priced in device-hours, others in items read.
    target: the half width that is wanted; by default the study's margin, else 0.02.
    profile, scope: as for `measure`.

    Raises
    ------
    DataError: as for `measure`, or predictions without template ids.
    ConfigError: as for `measure`.
    """
    from raybias import report

    return report.design_of_files(listed(files), target=target, profile=profile, scope=scope)[0]


def corpus_counts(
    source: str,
    probe: Probe,
    *,
    text_column: str = "text",
    split: str = "train",
    address: str | None = None,
) -> pl.DataFrame:
    """Count on Ray how often a corpus marks a probe's nouns with group terms (`schema.CORPUS`).

    Parameters
    ----------
    source: a text file with one document a line, a Parquet file, a folder or pattern of either,
        or `hub:NAME` for a `datasets` id.
    text_column, split: of Parquet files and hub data sets.
    address: as for `run`.

    Raises
    ------
    DataError: no such source, column or split, or no document in it.
    """
    from raybias.runtime.corpus import count_corpus

    return count_corpus(source, probe, column=text_column, split=split, address=address)[0]
