"""Labels of a finished classifier: ours against transformers' text-classification pipeline.

The classifier is the folder `classifier` of --data, or one of MiniLM's shape with random weights.
Both sides get the same texts (`--items` neighbouring items) and give the probability of every
class. The pipeline is asked as it is by default, a text at a time, and in batches of 32.

    python -m benchmarks --only classifying --rounds 5 --items 512 --data data
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from harness import Comparison, Part, Size, measured
from workload import items, tokenizer

from raybias.config import Backbone
from raybias.engine.context import Execution
from raybias.engine.published import PublishedClassifier
from raybias.schema import LABELS

#: Width, layers and heads of all-MiniLM-L6.
SHAPE = (384, 6, 12)
BATCH = 32


def save_classifier(folder: Path, merges: Path | None) -> Path:
    """Save a BERT of random weights with a head, and a tokenizer; gives back the folder."""
    hidden, layers, heads = SHAPE
    words = tokenizer(merges)
    config = transformers.BertConfig(
        vocab_size=len(words),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * hidden,
        pad_token_id=words.pad_token_id,
        id2label=dict(enumerate(LABELS)),
        num_labels=len(LABELS),
    )
    torch.manual_seed(0)
    transformers.AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    words.model_max_length = config.max_position_embeddings
    words.save_pretrained(folder)
    return folder


def ask_pipeline(
    pipeline: Any, requests: Sequence[list[str]], batch: int, turn: int
) -> torch.Tensor:
    """Return the probability of every class [N, C], by the pipeline."""
    names = pipeline.model.config.id2label
    rows = []
    for answer in pipeline(requests[turn], batch_size=batch):
        scores = {part["label"]: part["score"] for part in answer}
        rows.append([scores[names[place]] for place in range(len(names))])
    return torch.tensor(rows)


def ask_ours(
    classifier: PublishedClassifier, requests: Sequence[list[str]], turn: int
) -> torch.Tensor:
    """Return likewise what raybias computes, tokenised in the same call."""
    rows = classifier.encoder.encode(requests[turn])
    return torch.from_numpy(classifier.outputs(rows))


def comparisons(size: Size) -> Iterator[Comparison]:
    """Compare with the pipeline by default, and in batches."""
    with tempfile.TemporaryDirectory() as place:
        own = size.folder("classifier")
        folder = own or save_classifier(Path(place), size.merges)
        texts = items(size.folder("amazon"), 10**6)
        step = max(1, (len(texts) - size.items) // max(1, size.rounds))
        requests = [texts[n * step : n * step + size.items] for n in range(size.rounds + 1)]
        pipeline = transformers.pipeline(
            "text-classification", model=str(folder), top_k=None, device=size.device
        )
        classifier = PublishedClassifier(
            Backbone(id=str(folder), dtype="float32"), Execution(device=size.device)
        )
        ask = partial(ask_pipeline, pipeline, requests)
        one, several = "pipeline, a text at a time", f"pipeline, batches of {BATCH}"
        ours = partial(ask_ours, classifier, requests)
        expected_NC, found_NC = ask(1, 0), ours(0)
        equal = int((expected_NC.argmax(-1) == found_NC.argmax(-1)).sum())
        gap = float((expected_NC - found_NC).abs().max())
        part = Part(
            title=f"labels of a finished classifier, {size.items} items",
            sides={one: partial(ask, 1), several: partial(ask, BATCH), "ours float32": ours},
            peers={"ours float32": ((one,), (several,))},
            alike={"ours float32": f"{gap:.1e}, {equal} of {len(found_NC)}"},
        )
        yield from measured(part, size)
