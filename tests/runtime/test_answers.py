"""Methods that share a backbone answer as each does alone; what an unread answer counts as."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from raybias.config import Backbone
from raybias.engine.backbone import ModelContext
from raybias.methods import ChainOfThought, FewShot, Prompted, SoftPrompt, ZeroShot
from raybias.methods.base import Run
from raybias.methods.label_prompts import PromptedReader
from raybias.runtime.predict.shards import ShardWorker
from raybias.schema import LABELS
from raybias.seeding import generator
from raybias.storage import Store
from support import prompting
from support.reading import labelled

SHOTS = tuple((f"it was {n} times as long", n % 3) for n in range(9))
RAW: dict[str, Any] = {"seeds": (7,), "prompt_format": "raw"}
METHODS = {
    "zero_shot": ZeroShot(**RAW),
    "few_shot": FewShot(**RAW),
    "cot": ChainOfThought(**RAW, reasoning_tokens=9),
}


def predictor(folder: Path, method: Prompted) -> PromptedReader:
    spec = Backbone(id=str(folder), dtype="float32", bos="prepend")
    return method.reader(ModelContext(spec, LABELS), Store(str(folder)))


def ask(who: PromptedReader, texts: list[str]) -> list[Any]:
    shots = SHOTS if isinstance(who.method, FewShot) else ()
    run = Run("run", seed=7, recipe={"shots": shots})
    answer = labelled(who, run, [f"item {text}" for text in texts], texts)
    return [answer[name] for name in ("labels", "parsed", "texts")]


def test_methods_share_the_weights_and_change_none_of_each_others_answers(tmp_path: Path) -> None:
    folder, texts = prompting.save("opt", tmp_path), prompting.texts(8)
    spec = Backbone(id=str(folder), dtype="float32", bos="prepend")
    soft = SoftPrompt(seeds=(1,), keep=1)
    listed = [*METHODS.values(), soft]
    held = ShardWorker(ModelContext(spec, LABELS), listed, Store(str(folder)))
    alone = soft.trainer(ModelContext(spec, LABELS))
    models = []
    for method in (*METHODS.values(), soft, METHODS["few_shot"]):
        now: Any = held.reader(method.name)
        assert held.reader(method.name) is now
        if isinstance(method, SoftPrompt):
            models.append(now.trainer.backbone.model)
            rows = soft.encode(alone.encoder, texts)
            found, expected = (
                trainer.logits([trainer.init_weights(1)], [trainer.prepare(rows)])[0]
                for trainer in (now.trainer, alone)
            )
            torch.testing.assert_close(found, expected)
        else:
            models.append(now.answers.backbone.model)
            assert ask(now, texts) == ask(predictor(folder, method), texts)
    assert len(set(map(id, models))) == 1


def test_an_answer_without_a_label_counts_as_the_method_says(tmp_path: Path) -> None:
    folder, texts = prompting.save("opt", tmp_path), prompting.texts(40)
    ids = [f"item {text}" for text in texts]
    found: dict[str, dict[str, Any]] = {}
    for rule in ("random", "likelihood", "invalid"):
        method = METHODS["zero_shot"].model_copy(update={"unparsed": rule})
        found[rule] = labelled(predictor(folder, method), Run("run", seed=7), ids, texts)
    parsed = found["random"]["parsed"]
    assert 0 < sum(parsed) < len(parsed)  # the random model names a label now and then
    for n, readable in enumerate(parsed):
        labels = {rule: answer["labels"][n] for rule, answer in found.items()}
        if readable:
            assert len(set(labels.values())) == 1
            continue
        drawn = int(generator(7, "run", ids[n], "unparsed").integers(3))
        likeliest = int(found["likelihood"]["logits"][n].argmax())
        assert labels == {"random": drawn, "likelihood": likeliest, "invalid": None}
