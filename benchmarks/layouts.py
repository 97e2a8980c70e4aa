"""What the planner chooses for backbones larger than a device, from their shapes alone.

Soft prompts on SST-5 (a sweep of three, fifteen seeds, 50,000 steps at most) with OPT-13B and with
Llama-2-70B's shape, on clusters from one GPU to eight; config.json and a tokenizer, no weights. For
each cluster: what is chosen, a step by its parts, bounds of the wall time to the last step, and the
same with ZeRO-3.

    python benchmarks/layouts.py --sst5 FOLDER --tokenizer FOLDER
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
import workload

from raybias.config import parse_study
from raybias.errors import PlanError
from raybias.planning.bounds import Forecast
from raybias.planning.inventory import assumed
from raybias.planning.plan import plan
from raybias.planning.prepared import PreparedStudy

sys.path.append(str(Path(__file__).parents[1] / "docs"))
import plans  # type: ignore[import-not-found]

CLUSTERS = {
    "1 x 80 GB": "cpus=16,memory=900GiB,gpus=1,gpu_memory=80GB,gpu=A100",
    "4 x 80 GB": "cpus=48,memory=900GiB,gpus=4,gpu_memory=80GB,gpu=A100",
    "8 x 24 GB, two nodes": "nodes=2,cpus=48,memory=900GiB,gpus=4,gpu_memory=24GB,gpu=A10G",
    "8 x 80 GB": "cpus=96,memory=1800GiB,gpus=8,gpu_memory=80GB,gpu=A100",
}


def prepared_study(models: Path, sst5: Path, model: str) -> PreparedStudy:
    """Soft prompts on SST-5 with one backbone."""
    method = {"max_steps": 50_000, "learning_rates": [1e-2, 1e-3, 1e-4]}
    study = parse_study(
        {
            "name": "layouts",
            "backbones": [{"id": str(models / model), "dtype": "bfloat16"}],
            "methods": [method],
            "training": [{"source": "sst5", "data": str(sst5)}],
            "probes": [{"source": "amazon", "data": str(sst5.parent / "amazon")}],
            "resources": {"tokens_per_batch": 16384},
        }
    )
    return PreparedStudy.of(study)


def row(whole: PreparedStudy, cluster: str, nodes: str, shard: str) -> list[str]:
    """One plan as a row."""
    model = whole.study.backbones[0].name
    resources = whole.study.resources.model_copy(update={"shard": shard})
    prepared = whole.with_study(whole.study.model_copy(update={"resources": resources}))
    begun = time.perf_counter()
    try:
        made = plan(prepared, assumed(nodes))
    except PlanError as error:
        took = time.perf_counter() - begun
        return [cluster, model, shard, f"refused: {error.problem}; {error.cure}", "", "",
                f"{took:.1f} s"]  # fmt: skip
    forecast = Forecast.of(prepared, made)
    took = time.perf_counter() - begun
    stage = made.tuning[0]
    work = made.works.tuning[stage.backbone, stage.training, stage.method]
    parts = work.step_parts(stage.speed, stage.layout, stage.pack)
    how = f"{stage.workers} workers of {stage.gpus} GPU" if not stage.sharded else "ZeRO-3"
    packs = f", {stage.sweep_packs} + {stage.final_packs} packs of up to {stage.pack}"
    step = ", ".join(f"{what} {1e3 * each:,.0f} ms" for what, each in parts.items())
    return [cluster, model, shard, how + packs, step, str(forecast.latest),
            f"{took:.1f} s"]  # fmt: skip


def main(
    sst5: Annotated[Path, typer.Option(help="Folder with SST-5's files, beside one of amazon.")],
    tokenizer: Annotated[Path, typer.Option(help="Folder with vocab.json and merges.txt.")],
    out: workload.OutOption = None,
) -> None:
    """Print the choices."""
    known = plans.architectures()
    wide = {"vocab_size": 32000, "intermediate_size": 28672, "num_key_value_heads": 8}
    configs = {"opt-13b": known["opt-13b"], "llama-70b": plans.gated("llama", 8192, 80, 64, **wide)}
    with tempfile.TemporaryDirectory() as folder:
        plans.write_models(Path(folder), workload.tokenizer(tokenizer), configs)
        rows = [
            tuple(row(prepared, cluster, nodes, shard))
            for prepared in (prepared_study(Path(folder), sst5, model) for model in configs)
            for cluster, nodes in CLUSTERS.items()
            for shard in ("auto", "zero3")
        ]
    heads = (
        "cluster",
        "backbone",
        "shard",
        "chosen",
        "a step",
        "to the last step",
        "planned in",
    )
    workload.publish(
        "Backbones larger than a device", [workload.markdown(rows, heads)],
        device="cpu", peer="ray", out=out,
    )  # fmt: skip


if __name__ == "__main__":
    typer.run(main)
