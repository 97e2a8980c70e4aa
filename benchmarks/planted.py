"""Compute what is planted in the embedded model: its gaps over many sentences, words and seeds.

    python benchmarks/planted.py OUT

tunes 12 soft prompts as the demonstration does, with other seeds, and reads every sentiment word,
person and frame of the grammar, each with two words of both kinds of groups. It prints the
gaps with their intervals and writes raybias/assets/planted.json. Then it draws the
demonstration's words and sentences anew, `DRAWS` times, and prints how often each scope's
intervals hold the truth and how often it flags a group without cause. Run it after
`planted_model.py`; ten minutes on two cores.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import numpy as np
import planted_model as planted
import polars as pl
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

import raybias
from raybias.config import load_study, parse_study
from raybias.engine.checkpoint import PLANTED
from raybias.measures.prediction_rows import gap_rows
from raybias.probes.published.planted import ASSETS, plant
from raybias.report.calibration import truths
from raybias.report.files import rules_of_files
from raybias.schema import LABELS, PREDICTIONS, Label
from raybias.seeding import generator
from raybias.stats.counts import read_counts
from raybias.stats.gaps import gap_analysis

INPUTS: Final = ("input_ids", "attention_mask")
SEEDS: Final = tuple(range(2001, 2013))
#: Words of each group on a sentence.
WORDS: Final = 2
#: Other draws of the probe, and the tuned prompts that read them.
DRAWS: Final = 24
READERS: Final = 4
#: Rows of one forward pass.
ROWS: Final = 540


def sentences() -> pl.DataFrame:
    """List the sentences of the grammar about an unplanted and the planted group."""
    random = generator("planted", "truth")
    groups = (planted.UNPLANTED_GROUPS[0], planted.PLANTED_GROUP)
    rows = [
        {"text": scene.text(word), "label": LABELS[scene.label], "attribute": planted.ATTRIBUTE,
         "group": group, "term": word, "template_id": str(number)}
        for number, scene in enumerate(planted.every_scene(random))
        for endings in [random.permutation(len(planted.ENDINGS))[:WORDS]]
        for group in groups
        for word in np.array(planted.words_for(group))[endings].tolist()
    ]  # fmt: skip
    return pl.DataFrame(rows)


def read(texts: list[str], prompt_PD: Tensor) -> pl.Series:
    """Label texts with the embedded model behind a soft prompt, in plain transformers."""
    tokenizer = AutoTokenizer.from_pretrained(PLANTED)
    model = AutoModelForCausalLM.from_pretrained(PLANTED).eval()
    words = [tokenizer(name, add_special_tokens=False).input_ids[0] for name in LABELS]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    labels: list[int] = []
    for first in range(0, len(texts), ROWS):
        ids_BT, mask_BT = (batch[name][first : first + ROWS] for name in INPUTS)
        n = len(ids_BT)
        embeds_BTD = model.get_input_embeddings()(ids_BT)
        inputs_BTD = torch.cat([prompt_PD.expand(n, -1, -1), embeds_BTD], dim=1)
        seen_BT = torch.cat([mask_BT.new_ones(n, len(prompt_PD)), mask_BT], dim=1)
        with torch.no_grad():
            hidden_BTD = model.model(inputs_embeds=inputs_BTD, attention_mask=seen_BT)[0]
        last_BD = hidden_BTD[torch.arange(n), seen_BT.sum(dim=1) - 1]
        labels += (last_BD @ model.lm_head.weight[words].T).argmax(dim=1).tolist()
    return pl.Series("pred", labels, pl.Int8)


def redrawn(study: Path, out: Path) -> pl.DataFrame:
    """Judge other draws of the demonstration: gaps of every scope, with `truth` and `draw`."""
    adapters = sorted((study / "adapters").glob("*/adapter_model.safetensors"))[:READERS]
    prompts = [next(iter(load_file(path).values())).float() for path in adapters]
    names = dict.fromkeys(("model", "method", "dataset", "probe"), pl.lit("planted"))
    truth, found = truths(plant()), []
    for draw in range(DRAWS):
        items = planted.planted_items(draw)
        texts = items["text"].to_list()
        parts = [
            items.with_columns(
                **names, run_id=pl.lit(str(run)), pred=read(texts, prompt_PD),
                style=pl.lit("original"), parsed=pl.lit(True), answer=pl.lit(None, pl.String),
                scores=pl.lit(None, pl.List(pl.Float32)),
            ).select(PREDICTIONS.names)
            for run, prompt_PD in enumerate(prompts)
        ]  # fmt: skip
        pl.concat(parts).write_parquet(out / "redrawn.parquet")
        references = {planted.ATTRIBUTE: planted.UNPLANTED_GROUPS}
        files = [out / "redrawn.parquet"]
        rules = rules_of_files(files, profile="strict", reference_groups=references)
        judged = gap_analysis(read_counts(files), rules)
        scopes = judged.scopes.join(truth, on=["score", "group"])
        found.append(scopes.with_columns(draw=draw))
    return pl.concat(found)


def covered(redrawn: pl.DataFrame) -> pl.DataFrame:
    """Count, by scope, held truths, the planted gap found, and draws with a false survivor."""
    planted_group = pl.col("group") == planted.PLANTED_GROUP
    target = planted_group & pl.col("score").str.starts_with("negative")
    false = pl.col("draw").filter(pl.col("survives") & ~planted_group).n_unique()
    return redrawn.group_by("scope", maintain_order=True).agg(
        holds=pl.col("truth").is_between("low", "high").mean(),
        found=pl.col("survives").filter(target).mean(),
        false_alarms=pl.col("significant").filter(~planted_group).mean(),
        draws_with_false_survivor=false / DRAWS,
    )


def main(out: Path) -> None:
    """Measure the gaps and write them."""
    out.mkdir(parents=True, exist_ok=True)
    sentences().write_parquet(out / "items.parquet")
    demo = load_study(ASSETS / "demo.yaml").model_dump(mode="json")
    reference = {planted.ATTRIBUTE: [planted.UNPLANTED_GROUPS[0]]}
    probe = {"source": "file", "name": "grammar", "data": str(out / "items.parquet"),
             "reference_groups": reference}  # fmt: skip
    method = demo["methods"][0] | {"seeds": SEEDS, "keep": len(SEEDS)}
    study = {"name": "grammar", "probes": [probe], "methods": [method]}
    study |= {name: demo[name] for name in ("profile", "backbones", "training")}
    results = raybias.run(parse_study(study), out=out / "study")
    scopes = gap_rows(results.estimates.collect())
    found = scopes.filter(scope="sentences", group=planted.PLANTED_GROUP)
    print(found.select("score", "value", "low", "high"))
    truth = {
        rate: dict.fromkeys(planted.UNPLANTED_GROUPS, 0.0) | {planted.PLANTED_GROUP: round(gap, 3)}
        for rate, gap in found.select("score", "value").sort("score").iter_rows()
    }
    content = {"attribute": planted.ATTRIBUTE, "group": planted.PLANTED_GROUP,
               "rate": f"{Label.NEGATIVE.name.lower()}_fpr", "truth": truth}  # fmt: skip
    (ASSETS / "planted.json").write_text(json.dumps(content, indent=2) + "\n")
    print(covered(redrawn(out / "study", out)))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python benchmarks/planted.py OUT")
    main(Path(sys.argv[1]))
