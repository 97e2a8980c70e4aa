"""How a backbone is read stands in OUT, and a short cut that was refused is a warning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from raybias.engine.backbone import LoadedBackbone, ModelContext
from raybias.engine.context import Execution
from raybias.engine.generation.generator import TextGenerator
from raybias.engine.scoring.causal import LabelScorer, TokenScorer
from raybias.runtime.workers import keep_ways, slow_ways
from raybias.storage import Store


@pytest.mark.parametrize(("kind", "fast"), [("opt", True), ("bloom", False)])
def test_ways_stand_in_out(
    kind: str, fast: bool, backbone: Callable[[str], LoadedBackbone], tmp_path: Path
) -> None:
    execution, loaded = Execution(), backbone(kind)
    model = LoadedBackbone(loaded.encoder, loaded.model, execution)
    LabelScorer(model, (2, 3, 4))
    TokenScorer(model)
    TextGenerator(model)
    assert {purpose: way.fastest for purpose, way in execution.ways.items()} == {
        "labels": fast, "log-probabilities": fast, "generation": fast
    }  # fmt: skip
    store = Store(str(tmp_path))
    context = ModelContext(loaded.spec, (), execution).here(torch.device("cpu"))
    keep_ways(store, context)
    written = {name: store.read_text(name) for name in store.files("readers")}
    assert sorted(written) == [
        f"readers/{kind}.{purpose}.json"
        for purpose in ("generation", "labels", "log-probabilities")
    ]
    assert ("packed rows, the head where it is needed" in "".join(written.values())) == fast
    said = list(slow_ways(store))
    assert len(said) == (0 if fast else 3)
    assert all("each row alone" in line for line in said)
