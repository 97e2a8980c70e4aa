"""Writes docs/plans.md: what the studies in jobs/ need on two named clusters.

    python docs/plans.py --data FOLDER --tokenizer FOLDER > docs/plans.md

The data lies as `raybias data download NAME --out FOLDER/NAME` leaves it. No model is at hand:
the architectures below are the published ones, and one tokenizer counts for all of them.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import yaml
from tabulate import tabulate
from transformers import (
    AutoConfig,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedTokenizerBase,
)

from raybias.config import Study, parse_study
from raybias.engine.memory import total
from raybias.errors import PlanError
from raybias.planning.bounds import Forecast
from raybias.planning.costs import Costs, costs_of, describe
from raybias.planning.inventory import assumed, size
from raybias.planning.plan import plan
from raybias.planning.prepared import PreparedStudy
from raybias.planning.stage_plans import Plan, Stage

JOBS: Final = ("soft_prompt", "template_probes", "style")
#: The backbone whose arithmetic is shown whole.
SHOWN: Final = "opt-13b"
CLUSTERS: Final = {
    "4 x 80 GB": "cpus=48,memory=680GiB,gpus=4,gpu_memory=80GB,gpu=A100",
    "8 x 24 GB": "nodes=2,cpus=48,memory=192GiB,gpus=4,gpu_memory=24GB,gpu=A10G",
}
#: The backbones whose layouts are shown on several clusters.
LARGE: Final = ("opt-13b", "llama-70b")
LARGE_ON: Final = {
    "1 x 80 GB": "cpus=48,memory=680GiB,gpus=1,gpu_memory=80GB,gpu=A100",
    **CLUSTERS,
    "8 x 80 GB": "cpus=96,memory=1360GiB,gpus=8,gpu_memory=80GB,gpu=A100",
}


def opt(width: int, layers: int, heads: int, **more: Any) -> PretrainedConfig:
    """OPT's architecture (Zhang et al. 2022)."""
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    more = {"word_embed_proj_dim": width, **more}
    return AutoConfig.for_model("opt", vocab_size=50272, ffn_dim=4 * width, **sizes, **more)


def gated(kind: str, width: int, layers: int, heads: int, **more: Any) -> PretrainedConfig:
    """Configure a decoder with gated blocks: Llama and its kin."""
    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    return AutoConfig.for_model(kind, **sizes, **{"num_key_value_heads": heads, **more})


def roberta(width: int, layers: int, heads: int) -> PretrainedConfig:
    """RoBERTa's architecture (Liu et al. 2019)."""
    return AutoConfig.for_model(
        "roberta",
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        vocab_size=50265,
        max_position_embeddings=514,
        type_vocab_size=1,
        num_labels=2,
    )


def t5_base() -> PretrainedConfig:
    """T5's base architecture (Raffel et al. 2020), which Styleformer's checkpoints have."""
    return AutoConfig.for_model(
        "t5",
        vocab_size=32128,
        d_model=768,
        d_kv=64,
        d_ff=3072,
        num_layers=12,
        num_heads=12,
        pad_token_id=0,
        eos_token_id=1,
        decoder_start_token_id=0,
    )


