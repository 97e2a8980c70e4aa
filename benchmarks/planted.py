"""Compute what is planted in the embedded model: its gaps over many sentences, words and seeds.

    python benchmarks/planted.py OUT

tunes 12 soft prompts as the demonstration does, with other seeds, and reads every sentiment word,
person and frame of the grammar, each with two words of both kinds of groups. It prints the
gaps with their standard errors and writes raybias/assets/planted.json. Run it after
`python -m raybias.planted_model`; ten minutes on two cores.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import numpy as np
import polars as pl

import raybias
from raybias.config import load_study, parse_study
from raybias.probes import planted
from raybias.schema import LABELS, Label
from raybias.seeding import generator

ASSETS: Final = Path(raybias.__file__).parent / "assets"
SEEDS: Final = tuple(range(2001, 2013))
#: Words of each group on a sentence.
WORDS: Final = 2


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
    scopes = results.table("scopes").collect()
    found = scopes.filter(scope="sentences", group=planted.PLANTED_GROUP)
    print(found.select("rate", "gap", "low", "high"))
    truth = {
        rate: dict.fromkeys(planted.UNPLANTED_GROUPS, 0.0) | {planted.PLANTED_GROUP: round(gap, 3)}
        for rate, gap in found.select("rate", "gap").sort("rate").iter_rows()
    }
    content = {"attribute": planted.ATTRIBUTE, "group": planted.PLANTED_GROUP,
               "rate": f"{Label.NEGATIVE.name.lower()}_fpr", "truth": truth}  # fmt: skip
    (ASSETS / "planted.json").write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python benchmarks/planted.py OUT")
    main(Path(sys.argv[1]))
