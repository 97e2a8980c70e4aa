"""A finished OUT of pairs in styles, from made-up scores and answers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl
import yaml

from raybias import schema
from raybias.config import Study, parse_study
from raybias.storage import Store
from support.pair_data import STYLES, answers, pair_scores

#: Of each of three bias types.
PAIRS = 30


def moved(scores: pl.DataFrame) -> pl.DataFrame:
    """The scores, with sent_more preferred in every pair under question_answer."""
    asked = pl.col("style") == "question_answer"
    higher = pl.max_horizontal("score_more", 2 * pl.col("score_less"))
    return scores.with_columns(
        score_more=pl.when(asked).then(higher).otherwise("score_more"),
        preference=pl.when(asked).then(pl.lit(1, pl.Int8)).otherwise("preference"),
    )


def pair_study(models: Sequence[str] = ("toy-1M",), **changes: object) -> Study:
    data = {
        "name": "styles",
        "backbones": [{"id": name} for name in models],
        "methods": [{"kind": "pair_score", "scores": ["bias_bench"]}, {"kind": "coreference"}],
        "pairs": [
            {"source": "crows_pairs", "data": "crows_pairs"},
            {"source": "winobias", "data": "winobias"},
        ],
        "styles": {"names": list(STYLES)},
        **changes,
    }
    return parse_study(data)


def write_pair_out(
    folder: Path, study: Study, *, parameters: dict[str, object] | None = None
) -> Store:
    """A finished OUT of `study`; a question makes every model prefer the stereotype.

    Answers are of one model alone.
    """
    store = Store(folder)
    models = [backbone.name for backbone in study.backbones]
    record = {
        "study": study.model_dump(mode="json"),
        "hash": "0123456789abcdef",
        "command": "raybias run styles.yaml",
    }
    if parameters is not None:
        record["parameters"] = parameters
    if not store.exists("study.yaml"):
        store.write_text("study.yaml", yaml.safe_dump(record))
    scores = moved(pair_scores(models=models, pairs=PAIRS))
    store.write_table("pair_scores/a/00000000.parquet", scores.to_arrow().cast(schema.PAIR_SCORES))
    said = answers().to_arrow().cast(schema.COREFERENCE_ANSWERS)
    store.write_table("coreference/a/00000000.parquet", said)
    items = scores.filter(model=models[0]).select(
        "pair_id", "bias_type", "direction", "style", sent_more=pl.lit("a"), sent_less=pl.lit("b"),
        kept=pl.lit(False), cluster="cluster",
    )  # fmt: skip
    store.write_table("items/crows_pairs.parquet", items.to_arrow().cast(schema.PAIRS))
    return store
