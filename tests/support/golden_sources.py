"""The sources of tests/golden.py: each gives tables by name, part after part."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import polars as pl
import transformers
import yaml

import raybias
from benchmarks.printed_tables import check_published, read_tables, trends
from raybias import schema
from raybias.config import PairProbe, Probe, QuestionProbe, TrainingSet, load_study, parse_study
from raybias.errors import PlanError
from raybias.planning.inventory import assumed
from raybias.planning.plan import plan
from raybias.planning.prepared import PreparedStudy
from raybias.planning.stage_plans import TunePlan
from raybias.probes import question_items, training_sentences
from support import prompting, question_data, studies
from support.answer_data import questions
from support.documents import ROOT
from support.pair_data import answers, pair_scores
from support.report_outs import (
    make_study,
    marked_study,
    pair_study,
    write_marked,
    write_out,
    write_pair_out,
)
from support.stats_data import predictions, prompted

Tables = dict[str, pl.DataFrame]

SHARED: Final = Path(os.environ.get("RAYBIAS_SHARED", ROOT.parent / "shared"))
#: What plans are made for.
CLUSTERS: Final = {
    "4 x 80 GB": "cpus=48,memory=680GiB,gpus=4,gpu_memory=80GB,gpu=A100",
    "8 x 24 GB": "nodes=2,cpus=48,memory=192GiB,gpus=4,gpu_memory=24GB,gpu=A10G",
    "CPUs": "cpus=32,memory=128GiB",
}
#: Folders of an OUT with what a model makes of items.
ANSWERS: Final = ("predictions", "pair_scores", "coreference", *question_data.FOLDERS)


def written(out: raybias.Results) -> Tables:
    """The tables of an OUT."""
    return {name: out.table(name).collect() for name in out.tables}


def finished(out: raybias.Results) -> Tables:
    """The tables, runs, answers and items of an OUT."""
    places = sorted(Path(out.out).glob("items/*.parquet"))
    found = {**written(out), "items": hashed({f.stem: pl.read_parquet(f) for f in places})}
    if (runs := out.runs.collect()).height:
        found["runs"] = runs
    for folder in ANSWERS:
        if files := sorted((Path(out.out) / folder).rglob("*.parquet")):
            found[f"answers: {folder}"] = pl.concat(map(pl.read_parquet, files))
    return found


def of_studies(folder: Path) -> Iterator[tuple[str, Tables]]:
    """A tiny study of every kind of method on random models, without Ray."""
    makes = {
        "labels": studies.save,
        "pairs": studies.pairs,
        "questions": studies.questions,
        "judged": studies.judged,
    }
    for name, make in makes.items():
        (place := folder / name).mkdir()
        out = raybias.run(load_study(str(make(place))), out=place / "out", address="none")
        if name == "judged":
            sheet = raybias.judge_sheet(out.out, place / "sheet.csv", of_group=20)
            said = pl.Series([schema.LABELS[n % 3] for n in range(sheet.height)])
            sheet.with_columns(label=said).write_csv(place / "sheet.csv")
            out = raybias.judge_labels(out.out, place / "sheet.csv")
        yield name, finished(out)


def of_demo(folder: Path) -> Iterator[tuple[str, Tables]]:
    """The embedded calibration, without its answers to 3,240 items, and its plan.

    Its designs are left out too: they are priced in the device-hours that it took.
    """
    found = written(raybias.demo(folder / "demo", address="none"))
    yield "demo", {name: frame for name, frame in found.items() if name != "design"}
    prepared = PreparedStudy.of(load_study(str(ROOT / "jobs/demo.yaml")))
    for cluster, nodes in CLUSTERS.items():
        yield f"plan on {cluster}", planned(prepared, nodes)


def of_made_up(folder: Path) -> Iterator[tuple[str, Tables]]:
    """Tables of finished OUTs with made-up answers: gaps, markedness, pairs."""
    few = make_study(("one", "two"), methods=[{"kind": "soft_prompt", "seeds": [1, 2, 3, 4],
                                               "keep": 3}])  # fmt: skip
    write_out(folder / "gaps", few)
    yield "gaps", written(raybias.write_report(folder / "gaps"))
    yield "gaps, paper", written(raybias.write_report(folder / "gaps", profile="paper"))
    yield "gaps, design", {"design": raybias.design([folder / "gaps"])}
    write_marked(folder / "marked", marked_study())
    yield "marked", written(raybias.write_report(folder / "marked"))
    write_pair_out(folder / "pairs", pair_study(("toy-1M", "toy-2M")))
    yield "pairs", written(raybias.write_report(folder / "pairs"))
    yield "files", made_up_files(folder)


def made_up_files(folder: Path) -> Tables:
    """What `gaps`, `metrics`, `measure` and `compare` say of files of one's own."""
    own = pl.DataFrame(
        [(n % 2, "abc"[n % 3], f"t{n // 6}", (7 * n % 31 + 9 * (n % 2)) / 40) for n in range(90)],
        schema=["label", "group", "template_id", "score"], orient="row",
    ).with_columns(pred=(pl.col("score") >= 0.5).cast(pl.Int16))  # fmt: skip
    own.write_csv(folder / "own.csv")
    files = {
        "labels": predictions(seed=1, terms=True, templates=12),
        "extras": predictions(seed=3, terms=True, extras=True),
        "prompted": prompted(seed=4),
        "pairs": pair_scores(models=("one", "two"), pairs=30, clusters=3),
        "coreference": answers(),
    }
    for name, frame in files.items():
        frame.write_parquet(folder / f"{name}.parquet")
    at = {name: folder / f"{name}.parquet" for name in files}
    found = {"metrics: estimates": raybias.measure(folder / "own.csv", metric=["all"])}
    for name in ("extras", "prompted"):
        found[f"gaps of {name}: estimates"] = raybias.measure(at[name], profile="strict")
    pairs = raybias.measure([at["coreference"], at["pairs"]], profile="paper")
    found["pairs, paper: estimates"] = pairs
    for name, arms in {"labels": ("m0", "m1"), "pairs": ("one", "two")}.items():
        base, candidate = ({"model": arm} for arm in arms)
        one = raybias.compare(at[name], at[name], base_is=base, candidate_is=candidate)
        found |= {f"compare {name}: changes": one.changes, f"compare {name}: answers": one.answers}
    return found


