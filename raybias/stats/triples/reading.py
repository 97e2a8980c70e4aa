"""Read scores of triples of sentences: StereoSet's published files, and our own tables."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Final

import polars as pl
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, TypeAdapter

from raybias import schema
from raybias.errors import DataError
from raybias.formats.json_files import parsed
from raybias.formats.stereoset import ROLES, StereoSetTriple, stereoset_triples
from raybias.stats.answer_files import content, file_source, read_answer_files
from raybias.stats.predictions import Source
from raybias.stats.reference_groups import StatisticsWarning

_CURE: Final = "give it as StereoSet's authors published it"
_TYPES: Final = pl.Schema(schema.TRIPLE_SCORES)

Text = Annotated[str, Field(min_length=1)]


class _Score(BaseModel):
    model_config = ConfigDict(strict=True)

    id: Text
    score: FiniteFloat


_SCORES: Final = TypeAdapter(dict[str, list[_Score]])


def read_triple_scores(
    paths: Sequence[str | Path], items: str | Path | None = None
) -> pl.DataFrame:
    """Read and check scores of triples.

    Parameters
    ----------
    paths: StereoSet's published predictions (JSON, plain or gzipped: a score for each sentence id),
        one file for a model, which its name tells; Parquet or CSV files of schema.TRIPLE_SCORES;
        or folders of these.
    items: StereoSet's dev.json or a part of it, which says whose sentences the ids are.

    Returns
    -------
    schema.TRIPLE_SCORES.

    Raises
    ------
    DataError: a file that is missing or malformed, published predictions without items, a triple
        of which some sentence has no score, or one that is given twice.

    Warns
    -----
    StatisticsWarning: triples of a domain without scores, and scores of other sentences.
    """
    triples = None
    if items is not None:
        source = file_source(str(items))
        triples = stereoset_triples(content(source), source.uri)
    return read_answer_files(
        paths,
        schema.TRIPLE_SCORES,
        endings=(".json", ".json.gz"),
        published=lambda source: _published(source, triples),
        item=("domain", "task", "item_id"),
        apart=items,
    )


def _published(source: Source, items: Sequence[StereoSetTriple] | None) -> pl.DataFrame:
    """Read one file of StereoSet's predictions."""
    if items is None:
        raise DataError(
            "published predictions need their items",
            where=source.uri,
            cure="give StereoSet's dev.json as --items",
        )
    scores: dict[str, float] = {}
    for each in chain(*parsed(_SCORES, content(source), source.uri, _CURE).values()):
        if scores.setdefault(each.id, each.score) != each.score:
            raise DataError(
                f"sentence {each.id!r} has two scores", where=source.uri, cure="leave one out"
            )
    rows, without = [], Counter[tuple[str, str]]()
    for item in items:
        found = [scores[each.id] for each in item.sentences if each.id in scores]
        if len(found) == len(ROLES):
            rows.append((item.domain, item.task, item.term, item.item_id, *found))
        elif found:
            raise DataError(
                f"triple {item.item_id!r} has {len(found)} scores, not 3",
                where=source.uri,
                cure="score all its sentences or none",
            )
        else:
            without[item.domain, item.task] += 1
    _check_scored(rows, without, 3 * len(rows) < len(scores), source.uri)
    model = _model(source.name, {row[0] for row in rows})
    return pl.DataFrame([(model, "stereoset", *row) for row in rows], _TYPES, orient="row")


def _check_scored(
    rows: Sequence[tuple[object, ...]],
    without: Counter[tuple[str, str]],
    others: bool,
    where: str,
) -> None:
    if not rows:
        raise DataError(
            "scores no sentence of the items", where=where, cure="give the items that it scored"
        )
    scored = Counter((str(domain), str(task)) for domain, task, *_ in rows)
    said = [
        f"{n} of {n + scored[place]} triples of {' '.join(place)} have no score"
        for place, n in without.items()
        if place in scored
    ]
    if others:
        said.append("there are scores of sentences that the items do not have")
    for text in said:
        warnings.warn(f"{where}: {text}", StatisticsWarning, stacklevel=2)


def _model(name: str, domains: set[object]) -> str:
    """Tell the model by the file's name: predictions_gpt2_race.json.gz, all of race, is `gpt2`."""
    stem = re.sub(r"\.json(\.gz)?$", "", name.rpartition("/")[2]).removeprefix("predictions_")
    return stem.removesuffix(f"_{domains.pop()}") if len(domains) == 1 else stem
