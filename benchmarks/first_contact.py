"""Ask a real chat model for the sentiment of real sentences, by us and by plain transformers.

For each way of asking it prints the share of unread answers, the accuracy, how often each label is
named and the probability on the label words, and in how many sentences both give the same label.

    python benchmarks/first_contact.py --model MODEL --data data/sst5 [--each 100]
"""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Annotated, Any

import numpy as np
import torch
import typer
from transformers import AutoModelForCausalLM, AutoTokenizer

from raybias.config import Backbone, TrainingSet
from raybias.engine.backbone import ModelContext
from raybias.engine.context import Execution
from raybias.methods import FewShot
from raybias.methods.base import Run, methods, text_items
from raybias.methods.prompted import draw_texts
from raybias.probes import training_sentences
from raybias.schema import LABELS
from raybias.storage import Store

ASKED = {
    "zero_shot": "Is the sentiment of the text negative, neutral, or positive?",
    "few_shot": "What is the sentiment of the text?",
}
CUES = {"zero_shot": "Answer: The sentiment is", "few_shot": "Answer:"}
#: Prompts that are answered at one time.
BATCH = 20
#: By form, most tokens of an answer.
MOST = {"chat": 16, "raw": 3}
Shots = Sequence[tuple[str, int]]


class Plain:
    """Greedy answers and label probabilities by transformers alone."""

    def __init__(self, folder: str) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        words = [(f" {word}", f" {word.capitalize()}") for word in LABELS]
        self.ids = [
            sorted({self.tokenizer(each, add_special_tokens=False)["input_ids"][0] for each in x})
            for x in words
        ]

    def prompt(self, kind: str, form: str, text: str, shots: Shots) -> str:
        """Write the prompt as text, by hand."""
        question = f"Text: {{}}\nQuestion: {ASKED[kind]}\n"
        asked = [(question.format(shot), f"Answer: {LABELS[label].capitalize()}.")
                 for shot, label in shots]  # fmt: skip
        question, cue = question.format(text), CUES[kind]
        if form == "raw":
            return "".join(f"{one}{said}\n\n" for one, said in asked) + question + cue
        messages = [
            {"role": role, "content": content}
            for one, said in (*asked, (question, cue))
            for role, content in (("user", one.strip()), ("assistant", said))
        ]
        return str(
            self.tokenizer.apply_chat_template(
                messages, tokenize=False, continue_final_message=True
            )
        )

    def write(self, prompts: Sequence[str], form: str) -> list[str]:
        """Write greedily behind prompts, padded on the left in batches of like lengths."""
        found: dict[int, str] = {}
        order = sorted(range(len(prompts)), key=lambda n: len(prompts[n]))
        for first in range(0, len(order), BATCH):
            numbers = order[first : first + BATCH]
            rows = self.tokenizer(
                [prompts[n] for n in numbers], add_special_tokens=form == "raw", padding=True,
                return_tensors="pt",
            )  # fmt: skip
            with torch.no_grad():
                made = self.model.generate(
                    **rows, do_sample=False, max_new_tokens=MOST[form],
                    pad_token_id=self.tokenizer.pad_token_id,
                )  # fmt: skip
            new = made[:, rows["input_ids"].shape[1] :]
            texts = self.tokenizer.batch_decode(new, skip_special_tokens=True)
            found |= dict(zip(numbers, texts, strict=True))
        return [found[n] for n in range(len(prompts))]

    def scores(self, prompts: Sequence[str], form: str) -> np.ndarray:
        """Return the log-probability of each label word behind prompts, in either case [N, L]."""
        found = []
        for prompt in prompts:
            row = self.tokenizer(prompt, add_special_tokens=form == "raw", return_tensors="pt")
            with torch.no_grad():
                log_probs_V = self.model(**row, logits_to_keep=1).logits[0, -1].log_softmax(-1)
            found.append([float(log_probs_V[each].logsumexp(0)) for each in self.ids])
        return np.array(found)


def label_of(answer: str) -> int | None:
    """Read an answer: the only label word, whole and not right behind a negation."""
    named = {n for n, word in enumerate(LABELS) if re.search(rf"(?i)\b{word}\b", answer)}
    if len(named) != 1:
        return None
    (label,) = named
    negated = re.search(rf"(?i)(?:\b(?:not|no|nor|neither)|n't) {LABELS[label]}", answer)
    return None if negated else label


def main(
    model: Annotated[str, typer.Option(help="Folder of a chat model.")],
    data: Annotated[str, typer.Option(help="Folder of SST-5.")],
    each: Annotated[int, typer.Option(help="Sentences of each label.")] = 100,
) -> None:
    """Print the table."""
    torch.set_num_threads(2)
    splits = training_sentences(TrainingSet(source="sst5", data=data))
    test, train = splits["test"], splits["train"]
    draw = np.random.default_rng(1)
    drawn = [draw.choice(np.flatnonzero(test["label"] == label), each, replace=False)
             for label in range(len(LABELS))]  # fmt: skip
    chosen = test[np.concatenate(drawn)]
    texts, gold = chosen["text"].to_list(), chosen["label"].to_list()
    spec = Backbone(id=model, dtype="float32")
    context, plain = ModelContext(spec, LABELS, Execution(4096, threads=2)), Plain(model)
    calibration = tuple(draw_texts(train, 128, seed=7, by=("label",)))
    print("| asked by | read | unread | accuracy | neg, neu, pos | mass | as transformers |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for kind, form in product(CUES, MOST):
        shots: Any = ()
        if kind == "few_shot":
            drawn_for = FewShot(shot_order="shuffled")
            shots = tuple(drawn_for.draw_shots({"": {"train": train}}, "", 7, LABELS))
        last, before = (
            [plain.prompt(kind, form, text, shots) for text in those]
            for those in (texts, calibration)
        )
        scores_NL, mean_L = plain.scores(last, form), plain.scores(before, form).mean(axis=0)
        expected = {
            "answer": [*map(label_of, plain.write(last, form))],
            "likelihood": scores_NL.argmax(axis=1).tolist(),
            "calibrated": (scores_NL - mean_L).argmax(axis=1).tolist(),
        }
        for read, theirs in expected.items():
            make: Any = methods[kind]
            method = make(
                read=read, prompt_format=form, temperature=0.0, unparsed="invalid", seeds=(7,)
            ).fit(spec, "strict", LABELS)
            recipe = {"shots": shots, "calibration": calibration if read == "calibrated" else ()}
            with tempfile.TemporaryDirectory() as folder:
                reader = method.reader(context, Store(folder))
                run = Run("run", seed=7, recipe=recipe)
                found = reader.prepare(run, text_items(texts, texts))().table
            labels = found["pred"].to_pylist()
            named = Counter(labels)
            same, right = (
                sum(a == b for a, b in zip(labels, others, strict=True))
                for others in (theirs, gold)
            )
            apart = np.abs(np.array(found["scores"].to_pylist()) - scores_NL).max()
            print(
                f"| {kind}/{form} | {read} | {named[None] / len(texts):.1%} |"
                f" {right / len(texts):.3f} |"
                f" {named[0]}, {named[1]}, {named[2]} | {np.exp(scores_NL).sum(1).mean():.2f} |"
                f" {same} of {len(texts)}, scores within {apart:.0e} |",
                flush=True,
            )


if __name__ == "__main__":
    typer.run(main)
