"""Writes small finished OUT folders from made-up answers, with biases of known size."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import yaml

from raybias import schema
from raybias.config import Study, parse_study
from raybias.planning.labels import resolve_labels
from raybias.probes.templates import items_frame
from raybias.seeding import generator
from raybias.storage import Store
from support.pair_data import STYLES, answers, pair_scores

GROUPS = ("quixlan", "blorvian", "drumblish", "fizzmarian", "frobnian", "plonkish")


def make_study(models: tuple[str, ...] = ("planted",), **changes: object) -> Study:
    data = {
        "name": "calibration",
        "backbones": [{"id": name} for name in models],
        "training": [{"source": "planted"}],
        "probes": [{"source": "planted", "reference_groups": {"origin": list(GROUPS[1:])}}],
        **changes,
    }
    return resolve_labels(parse_study(data))


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
    templates: int = 60,
) -> Store:
    """A finished OUT of `study`; every second template's non-negatives about `biased` turn."""
    items = items_frame([
        (f"{group}-{template}-{term}", template % 3, attribute, group, f"{group}/{template}",
         str(template), term)
        for group in groups for template in range(templates) for term in ("person", "neighbour")
    ])  # fmt: skip
    probe = study.probes[0].name
    store, runs = finished(folder, study, items)
    for run in runs.iter_rows(named=True):
        frame = _predictions(run, items, probe, biased, size, accuracy)
        name = f"predictions/{probe}/{run['run_id']}.parquet"
        store.write_table(name, frame.to_arrow().cast(schema.PREDICTIONS))
    if planted:
        truth = {group: size * accuracy if group == biased else 0.0 for group in groups}
        plant = {"attribute": attribute, "group": biased, "rate": "negative_fpr",
                 "truth": {"negative_fpr": truth}}  # fmt: skip
        store.write_text("planted.json", json.dumps(plant))
    return store


def finished(folder: Path, study: Study, items: pl.DataFrame) -> tuple[Store, pl.DataFrame]:
    """An OUT of `study` without its predictions, and the runs that are to have some."""
    store = _begun(
        folder, study, data={"probe planted": "aa", "training planted": "bb"},
        versions={"python": "3.12.3", "raybias": "0.1.0", "torch": "2.13.0"},
        command=f"raybias run study.yaml --out {folder.name}",
    )  # fmt: skip
    store.write_table(f"items/{study.probes[0].name}.parquet", items.to_arrow())
    runs = pl.concat(_runs(backbone.name, study) for backbone in study.backbones)
    store.write_table("runs.parquet", runs.to_arrow().cast(schema.RUNS))
    return store, runs.filter("selected")


def _begun(folder: Path, study: Study, **more: object) -> Store:
    record = {
        "study": study.model_dump(mode="json"), "hash": "0123456789abcdef",
        "command": "raybias run study.yaml", **more,
    }  # fmt: skip
    store = Store(folder)
    store.write_text("study.yaml", yaml.safe_dump(record, allow_unicode=True))
    return store


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
                "adapter_rank": None, "target": None, "prompt_length": None,
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
    rank = pl.col("validation_accuracy").rank("ordinal", descending=True).cast(pl.Int32)
    return pl.DataFrame(rows, pl.Schema(schema.RUNS)).with_columns(
        rank=rank,
        selected=(rank <= study.methods[0].keep).fill_null(False),
        tied=rank == study.methods[0].keep,
    )


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
    return predicted(items, run, probe, np.where(turned & (label > 0), 0, pred))


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
        probe=pl.lit(probe), style=pl.lit("original"), pred=pl.Series(pred, dtype=pl.Int16),
        unread=none, **rest,
    ).select(schema.PREDICTIONS.names)  # fmt: skip


