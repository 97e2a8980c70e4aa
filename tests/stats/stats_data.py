"""Made-up predictions for the statistics tests."""

from __future__ import annotations

import numpy as np
import polars as pl

from raybias import schema


def predictions(
    *,
    seed: int = 0,
    models: int = 2,
    runs: int = 3,
    templates: int = 6,
    groups: tuple[str, ...] = ("a", "b", "c"),
    attribute: str = "colour",
) -> pl.DataFrame:
    """Predictions that are wrong at random, one to three items per template and group."""
    random = np.random.default_rng(seed)
    items = [
        (f"t{template}", group, template % 3)
        for template in range(templates)
        for group in groups
        for _ in range(random.integers(1, 4))
    ]
    rows = [
        {
            "model": f"m{model}",
            "method": "soft_prompt",
            "dataset": "sst5",
            "run_id": f"m{model}.s{run}",
            "probe": "made",
            "style": "original",
            "item_id": f"{place:04d}",
            "label": label,
            "attribute": attribute,
            "group": group,
            "template_id": template,
            "pred": label if random.random() < 0.5 else int(random.integers(3)),
            "scores": None,
            "parsed": True,
            "answer": None,
        }
        for model in range(models)
        for run in range(runs)
        for place, (template, group, label) in enumerate(items)
    ]
    return pl.DataFrame(rows, schema=pl.Schema(schema.PREDICTIONS))
