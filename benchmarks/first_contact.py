"""Ask a real chat model for the sentiment of real sentences, by us and by plain transformers.

For each way of asking it prints the share of unread answers, the accuracy, how often each label is
named and the probability on the label words, and in how many sentences both give the same label.

    python benchmarks/first_contact.py --model MODEL --data data/sst5 [--each 100] [--ways chat,raw]
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from raybias.config import Backbone, TrainingSet
from raybias.engine.backbone import ModelContext
from raybias.engine.context import Execution
from raybias.methods import ChainOfThought, FewShot, Prompted, ZeroShot
from raybias.methods.base import Run, text_items
from raybias.methods.prompted import draw_texts
from raybias.probes import training_sentences
from raybias.schema import LABELS
from raybias.storage import Store

CHOICES = "negative, neutral, or positive"
CLOSED = "Text: {}\nQuestion: Is the sentiment of the text " + CHOICES + "?\n"
OPEN = "Text: {}\nQuestion: What is the sentiment of the text?\n"
CONCLUSION = "\nAnswer: Therefore, from " + CHOICES + ", the sentiment is"
CUES = {
    "zero_shot": "Answer: The sentiment is",
    "few_shot": "Answer:",
    "cot": "Reasoning: Let's think step by step",
}
KINDS: dict[str, Callable[..., Prompted]] = {
    "zero_shot": ZeroShot,
    "few_shot": FewShot,
    "cot": ChainOfThought,
}
#: Prompts that are answered at one time.
BATCH = 20
#: By form, most tokens of an answer and of a reasoning.
MOST = {"raw": (3, 64), "chat": (16, 256)}


class Plain:
    """Greedy answers and label probabilities by transformers alone, one prompt at a time."""

    def __init__(self, folder: str) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def prompt(self, kind: str, form: str, text: str, shots: Any, reasoning: str | None) -> str:
        """Write the prompt as text, by hand."""
        question = (OPEN if kind == "few_shot" else CLOSED).format(text)
        cue = CUES[kind] if reasoning is None else CUES[kind] + reasoning + CONCLUSION
        if form == "raw":
            shown = "".join(
                f"{OPEN.format(shot)}Answer: {LABELS[label].capitalize()}.\n\n"
                for shot, label in shots
            )
            return f"{shown}{question}{cue}"
        messages = []
        for shot, label in shots:
            messages.append({"role": "user", "content": OPEN.format(shot).strip()})
            said = f"Answer: {LABELS[label].capitalize()}."
            messages.append({"role": "assistant", "content": said})
        messages.append({"role": "user", "content": question.strip()})
        messages.append({"role": "assistant", "content": cue})
        return str(
            self.tokenizer.apply_chat_template(
                messages, tokenize=False, continue_final_message=True
            )
        )

    def last(self, kind: str, form: str, texts: Sequence[str], shots: Any) -> list[str]:
        """Write the prompts that answers follow, reasoning first in a chain of thought."""
        thoughts: list[str | None] = [None] * len(texts)
        if kind == "cot":
            first = [self.prompt(kind, form, text, shots, None) for text in texts]
            thoughts = [*self.write(first, MOST[form][1], form)]
        both = zip(texts, thoughts, strict=True)
        return [self.prompt(kind, form, text, shots, thought) for text, thought in both]

    def write(self, prompts: Sequence[str], most: int, form: str) -> list[str]:
        """Write greedily behind prompts, padded on the left in batches of like lengths."""
        found: dict[int, str] = {}
        order = sorted(range(len(prompts)), key=lambda n: len(prompts[n]))
        self.tokenizer.padding_side = "left"
        for first in range(0, len(order), BATCH):
            numbers = order[first : first + BATCH]
            rows = self.tokenizer(
                [prompts[n] for n in numbers],
                add_special_tokens=form == "raw",
                padding=True,
                return_tensors="pt",
            )
            with torch.no_grad():
                made = self.model.generate(
                    **rows,
                    do_sample=False,
                    max_new_tokens=most,
                    pad_token_id=self.tokenizer.pad_token_id,
                )
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
            words = [(f" {word}", f" {word.capitalize()}") for word in LABELS]
            ids = [
                sorted(
                    {self.tokenizer(each, add_special_tokens=False)["input_ids"][0] for each in x}
                )
                for x in words
            ]
            found.append([float(log_probs_V[each].logsumexp(0)) for each in ids])
        return np.array(found)

    def label(self, answer: str) -> int | None:
        """Read an answer: the only label word, whole and not right behind a negation."""
        named = {n for n, word in enumerate(LABELS) if re.search(rf"(?i)\b{word}\b", answer)}
        if len(named) != 1:
            return None
        (label,) = named
        negated = re.search(rf"(?i)(?:\b(?:not|no|nor|neither)|n't) {LABELS[label]}", answer)
        return None if negated else label


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="folder of a chat model")
    parser.add_argument("--data", required=True, help="folder of SST-5")
    parser.add_argument("--each", type=int, default=100, help="sentences of each label")
    parser.add_argument("--means", type=int, default=128, help="sentences of the calibration")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ways", default="zero_shot/chat,zero_shot/raw,few_shot/chat,few_shot/raw")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    splits = training_sentences(TrainingSet(source="sst5", data=options.data))
    draw = np.random.default_rng(options.seed)
    test, train = splits["test"], splits["train"]
    rows = [
        int(row)
        for label in range(len(LABELS))
        for row in draw.choice(np.flatnonzero(test["label"] == label), options.each, replace=False)
    ]
    texts, gold = (
        [test["text"][row] for row in rows],
        np.array([test["label"][row] for row in rows]),
    )
    spec = Backbone(id=options.model, dtype="float32")
    context = ModelContext(spec, LABELS, Execution(4096, threads=options.threads))
    plain = Plain(options.model)
    print("| asked by | read | unread | accuracy | neg, neu, pos | mass | as transformers |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for way in options.ways.split(","):
        kind, form = way.split("/")
        shots = tuple(
            FewShot(shot_order="shuffled").draw_shots({"": {"train": train}}, "", 7)
            if kind == "few_shot"
            else ()
        )
        calibration = draw_texts(train, options.means, seed=7)
        last = plain.last(kind, form, texts, shots)
        answers, scores_NL = plain.write(last, MOST[form][0], form), plain.scores(last, form)
        mean_L = plain.scores(plain.last(kind, form, calibration, shots), form).mean(axis=0)
        for read in ("answer", "likelihood", "calibrated"):
            method = KINDS[kind](
                read=read, prompt_format=form, temperature=0.0, unparsed="invalid", seeds=(7,)
            ).fit(spec, "strict")
            with tempfile.TemporaryDirectory() as folder:
                who = method.reader(context, Store(folder))
                texts_of = tuple(calibration) if read == "calibrated" else ()
                run = Run("run", seed=7, recipe={"shots": shots, "calibration": texts_of})
                found = who.prepare(run, text_items(texts, texts))().table
            if read == "answer":
                expected: Sequence[int | None] = [*map(plain.label, answers)]
            else:
                expected = (scores_NL - (mean_L if texts_of else 0)).argmax(axis=1).tolist()
            labels = found["pred"].to_pylist()
            named = Counter(labels)
            same = sum(a == b for a, b in zip(labels, expected, strict=True))
            apart = np.abs(np.array(found["scores"].to_pylist()) - scores_NL).max()
            accuracy = np.mean([a == b for a, b in zip(labels, gold, strict=True)])
            print(
                f"| {way} | {read} | {named[None] / len(texts):.1%} | {accuracy:.3f} |"
                f" {named[0]}, {named[1]}, {named[2]} | {np.exp(scores_NL).sum(1).mean():.2f} |"
                f" {same} of {len(texts)}, scores within {apart:.0e} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