def printed() -> Tables:
    """The printed tables of Zhao2025, judged by themselves."""
    tables = read_tables(SHARED / "paper_tables")
    checks, rows = check_published(tables)
    more = {"published_checks": checks, "published_size": trends(tables["tables8_9"])}
    return {**rows, **more}


def of_foreign(folder: Path) -> Iterator[tuple[str, Tables]]:
    """Logs that lm-eval, inspect and HELM wrote of made-up questions."""
    logs = ROOT / "tests/support/foreign"
    items = folder / "Age.jsonl"
    items.write_text("\n".join(map(json.dumps, questions())))
    for name, file, asked in (
        ("lm_eval", "samples_bbq.jsonl.gz", None), ("inspect", "inspect_bbq.json.gz", None),
        ("helm", "scenario_state.json.gz", items),
        ("lm_eval pairs", "samples_crows_pairs_english.jsonl.gz", None),
    ):  # fmt: skip
        yield name, {"estimates": raybias.measure([logs / file], items=asked)}


def of_published(folder: Path) -> Iterator[tuple[str, Tables]]:
    """Published predictions and printed tables: Regard, BBQ, StereoSet, Zhao2025."""
    data = SHARED / "data"
    regard = sorted(map(str, (data / "regard_published").glob("*.tsv.gz")))
    for profile in ("paper", "strict"):
        yield f"regard, {profile}", {"estimates": raybias.measure(regard, profile=profile)}
    yield "regard, design", {"design": raybias.design(regard)}
    one, other = (next(f for f in regard if name in f) for name in ("opt-125m", "opt-350m"))
    for scope, interval in product(("runs", "sentences", "wording"), ("normal", "t", "bootstrap")):
        if (scope, interval) != ("wording", "bootstrap"):
            found = raybias.measure(one, scope=scope, interval=interval, margin=0.03)
            yield f"regard, {scope}, {interval}", {"estimates": found}
    yield "regard, metrics", {"estimates": raybias.measure(one, metric=["all"])}
    compared = raybias.compare(one, other)
    yield "regard, compare", {"changes": compared.changes, "answers": compared.answers}
    yield "bbq", {"estimates": raybias.measure(sorted((data / "bbq").glob("*.jsonl.gz")))}
    stereoset = data / "stereoset"
    scored = sorted(stereoset.glob("predictions_*.json.gz"))
    yield "stereoset", {"estimates": raybias.measure(scored, items=stereoset / "race.json.gz")}
    yield "zhao2025", printed()


