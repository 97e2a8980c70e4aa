"""Prompted answers are the same however they are batched, and as plain transformers gives them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from raybias.config import Backbone
from raybias.engine.backbone import ModelContext
from raybias.engine.context import Execution
from raybias.engine.keyed_draws import Sampling
from raybias.methods import ChainOfThought, FewShot, Prompted, SoftPrompt, ZeroShot
from raybias.methods.base import Run
from raybias.methods.label_prompts import PromptedReader
from raybias.runtime.predict.shards import ShardWorker
from raybias.schema import LABELS
from raybias.seeding import generator
from raybias.storage import Store
from support import prompting
from support.prompting import plain
from support.reading import labelled

COUNT = 8
SHOTS = tuple((f"it was {n} times as long", n % 3) for n in range(9))
RAW: dict[str, Any] = {"seeds": (7,), "prompt_format": "raw"}
METHODS = {
    "zero_shot": ZeroShot(**RAW),
    "few_shot": FewShot(**RAW),
    "cot": ChainOfThought(**RAW, reasoning_tokens=9),
}


def predictor(folder: Path, method: Prompted, *, budget: int = 4096) -> PromptedReader:
    spec = Backbone(id=str(folder), dtype="float32", bos="prepend")
    return method.reader(ModelContext(spec, LABELS, Execution(budget)), Store(str(folder)))


def ask(who: PromptedReader, texts: list[str], *, size: int, order: list[int]) -> dict[str, tuple]:
    """Answers by text, asked in batches of `size` in some order."""
    shots = SHOTS if isinstance(who.method, FewShot) else ()
    found = {}
    for first in range(0, len(order), size):
        part = [texts[n] for n in order[first : first + size]]
        answer = labelled(
            who,
            Run("run", seed=7, recipe={"shots": shots}),
            [f"item {text}" for text in part],
            part,
        )
        for n, text in enumerate(part):
            found[text] = (answer["labels"][n], answer["parsed"][n], answer["texts"][n])
    return found


def plainly(folder: Path, method: Prompted, text: str) -> str:
    """What transformers' model says to one text: its own forward passes, token by token."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    sampling = Sampling.of(model, temperature=method.temperature)

    def go_on(prompt: str, stage: str, most: int) -> str:
        row = [1, *tokenizer(prompt)["input_ids"]]
        begun = len(row)
        uniforms_1T = prompting.uniforms((7, "run", f"item {text}", stage), most)
        for step in range(most):
            with torch.no_grad():
                logits_V = model(torch.tensor([row])).logits[0, -1]
            (token,) = sampling.choose(
                logits_V[None], history_NT=torch.tensor([row]), uniforms_N=uniforms_1T[:, step]
            ).tolist()
            if token in sampling.eos_ids:
                break
            row.append(token)
        return tokenizer.decode(row[begun:], skip_special_tokens=True)

    shots = SHOTS if isinstance(method, FewShot) else ()
    prompt = plain(method).first(text, LABELS, shots)
    if not isinstance(method, ChainOfThought):
        return go_on(prompt, "answer", 3)
    thought = go_on(prompt, "reasoning", method.reasoning_tokens)
    second = plain(method).last(text, LABELS, reasoning=thought)
    end = go_on(second, "answer", 3)
    return f"{thought} [...]{end}" if thought else end


@pytest.mark.long
@pytest.mark.parametrize("kind", prompting.KINDS)
def test_answers_depend_on_neither_batch_nor_order(kind: str, tmp_path: Path) -> None:
    folder, texts = prompting.save(kind, tmp_path / kind), prompting.texts(COUNT)
    for method in METHODS.values():
        together = ask(predictor(folder, method), texts, size=16, order=list(range(COUNT)))
        again = predictor(folder, method, budget=64)
        assert ask(again, texts, size=5, order=list(reversed(range(COUNT)))) == together
        for text in texts[:3]:
            assert together[text][2] == plainly(folder, method, text)


def test_methods_share_the_weights_and_change_none_of_each_others_answers(tmp_path: Path) -> None:
    folder, texts = prompting.save("opt", tmp_path), prompting.texts(COUNT)
    spec = Backbone(id=str(folder), dtype="float32", bos="prepend")
    soft = SoftPrompt(seeds=(1,), keep=1)
    listed = [*METHODS.values(), soft]
    held = ShardWorker(ModelContext(spec, LABELS), listed, Store(str(folder)))
    alone = soft.trainer(ModelContext(spec, LABELS))
    options: dict[str, Any] = {"size": 16, "order": list(range(COUNT))}
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
            assert ask(now, texts, **options) == ask(predictor(folder, method), texts, **options)
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
