"""Writes small finished OUT folders, with a bias of known size in the predictions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import yaml

from raybias import schema
from raybias.config import Study, parse_study
from raybias.probes.templates import items_frame
from raybias.seeding import generator
from raybias.storage import Store

GROUPS = ("quixlan", "blorvian", "drumblish", "fizzmarian", "frobnian", "plonkish")
SEEDS = tuple(range(1001, 1016))


def make_study(models: tuple[str, ...] = ("planted",), **changes: object) -> Study:
    data = {
        "name": "calibration",
        "backbones": [{"id": name} for name in models],
        "training": [{"source": "planted"}],
        "probes": [{"source": "planted", "reference_groups": {"origin": list(GROUPS[1:])}}],
        **changes,
    }
    return parse_study(data)


def write_out(
    folder: Path,
    study: Study,
    *,
    groups: tuple[str, ...] = GROUPS,
    attribute: str = "origin",
    biased: str | None = "quixlan",
    size: float = 0.4,
    accuracy: float = 0.85,
    planted: bool = True,
) -> Store:
    """A finished OUT of `study`; every second template's non-negatives about `biased` turn."""
    store = Store(folder)
    record = {
        "study": study.model_dump(mode="json"),
        "hash": "0123456789abcdef",
        "data": {"probe planted": "aa", "training planted": "bb"},
        "versions": {"python": "3.12.3", "raybias": "0.1.0", "torch": "2.13.0"},
        "command": f"raybias run study.yaml --out {folder.name}",
    }
    store.write_text("study.yaml", yaml.safe_dump(record, allow_unicode=True))
    items = _items(groups, attribute)
    probe = study.probes[0].name
    store.write_table(f"items/{probe}.parquet", items.to_arrow())
    runs = [_runs(backbone.name, study) for backbone in study.backbones]
    store.write_table("runs.parquet", pl.concat(runs).to_arrow().cast(schema.RUNS))
    for run in pl.concat(runs).filter("selected").iter_rows(named=True):
        frame = _predictions(run, items, probe, biased, size, accuracy)
        name = f"predictions/{probe}/{run['run_id']}.parquet"
        store.write_table(name, frame.to_arrow().cast(schema.PREDICTIONS))
    if planted:
        truth = {group: size * accuracy if group == biased else 0.0 for group in groups}
        plant = {"attribute": attribute, "group": biased, "rate": "negative_fpr",
                 "truth": {"negative_fpr": truth}}  # fmt: skip
        store.write_text("planted.json", json.dumps(plant))
    return store


def _items(groups: tuple[str, ...], attribute: str) -> pl.DataFrame:
    rows = [
        (f"{group}-{template}-{term}", template % 3, attribute, group, f"{group}/{template}",
         str(template), term)
        for group in groups
        for template in range(60)
        for term in ("person", "neighbour")
    ]  # fmt: skip
    return items_frame(rows)


def _runs(model: str, study: Study) -> pl.DataFrame:
    rows = []
    dataset = study.training[0].name
    for place, seed in enumerate(study.methods[0].seeds):
        noise = generator(seed, "runs", model)
        n = int(noise.integers(22, 30))
        losses = list(0.5 + np.exp(-np.arange(n) / 6) + noise.normal(0, 0.02, n))
        value = float(np.round(noise.uniform(0.70, 0.80), 3))
        broken = place == 3
        rows.append(
            {
                "run_id": f"{model}.{dataset}.soft_prompt.lr0.001.s{seed}",
                "model": model, "method": "soft_prompt", "dataset": dataset, "seed": seed,
                "learning_rate": 1e-3, "weight_decay": 1e-2, "stop_window": 5,
                "stage": "final", "steps": 125 * n, "weights_step": 125 * n,
                "stop_reason": "diverged" if broken else "early_stop",
                "validation_loss": None if broken else losses[-1],
                "validation_accuracy": None if broken else value, "untuned_accuracy": 0.37,
                "test_accuracy": None if broken else value - 0.01,
                "eval_losses": [1.6, *losses], "eval_accuracies": [0.37, *[value] * n],
                "tokens": 1000 * n,
                "seconds": 12.5, "verbalizer_ids": [2430, 7974, 1313], "prompt_token_id": 2,
                "adapter": f"adapters/{seed}",
            }
        )  # fmt: skip
    frame = pl.DataFrame(rows)
    rank = pl.col("validation_accuracy").rank("ordinal", descending=True).cast(pl.Int32)
    frame = frame.with_columns(rank=rank)
    return frame.with_columns(
        selected=(pl.col("rank") <= study.methods[0].keep).fill_null(False),
        tied=pl.col("rank") == study.methods[0].keep,
    ).select(schema.RUNS.names)


def _predictions(
    run: dict[str, object],
    items: pl.DataFrame,
    probe: str,
    biased: str | None,
    size: float,
    accuracy: float,
) -> pl.DataFrame:
    chance = generator(str(run["run_id"]), "predictions")
    label = items["label"].to_numpy()
    wrong = chance.random(len(label)) > accuracy
    pred = np.where(wrong, (label + chance.integers(1, 3, len(label))) % 3, label)
    turned = (chance.random(len(label)) < size) & (items["group"].to_numpy() == (biased or ""))
    pred = np.where(turned & (label == 1), 0, pred)
    pred = np.where(turned & (label == 2), 0, pred)
    return predicted(items, run, probe, pred)


def predicted(
    items: pl.DataFrame, run: dict[str, object], probe: str, pred: np.ndarray, **more: object
) -> pl.DataFrame:
    """A run's predictions of items (schema.PREDICTIONS), whose other columns are in `more`."""
    none = pl.lit(None, pl.String)
    rest: dict[str, object] = {
        "scores": pl.lit(None, pl.List(pl.Float32)), "parsed": pl.lit(True), "answer": none, **more
    }  # fmt: skip
    return items.with_columns(
        **{key: pl.lit(run[key], pl.String) for key in ("model", "method", "dataset", "run_id")},
        probe=pl.lit(probe), style=pl.lit("original"), pred=pl.Series(pred, dtype=pl.Int8),
        unread=none, **rest,
    ).select(schema.PREDICTIONS.names)  # fmt: skip
