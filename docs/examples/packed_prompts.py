"""Tune four soft prompts of one frozen model in the same passes, and print how well each labels.

python docs/examples/packed_prompts.py OUT
"""

import sys

import raybias

study = raybias.Study(
    name="prompts",
    backbones=[raybias.Backbone(id="planted")],  # a hub id or a folder
    training=[raybias.TrainingSet(source="planted")],  # or sst5 with its folder as `data`
    methods=[raybias.SoftPrompt(seeds=[1, 2, 3, 4], keep=2, max_steps=100, eval_every=25)],
    probes=[raybias.Probe(source="planted")],
    limit=300,  # sentences of the probe; all without it
)
results = raybias.run(study, out=sys.argv[1], address="none")
runs = results.runs.select("seed", "steps", "validation_accuracy", "selected").collect()
print(runs)
