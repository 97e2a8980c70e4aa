"""What is made of sentences: tuned runs, predictions and answers, and when the work was done."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pyarrow as pa

from raybias.schema.cells import KEYS

#: One row per tuned seed. `stage` is "sweep" or "final"; `stop_reason` is
#: "early_stop", "max_steps" or "diverged"; `rank` is the place by validation
#: accuracy among the finished final runs (1 is best), `tied` says that the
#: lower seed decided it. `eval_losses` and `eval_accuracies` begin with step 0, whose accuracy is
#: `untuned_accuracy`: that of the same classifier before it is tuned. What belongs to tuning is
#: null in a prompted run, and `steps` 0.
RUNS: Final = pa.schema(
    [
        ("run_id", pa.string()),
        ("model", pa.string()),
        ("method", pa.string()),
        ("dataset", pa.string()),
        ("seed", pa.int64()),
        ("learning_rate", pa.float64()),
        ("weight_decay", pa.float64()),
        ("stop_window", pa.int32()),
        ("stage", pa.string()),
        ("steps", pa.int64()),
        ("weights_step", pa.int64()),
        ("stop_reason", pa.string()),
        ("validation_loss", pa.float64()),
        ("validation_accuracy", pa.float64()),
        ("untuned_accuracy", pa.float64()),
        ("test_accuracy", pa.float64()),
        ("selected", pa.bool_()),
        ("rank", pa.int32()),
        ("tied", pa.bool_()),
        ("eval_losses", pa.list_(pa.float64())),
        ("eval_accuracies", pa.list_(pa.float64())),
        ("tokens", pa.int64()),
        ("seconds", pa.float64()),
        ("verbalizer_ids", pa.list_(pa.int32())),
        ("prompt_token_id", pa.int32()),
        ("adapter", pa.string()),
    ]
)

#: One row per run x item x style. `scores` are the label logits, of prompted runs the
#: log-probabilities of the label words before any calibration (null for a published file), of
#: judged texts the probability of the verdict alone; `parsed` is false when no label could be read
#: from `answer`, and `unread` says why: it names none, several, or one that is negated.
PREDICTIONS: Final = pa.schema(
    [
        ("model", pa.string()),
        ("method", pa.string()),
        ("dataset", pa.string()),
        ("run_id", pa.string()),
        ("probe", pa.string()),
        ("style", pa.string()),
        ("item_id", pa.string()),
        ("label", pa.int8()),
        ("attribute", pa.string()),
        ("group", pa.string()),
        ("template_id", pa.string()),
        ("term", pa.string()),
        ("family", pa.string()),
        ("pred", pa.int8()),
        ("scores", pa.list_(pa.float32())),
        ("parsed", pa.bool_()),
        ("unread", pa.string()),
        ("answer", pa.string()),
    ]
)

#: Answers of prompted classifiers, per run and over all of them (`run_id` "all"); of those that
#: are unparsed, `several` name more than one label and `negated` deny the one they name.
ANSWERS: Final = pa.schema(
    [
        *((key, pa.string()) for key in KEYS),
        ("run_id", pa.string()),
        ("predictions", pa.int64()),
        ("unparsed", pa.int64()),
        ("several", pa.int64()),
        ("negated", pa.int64()),
        ("share", pa.float64()),
    ]
)

#: One row per task and device that it held, in seconds from the begin of the command that did it:
#: loading until `loaded`, computing until `end`. `worker` counts from 0 up to `devices`, which are
#: places of GPUs where workers share these, `per_device` of each.
SCHEDULE: Final = pa.schema(
    [
        ("task", pa.string()),
        ("kind", pa.string()),
        ("backbone", pa.string()),
        ("method", pa.string()),
        ("worker", pa.int64()),
        ("start", pa.float64()),
        ("loaded", pa.float64()),
        ("end", pa.float64()),
        ("devices", pa.int64()),
        ("per_device", pa.int64()),
    ]
)


SCHEDULE_FILE: Final = "schedule.parquet"

#: The first five columns are the public contract of accuracy.csv. The attribute `all` is over
#: the sentences of all attributes of a probe that has several.
ACCURACY: Final = pa.schema(
    [
        ("model", pa.string()),
        ("attribute", pa.string()),
        ("mean", pa.float64()),
        ("sd", pa.float64()),
        ("n_runs", pa.int64()),
        ("method", pa.string()),
        ("dataset", pa.string()),
        ("probe", pa.string()),
        ("style", pa.string()),
        ("n_items", pa.int64()),
    ]
)


@dataclass(frozen=True)
class OutputSpec:
    """Where the rows that a method makes from items are stored.

    Attributes
    ----------
    folder: of OUT, where its files go.
    schema: of its files.
    per_item: rows of a file for each item.
    items: schema of the pairs or questions that it reads; None for sentences with labels.
    """

    folder: str
    schema: pa.Schema
    per_item: int = 1
    items: pa.Schema | None = None