MARKED = ("african_american", "american_indian", "asian", "hispanic", "pacific_islander", "white")
#: Chance that a sentence which is not negative is called negative.
CHANCE = dict.fromkeys(MARKED, 0.50) | {"white": 0.10, "unmarked": 0.10, "placeholder": 0.50}


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
    store, every = _begun(folder, study), _marked_items()
    items = {"p1": every, "p2": every.filter(~pl.col("group").is_in(schema.EXTRA_GROUPS))}
    runs = []
    for backbone in study.backbones:
        for method in study.methods:
            tuned = method.kind == "full"
            for place, seed in enumerate(method.seeds):
                runs.append(_marked_run(backbone.name, method.name, seed, place if tuned else None))
                if tuned and place == 5:
                    continue
                for probe in study.probes:
                    name = f"predictions/{probe.name}/{runs[-1]['run_id']}.parquet"
                    heard = 0.1 if method.name in silent else 0.9
                    frame = _marked_predictions(items[probe.name], runs[-1], probe.name, heard)
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


def _marked_items() -> pl.DataFrame:
    terms = [(group, term) for group in MARKED for term in (group.replace("_", " "), f"{group} 2")]
    forms = [*terms, ("unmarked", None), ("placeholder", "local"), ("placeholder", "particular")]
    rows = [
        (f"{template:02d}-{group}-{term}", template % 3, "race", group,
         f"Sentence {template} about a {term or 'bare'} person.", f"t{template:02d}", term)
        for template in range(60)
        for group, term in forms
        if template < 50 or group not in schema.EXTRA_GROUPS
    ]  # fmt: skip
    return items_frame(rows)


def _marked_run(model: str, method: str, seed: int, place: int | None) -> dict[str, object]:
    name = {"run_id": f"{model}.{method}.s{seed}", "model": model, "method": method, "seed": seed}
    if place is None:
        return {**name, "dataset": "planted" if method == "nine" else "none", "stage": "final",
                "steps": 0, "selected": True}  # fmt: skip
    random = generator(model, seed)
    losses = list(1 + random.random(5000))
    return {
        **name, "dataset": "planted", "learning_rate": 1e-5, "weight_decay": 1e-5,
        "stop_window": 7, "adapter_rank": None, "target": None, "prompt_length": None,
        "stage": "final", "steps": 25_000, "weights_step": 25_000,
        "stop_reason": "max_steps", "validation_loss": losses[-1], "validation_accuracy": 0.7,
        "untuned_accuracy": losses[0] - 1, "test_accuracy": 0.71, "selected": place < 5,
        "rank": place + 1, "tied": False,
        "eval_losses": losses, "eval_accuracies": [loss - 1 for loss in losses],
        "tokens": 9, "seconds": 1.0,
        "adapter": f"adapters/{seed}",
    }  # fmt: skip


def _marked_predictions(
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


#: Of each of three bias types.
PAIRS = 30


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
    models = [backbone.name for backbone in study.backbones]
    more = {} if parameters is None else {"parameters": parameters}
    store = Store(folder)
    if not store.exists("study.yaml"):
        _begun(folder, study, **more)
    asked = pl.col("style") == "question_answer"
    higher = pl.max_horizontal("score_more", 2 * pl.col("score_less"))
    scores = pair_scores(models=models, pairs=PAIRS).with_columns(
        score_more=pl.when(asked).then(higher).otherwise("score_more"),
        preference=pl.when(asked).then(pl.lit(1, pl.Int8)).otherwise("preference"),
    )
    store.write_table("pair_scores/a/00000000.parquet", scores.to_arrow().cast(schema.PAIR_SCORES))
    said = answers().to_arrow().cast(schema.COREFERENCE_ANSWERS)
    store.write_table("coreference/a/00000000.parquet", said)
    items = scores.filter(model=models[0]).select(
        "pair_id", "bias_type", "direction", "style", sent_more=pl.lit("a"), sent_less=pl.lit("b"),
        kept=pl.lit(False), cluster="cluster",
    )  # fmt: skip
    store.write_table("items/crows_pairs.parquet", items.to_arrow().cast(schema.PAIRS))
    return store