def architectures() -> dict[str, PretrainedConfig]:
    """Return the configuration of every model of the studies, by its name."""
    old = {"vocab_size": 32000, "max_position_embeddings": 2048}
    second = {"vocab_size": 32000, "max_position_embeddings": 4096}
    small, large = {"intermediate_size": 11008}, {"intermediate_size": 13824}
    eighth = {"intermediate_size": 14336, "num_key_value_heads": 8}
    llama_3 = gated("llama", 4096, 32, 32, vocab_size=128256, **eighth)
    return {
        "roberta-base": roberta(768, 12, 12),
        "roberta-large": roberta(1024, 24, 16),
        "parrot_adequacy_model": roberta(1024, 24, 16),
        "informal_to_formal_styletransfer": t5_base(),
        "formal_to_informal_styletransfer": t5_base(),
        "gpt2": AutoConfig.for_model("gpt2"),
        "opt-125m": opt(768, 12, 12),
        "opt-350m": opt(1024, 24, 16, word_embed_proj_dim=512, do_layer_norm_before=False),
        "opt-1.3b": opt(2048, 24, 32),
        "opt-2.7b": opt(2560, 32, 32),
        "opt-6.7b": opt(4096, 32, 32),
        "opt-13b": opt(5120, 40, 40),
        "llama-70b": gated(
            "llama", 8192, 80, 64, **second, intermediate_size=28672, num_key_value_heads=8
        ),
        "llama-7b": gated("llama", 4096, 32, 32, **old, **small),
        "llama-13b": gated("llama", 5120, 40, 40, **old, **large),
        **dict.fromkeys(
            ["Llama-2-7b-hf", "Llama-2-7b-chat-hf"], gated("llama", 4096, 32, 32, **second, **small)
        ),
        **dict.fromkeys(
            ["Llama-2-13b-hf", "Llama-2-13b-chat-hf"],
            gated("llama", 5120, 40, 40, **second, **large),
        ),
        **dict.fromkeys(["Meta-Llama-3-8B", "Llama-3.1-8B-Instruct"], llama_3),
        "Mistral-7B-v0.1": gated("mistral", 4096, 32, 32, vocab_size=32000, **eighth),
        "gemma-7b-it": gated(
            "gemma", 3072, 28, 16, vocab_size=256000, intermediate_size=24576, head_dim=256
        ),
        "Qwen2.5-7B-Instruct": gated(
            "qwen2", 3584, 28, 28, vocab_size=152064, intermediate_size=18944, num_key_value_heads=4
        ),
    }


def local_study(job: str, data: Path, models: Path) -> tuple[Study, list[str]]:
    """Load a job's study with its models and data taken from folders, and what stands for what."""
    path = Path(__file__).parents[1] / "jobs" / f"{job}.yaml"
    content: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))
    notes = []
    for backbone in content["backbones"]:
        backbone["name"] = backbone["id"].rpartition("/")[2]
    with_local_models(content, models)
    for part in ("training", "probes", "pairs"):
        for section in content.get(part, []):
            source = section["source"]
            section["data"] = str(data / source)
            if not (data / source).exists():
                section |= {"source": "sst5", "name": source, "data": str(data / "sst5")}
                notes.append(f"{source} is counted with the rows and lengths of sst5.")
    return parse_study(content, where=str(path)), notes


def with_local_models(content: dict[str, Any], models: Path) -> None:
    """Replace the ids of all models of a study file with folders of the same names in `models`."""
    named = [(backbone, "id") for backbone in content["backbones"]]
    named += [(method["judge"], "model") for method in content["methods"] if "judge" in method]
    for rewriting in content.get("styles", {}).get("rewriting", {}).values():
        named += [(rewriting, "model"), (rewriting["adequacy"], "model")]
    for section, key in named:
        section[key] = str(models / section[key].rpartition("/")[2])


def summary(made: Plan, costs: Costs) -> str:
    """One row per stage."""
    rows = []
    stages: list[tuple[Stage, str]] = [(each, each.training) for each in made.tuning]
    for stage, training in [*stages, *((each, "") for each in made.scoring)]:
        cost = costs[stage.backbone, stage.method, training]
        workers = getattr(stage, "workers", None) or getattr(stage, "replicas_max", 0)
        rows.append(
            (
                f"tune on {training}" if training else "read",
                stage.backbone,
                stage.method,
                f"{workers} x {stage.gpus}" + (" sharing it" if stage.sharded else ""),
                f"{stage.layout.tokens:,}",
                f"{size(total(stage.memory))} of {size(stage.device_memory)}",
                f"{cost.flops / 1e15:,.3g}",
                f"{cost.hours:,.2f}",
                f"{cost.gathered / 1e12:,.3g}" if cost.gathered else "",
            )
        )
    rewriting = [
        (
            f"rewrite as {stage.style}",
            stage.backbone,
            stage.method,
            f"{stage.replicas_max} x {stage.gpus}",
            f"{stage.layout.tokens:,}",
            f"{size(total(stage.memory))} of {size(stage.device_memory)}",
            *("", "", ""),
        )
        for stage in made.rewriting
    ]
    heads = ("stage", "backbone", "method", "workers x GPUs", "tokens a pass")
    more = ("memory of one GPU", "PFLOP", "GPU-hours", "TB gathered")
    return tabulate([*rewriting, *rows], [*heads, *more], tablefmt="pipe", disable_numparse=True)


