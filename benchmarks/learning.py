"""What tuning teaches a model: loss and accuracy by step, those of the untuned classifier first.

Runs of several learning rates and seeds are one pack in this process; each is evaluated on the same
sentences of SST-5's validation split.

    python benchmarks/learning.py .real/smollm2 --sst5 data/sst5 --kind lora --rates 1e-4,5e-4
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import polars as pl
import torch
import typer

from raybias.config import Backbone, TrainingSet
from raybias.engine.adapters.tuning import PackedTuner, TokenSet, Trial
from raybias.engine.backbone import ModelContext
from raybias.engine.context import Execution
from raybias.methods import Tuned
from raybias.methods.base import methods
from raybias.probes.registries import training_sets
from raybias.schema import LABELS

_SEED = 5


def main(
    model: Annotated[str, typer.Argument(help="Folder or hub id of a model.")],
    sst5: Annotated[Path, typer.Option(help="Folder of SST-5.")],
    kind: Annotated[str, typer.Option(help="Kind of method: soft_prompt, lora, full.")],
    rates: Annotated[str, typer.Option(help="Learning rates, with commas between them.")],
    seeds: Annotated[str, typer.Option(help="Seeds, with commas between them.")] = "1001",
    steps: Annotated[int, typer.Option(help="Steps of each run.")] = 100,
    every: Annotated[int, typer.Option(help="Steps between evaluations.")] = 50,
    rows: Annotated[int, typer.Option(help="Validation sentences, the same in each.")] = 200,
    dtype: Annotated[str, typer.Option(help="Of the frozen weights.")] = "bfloat16",
    threads: Annotated[int, typer.Option(help="CPUs to compute on.")] = 1,
) -> None:
    """Tune a pack and print each evaluation."""
    torch.set_num_threads(threads)
    given = {"max_steps": steps, "eval_every": every, "keep": 1}
    method = methods[kind].under("strict", **given, seeds=[int(each) for each in seeds.split(",")])
    if not isinstance(method, Tuned):
        raise typer.BadParameter(f"{kind} tunes nothing")
    spec = Backbone(id=model, dtype=dtype)
    trainer = method.trainer(ModelContext(spec, LABELS, Execution(threads=threads)))
    splits = training_sets["sst5"](TrainingSet(source="sst5", data=str(sst5)))

    def tokens(frame: pl.DataFrame) -> TokenSet:
        encoded = method.encode(trainer.encoder, frame["text"].to_list())
        return TokenSet(tuple(map(tuple, encoded)), tuple(frame["label"].to_list()))

    validation = splits["validation"].sample(rows, seed=_SEED, shuffle=True)
    commonest = max(validation["label"].to_list().count(label) for label in range(len(LABELS)))
    print(f"{rows} sentences, the commonest label's share {commonest / rows:.3f}")
    window = method.early_stop.window
    trials = [
        Trial(f"{rate:g}, {seed}", seed, rate, "final", method.weight_decay, window)
        for rate in map(float, rates.split(","))
        for seed in method.seeds
    ]
    pack = PackedTuner(
        trainer, method.recipe, trials, train=tokens(splits["train"]), validation=tokens(validation)
    )
    print("| rate, seed | step | loss | accuracy | seconds |\n| --- | --- | --- | --- | --- |")
    begun = time.perf_counter()
    while evaluations := pack.advance():
        for each in evaluations:
            passed = time.perf_counter() - begun
            print(
                f"| {each.run_id} | {each.step} | {each.loss:.3f} | {each.accuracy:.3f} |"
                f" {passed:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    typer.run(main)
