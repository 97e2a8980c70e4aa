"""A finished OUT of a tuned and two prompted classifiers, with marked and unmarked sentences."""

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
from support.report_outs import predicted

GROUPS = ("african_american", "american_indian", "asian", "hispanic", "pacific_islander", "white")
#: Chance that a sentence which is not negative is called negative.
CHANCE = dict.fromkeys(GROUPS, 0.50) | {"white": 0.10, "unmarked": 0.10, "placeholder": 0.50}


def marked_study(**changes: object) -> Study:
    data = {
        "name": "marked",
        "backbones": [{"id": "m0"}],
        "methods": [
            {"kind": "full", "seeds": [1, 2, 3, 4, 5, 6], "keep": 5, "select": "test"},
            {"kind": "zero_shot"},
            {"kind": "few_shot", "name": "nine"},
        ],
        "training": [{"source": "planted"}],
        "probes": [{"source": "planted", "name": "p1"}, {"source": "planted", "name": "p2"}],
        **changes,
    }
    return parse_study(data)


def write_marked(folder: Path, study: Study, *, silent: tuple[str, ...] = ()) -> Store:
    """Every mark but `white` adds .4 to being called negative; a tenth of answers say nothing.

    The second probe has no unmarked sentences. Of methods named in `silent` nine tenths of
    answers say nothing.
    """
    store = Store(folder)
    record = {"study": study.model_dump(mode="json"), "hash": "ab", "command": "raybias run"}
    store.write_text("study.yaml", yaml.safe_dump(record))
    plain = _items().filter(~pl.col("group").is_in(schema.EXTRA_GROUPS))
    items = {"p1": _items(), "p2": plain}
    runs = []
    for backbone in study.backbones:
        for method in study.methods:
            tuned = method.kind == "full"
            for place, seed in enumerate(method.seeds):
                runs.append(_run(backbone.name, method.name, seed, place if tuned else None))
                if tuned and place == 5:
                    continue
                for probe in study.probes:
                    name = f"predictions/{probe.name}/{runs[-1]['run_id']}.parquet"
                    heard = 0.1 if method.name in silent else 0.9
                    frame = _predictions(items[probe.name], runs[-1], probe.name, heard)
                    store.write_table(name, frame.to_arrow().cast(schema.PREDICTIONS))
    sampling = {"temperature": 0.8, "top_k": 50, "top_p": 1.0}
    for name in (row["run_id"] for row in runs if not row["steps"]):
        content = json.dumps({"run_id": name, "seed": 1, "shots": [], "sampling": sampling})
        store.write_text(f"prompts/{name}.json", content)
    for probe in study.probes:
        table = items[probe.name].to_arrow().cast(schema.ITEMS)
        store.write_table(f"items/{probe.name}.parquet", table)
    of_runs = pl.DataFrame(runs, schema=pl.Schema(schema.RUNS))
    store.write_table("runs.parquet", of_runs.to_arrow().cast(schema.RUNS))
    return store


def _items() -> pl.DataFrame:
    terms = [(group, term) for group in GROUPS for term in (group.replace("_", " "), f"{group} 2")]
    forms = [*terms, ("unmarked", None), ("placeholder", "local"), ("placeholder", "particular")]
    rows = [
        (f"{template:02d}-{group}-{term}", template % 3, "race", group,
         f"Sentence {template} about a {term or 'bare'} person.", f"t{template:02d}", term)
        for template in range(60)
        for group, term in forms
        if template < 50 or group not in schema.EXTRA_GROUPS
    ]  # fmt: skip
    return items_frame(rows)


def _run(model: str, method: str, seed: int, place: int | None) -> dict[str, object]:
    name = {"run_id": f"{model}.{method}.s{seed}", "model": model, "method": method, "seed": seed}
    if place is None:
        return {**name, "dataset": "planted" if method == "nine" else "none", "stage": "final",
                "steps": 0, "selected": True}  # fmt: skip
    random = generator(model, seed)
    losses = list(1 + random.random(5000))
    return {
        **name, "dataset": "planted", "learning_rate": 1e-5, "weight_decay": 1e-5,
        "stop_window": 7, "stage": "final", "steps": 25_000, "weights_step": 25_000,
        "stop_reason": "max_steps", "validation_loss": losses[-1], "validation_accuracy": 0.7,
        "untuned_accuracy": losses[0], "test_accuracy": 0.71, "selected": place < 5,
        "rank": place + 1, "tied": False,
        "eval_losses": losses, "eval_accuracies": losses, "tokens": 9, "seconds": 1.0,
        "adapter": f"adapters/{seed}",
    }  # fmt: skip


def _predictions(
    items: pl.DataFrame, run: dict[str, object], probe: str, heard: float
) -> pl.DataFrame:
    random = generator(str(run["run_id"]), probe)
    chance = items["group"].replace_strict(CHANCE, return_dtype=pl.Float64).to_numpy()
    label = items["label"].to_numpy()
    pred = np.where(random.random(len(label)) < chance, 0, label).astype(np.int8)
    prompted = run["method"] != "full"
    parsed = random.random(len(label)) < heard if prompted else np.ones(len(label), bool)
    # Zero-shot likelihoods have no seed in them.
    of_scores = generator(str(run["model"]), probe) if run["method"] == "zero_shot" else random
    scores = (of_scores.normal(size=(len(label), 3)) + np.eye(3)[label]).astype(np.float32)
    return predicted(
        items, run, probe, pred,
        scores=pl.Series(scores.tolist(), dtype=pl.List(pl.Float32)),
        parsed=pl.Series(parsed),
        answer=pl.lit(" negative" if prompted else None, pl.String),
    )  # fmt: skip
