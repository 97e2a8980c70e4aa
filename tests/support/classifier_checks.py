"""Hold a finished classifier of any architecture to transformers' pipeline, head by head."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import peft
import torch
import transformers

from raybias.config import Backbone
from raybias.engine.published import PublishedClassifier, classifier_shape, has_trained_head
from raybias.errors import ModelError
from support import classifiers
from support.zoo_checks import Outcome, outcome_of

#: Most that an output may differ from the pipeline's.
TOLERANCE = 1e-5
#: Likewise of an adapter, whose factors are added to the weights before they are multiplied.
ADAPTER_TOLERANCE = 1e-4
SENTENCES = classifiers.texts(8)
#: Each head: its classes, and the `problem_type` of its config.
HEADS: dict[str, tuple[tuple[str, ...], str | None]] = {
    "2 classes": (("NEG", "POS"), None),
    "3 classes": (classifiers.SENTIMENT, None),
    "5 classes": (classifiers.STARS, None),
    "sigmoid": (("toxic", "insult", "threat"), "multi_label_classification"),
    "number": (("value",), "regression"),
}
ADAPTER = "PEFT adapter"
WAYS = (*HEADS, ADAPTER)


def check_classifiers(kind: str, folder: Path) -> dict[str, Outcome]:
    """Try every head of an architecture; the outcome of each by its name."""
    checks: dict[str, Callable[[], float]] = {
        name: partial(compare_head, kind, folder / name.replace(" ", "-"), *head)
        for name, head in HEADS.items()
    }
    checks[ADAPTER] = partial(compare_adapter, kind, folder)
    return {
        name: outcome_of(check, ADAPTER_TOLERANCE if name == ADAPTER else TOLERANCE)
        for name, check in checks.items()
    }


def compare_head(kind: str, folder: Path, classes: tuple[str, ...], problem: str | None) -> float:
    """The largest difference of an output from the pipeline's; infinite for another label."""
    if not folder.exists():
        classifiers.save(kind, folder, classes, problem_type=problem)
    found_NC = _outputs(Backbone(id=str(folder)))
    expected_NC = classifiers.of_pipeline(folder, SENTENCES)
    return _difference(found_NC, expected_NC)


def compare_adapter(kind: str, folder: Path) -> float:
    """Likewise of a LoRA adapter with a head of three classes, against PEFT."""
    base = folder / "2-classes"
    torch.manual_seed(1)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        base, num_labels=3, ignore_mismatched_sizes=True
    )
    # Hybrids of attention and state space have no cache that their own forward pass accepts.
    model.config.use_cache = False
    config = peft.LoraConfig(
        task_type="SEQ_CLS", r=4, init_lora_weights=False, target_modules="all-linear"
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    # Of routers and layers of other classes PEFT itself makes no adapter that computes.
    try:
        adapted = peft.get_peft_model(model, config).eval()
        with torch.no_grad():
            rows = [adapted(**tokenizer(text, return_tensors="pt")).logits for text in SENTENCES]
    except (TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"PEFT makes no such adapter ({error})") from error
    adapted.save_pretrained(folder / "adapter")
    expected_NC = torch.cat(rows).double().softmax(-1).numpy()
    return _difference(_outputs(Backbone(id=str(folder / "adapter"))), expected_NC)


def _outputs(spec: Backbone) -> Any:
    assert has_trained_head(spec)
    classifier_shape(spec)
    classifier = PublishedClassifier(spec)
    return classifier.outputs(classifier.encoder.encode(SENTENCES))


def _difference(found_NC: Any, expected_NC: Any) -> float:
    # A number is compared by its size, probabilities as they are.
    scale = max(1.0, float(np.abs(expected_NC).max()))
    gap = float(np.abs(found_NC - expected_NC).max()) / scale
    same = (found_NC.argmax(axis=1) == expected_NC.argmax(axis=1)).all()
    return gap if same or gap < TOLERANCE else np.inf
