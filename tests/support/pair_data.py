"""Small made-up pair scores and coreference answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import polars as pl

from raybias import schema

STYLES = ("original", "prefix_1", "question_answer")


def pair_scores(
    *,
    types: Sequence[str] = ("age", "gender", "religion"),
    pairs: int = 12,
    styles: Sequence[str] = STYLES,
    models: Sequence[str] = ("toy-1M",),
    seed: int = 0,
    ties: float = 0.1,
    clusters: int = 0,
) -> pl.DataFrame:
    """schema.PAIR_SCORES with `pairs` pairs a type, sentence scores that are probabilities.

    With `clusters`, every so many pairs of a type are of one writer.
    """
    random = np.random.default_rng(seed)
    rows = []
    for model in models:
        for t, bias_type in enumerate(types):
            for number in range(pairs):
                content = random.normal(0.3, 1.0)
                for s, style in enumerate(styles):
                    more = float(np.exp(-4 + 0.3 * s + random.normal(content, 0.5)))
                    less = more if random.random() < ties else float(np.exp(-4 + 0.3 * s))
                    rows.append(
                        (model, "bias_bench", "crows_pairs", style, f"{t}-{number:03d}", bias_type,
                         "antistereo" if number % 4 == 3 else "stereo", more, less,
                         None if more == less else int(more > less),
                         f"writer {number // clusters}" if clusters else None, None)
                    )  # fmt: skip
    return pl.DataFrame(rows, pl.Schema(schema.PAIR_SCORES), orient="row")


def answers(
    *,
    pairs: int = 40,
    styles: Sequence[str] = STYLES,
    prompts: Sequence[str] = ("by_p_they_mean", "represent"),
    pro: float = 0.7,
    anti: float = 0.4,
    seed: int = 0,
) -> pl.DataFrame:
    """schema.COREFERENCE_ANSWERS of both WinoBias types."""
    random = np.random.default_rng(seed)
    rows = [
        ("toy-1M", "winobias", style, prompt, f"{wino}-{number}-{side}", f"{wino}-{number}", wino,
         side, "the nurse", bool(random.random() < share), True, "referent")
        for wino in ("type1", "type2")
        for number in range(pairs)
        for style in styles
        for prompt in prompts
        for side, share in (("pro", pro), ("anti", anti))
    ]  # fmt: skip
    return pl.DataFrame(rows, pl.Schema(schema.COREFERENCE_ANSWERS), orient="row")