def page(data: Path, models: Path) -> str:
    """All of docs/plans.md."""
    peaks = "312 TFLOP/s for an A100, 70 for an A10G"
    parts = [
        "# What the studies need",
        "Made by `docs/plans.py`; nothing here was run on a GPU. Hours reckon with the cost curve"
        f" of `planning/machine.py` over the makers' dense 16-bit peak ({peaks}) and memory"
        " bandwidth; `--peak-tflops` and `--utilisation` of `raybias plan` change that. Memory and"
        " work are upper estimates from the published architectures, tokens are those of OPT's"
        " tokenizer for all models.",
    ]
    parts += ["## 13B and 70B by cluster", *layouts(data, models)]
    for job in JOBS:
        study, notes = local_study(job, data, models)
        prepared = PreparedStudy.of(study)
        for cluster, nodes in CLUSTERS.items():
            parts += [
                f"## {job} on {cluster}",
                f"    raybias plan jobs/{job}.yaml --assume {nodes}",
            ]
            try:
                made = plan(prepared, assumed(nodes))
            except PlanError as error:
                parts.append(f"Refused: {error}")
                continue
            costs = costs_of(made)
            parts += [*notes, summary(made, costs)]
            gathered = sum(cost.gathered for cost in costs.values())
            hours = sum(cost.hours for cost in costs.values())
            parts.append(
                f"Together at most {hours:,.0f} GPU-hours and {gathered / 1e12:,.0f} TB gathered."
            )
            parts += [f"How {SHOWN} comes about:", arithmetic(made, costs)]
    return "\n\n".join(parts)


def layouts(data: Path, models: Path) -> list[str]:
    """Show how each large backbone is held on each cluster, where it is tuned on one set."""
    rows = []
    study, _ = local_study("soft_prompt", data, models)
    for name in LARGE:
        backbone = study.backbones[0].model_copy(update={"name": name, "id": str(models / name)})
        training = [each for each in study.training if each.source == "sst5"][-1:]
        alone = study.model_copy(update={"backbones": (backbone,), "training": tuple(training)})
        prepared = PreparedStudy.of(alone)
        for cluster, nodes in LARGE_ON.items():
            try:
                made = plan(prepared, assumed(nodes))
            except PlanError as error:
                rows.append((name, cluster, "", f"refused: {error}", "", ""))
                continue
            (tuned,) = made.tuning
            walls = Forecast.of(made)
            rows.append(
                (
                    name,
                    cluster,
                    f"{sum(tuned.packs.values())} packs of {tuned.pack},"
                    f" {tuned.workers} x {tuned.gpus} GPUs",
                    tuned.reason,
                    str(walls.planned),
                    str(walls.latest),
                )
            )
    heads = ("backbone", "cluster", "tuning", "how each worker holds it", "wall time, early stops")
    return [
        "`soft_prompt` of one backbone on sst5, and reading the Amazon probe with the runs kept:",
        tabulate(rows, [*heads, "to the last step"], tablefmt="pipe", disable_numparse=True),
    ]


def arithmetic(made: Plan, costs: Costs) -> str:
    """Return what `raybias plan` prints of one backbone."""
    own = replace(
        made,
        tuning=tuple(each for each in made.tuning if each.backbone == SHOWN),
        scoring=tuple(each for each in made.scoring if each.backbone == SHOWN),
    )
    stages = {key: cost for key, cost in costs.items() if key[0] == SHOWN}
    return f"```text\n{describe(own, stages)}\n```"


def write_models(
    folder: Path, words: PreTrainedTokenizerBase, configs: Mapping[str, PretrainedConfig]
) -> None:
    """Folders with config.json and the tokenizer, as `raybias plan` reads them."""
    for name, config in configs.items():
        # One tokenizer counts for all, so all have a row for each of its tokens.
        config.vocab_size = max(config.vocab_size, len(words))
        config.save_pretrained(folder / name)
        words.save_pretrained(folder / name)


def main() -> None:
    """Print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        words = AutoTokenizer.from_pretrained(options.tokenizer)
        write_models(Path(folder), words, architectures())
        print(page(options.data, Path(folder)))


if __name__ == "__main__":
    main()
