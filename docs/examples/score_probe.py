"""Read sentences of your own with a model, without tuning, and count the labels of every group.

    python docs/examples/score_probe.py sentences.csv OUT

sentences.csv has the columns text, label (0 negative, 1 neutral, 2 positive), attribute and group.
"""

import sys

import raybias

study = raybias.Study(
    name="own-sentences",
    backbones=[raybias.Backbone(id="planted")],  # a hub id or a folder
    methods=[raybias.ZeroShot(read="likelihood")],
    probes=[raybias.Probe(source="file", data=sys.argv[1])],
)
results = raybias.run(study, out=sys.argv[2], address="none")
print(results.accuracy.select("model", "attribute", "value", "low", "high").collect())
labels = results.predictions.group_by("group", "pred").len().sort("group", "pred")
print(labels.collect())