def of_items(_: Path) -> Iterator[tuple[str, Tables]]:
    """Items of every public data set, as hashes."""
    data = SHARED / "data"
    places = {"amazon": "amazon_templates", "regard": "regard", "ns_prompts": "ns_prompts"}
    frames = {
        name: raybias.probe_items(Probe(source=name, data=str(data / place), unmarked=True))
        for name, place in places.items()
    }
    styles = ("original", "prefix_1", "prefix_2", "prefix_3", "evidential", "question_answer")
    for source, more in (("crows_pairs", ("punctuation",)), ("winobias", ())):
        probe = PairProbe(source=source, data=str(data / source))
        frames[source] = raybias.pair_items(probe, (*styles, *more))
    for source, file in (("bbq", "preds_Age.jsonl.gz"), ("stereoset", "race.json.gz")):
        asked = QuestionProbe(source=source, data=str(data / source / file))
        frames[source] = question_items(asked)
    splits = training_sentences(TrainingSet(source="sst5", data=str(data / "sst5")))
    frames |= {f"sst5 {split}": frame for split, frame in splits.items()}
    yield "items", {"items": hashed(frames)}


def hashed(frames: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """The number of rows and a hash of each column of tables of items."""
    rows = []
    for probe, frame in frames.items():
        for column in frame:
            text = json.dumps(column.to_list()).encode()
            digest = hashlib.blake2b(text, digest_size=8).hexdigest()
            rows.append({"probe": probe, "name": column.name, "rows": len(column), "hash": digest})
    return pl.DataFrame(rows)


def of_plans(folder: Path) -> Iterator[tuple[str, Tables]]:
    """Memory and layout of the studies in jobs/, on clusters with GPUs and without.

    Architectures are the published ones; one small tokenizer counts for all.
    """
    plans = plans_module()
    models, data = folder / "models", folder / "data"
    words = transformers.AutoTokenizer.from_pretrained(prompting.save("opt", folder / "words"))
    configs = plans.architectures()
    configs["all-MiniLM-L6-v2"] = transformers.AutoConfig.for_model(
        "bert", hidden_size=384, num_hidden_layers=6, intermediate_size=1536
    )
    configs["smollm2"] = plans.gated("llama", 576, 30, 9, vocab_size=49152, intermediate_size=1536,
                                     num_key_value_heads=3, tie_word_embeddings=True)  # fmt: skip
    kinds = ("negative", "neutral", "positive", "other")
    configs["regardv3"] = transformers.AutoConfig.for_model("bert", id2label=dict(enumerate(kinds)))
    plans.write_models(models, words, configs)
    data.mkdir()
    for place in (SHARED / "data").iterdir():
        (data / place.name.replace("amazon_templates", "amazon")).symlink_to(place)
    (data / "semeval2018").symlink_to(SHARED / "data/sst5")
    (data / "bold").mkdir()
    for kind in ("gender", "race"):
        rows = {f"{n}": {f"{p}": [f"Person {p} is a writer who "] for p in range(40)} for n in "ab"}
        (data / "bold" / f"{kind}_prompt.json").write_text(json.dumps(rows))
    for path in sorted({*(ROOT / "jobs").glob("*.yaml")} - {ROOT / "jobs/demo.yaml"}):
        prepared = PreparedStudy.of(parse_study(local_job(path, models, data), where=str(path)))
        for cluster, nodes in CLUSTERS.items():
            yield f"{path.stem} on {cluster}", planned(prepared, nodes)


def plans_module() -> ModuleType:
    """The script docs/plans.py, which knows the architectures of the studies in jobs/."""
    sys.path.append(str(ROOT / "docs"))
    import plans

    return plans


def local_job(path: Path, models: Path, data: Path) -> dict[str, Any]:
    """A study file's content, with its models and data in local folders."""
    content: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    content.pop("answers", None)
    for backbone in content["backbones"]:
        backbone.setdefault("name", backbone["id"].rpartition("/")[2])
    plans_module().with_local_models(content, models)
    for part in ("training", "probes", "pairs", "questions"):
        for section in content.get(part, []):
            if section["source"] == "semeval2018":
                section |= {"source": "sst5", "name": "semeval2018"}
            section["data"] = section["data"].replace("data/", f"{data}/", 1)
    return content


def planned(prepared: PreparedStudy, nodes: str) -> Tables:
    try:
        made = plan(prepared, assumed(nodes), skip_unfit=True)
    except PlanError as error:
        return {"refused": pl.DataFrame({"verdict": [type(error).__name__], "rows": [1]})}
    memory, layout = [], []
    for stage in (*made.tuning, *made.scoring):
        names = {"backbone": stage.backbone, "method": stage.method,
                 "training": getattr(stage, "training", "")}  # fmt: skip
        parts = {"device": stage.memory, "host": stage.host}
        memory += [{**names, "of": of, "what": term.what, "bytes": term.bytes}
                   for of, terms in parts.items() for term in terms]  # fmt: skip
        numbers = {name: float(value) for name, value in vars(stage).items()
                   if isinstance(value, int | float)}  # fmt: skip
        held = {"tokens_per_batch": stage.layout.tokens, "passes": stage.layout.passes,
                "across": stage.layout.across, "sharded": stage.sharded,
                "gpus": stage.gpus, "threads": stage.need.cpus}  # fmt: skip
        if isinstance(stage, TunePlan):
            held |= {"sweep_units": stage.work.sweep, "final_units": stage.work.final}
            held |= {f"{name}_packs": count for name, count in stage.packs.items()}
        else:
            held["shards"] = stage.shards
        numbers |= {name: float(value) for name, value in held.items()}
        layout.append({**names, **numbers})
    unfit = [{"backbone": one, "method": method, "unfit": 1} for one, method in made.unfit]
    found = {"memory": memory, "layout": layout, "unfit": unfit}
    return {name: pl.DataFrame(rows, infer_schema_length=None) for name, rows in found.items()}


@dataclass(frozen=True)
class Source:
    """Tables of one kind, and how exactly they must be found again."""

    tables: Callable[[Path], Iterator[tuple[str, Tables]]]
    tolerance: float = 1e-9
    """Relative; what a model computes is rounded differently by other CPUs."""
    needs_shared: bool = False


SOURCES: Final[Mapping[str, Source]] = {
    "studies": Source(of_studies, 1e-4),
    "demo": Source(of_demo, 1e-4),
    "made_up": Source(of_made_up),
    "foreign": Source(of_foreign),
    "published": Source(of_published, needs_shared=True),
    "items": Source(of_items, needs_shared=True),
    "plans": Source(of_plans, needs_shared=True),
}


def skipped(name: str) -> str:
    """Why a source cannot be computed here; empty where it can."""
    missing = SOURCES[name].needs_shared and not (SHARED / "data").is_dir()
    return f"the published data is not at {SHARED}; set RAYBIAS_SHARED" if missing else ""
