"""How one replica answers a shard: with a tuned adapter, or by prompting.

Both load what a run needs by its id and turn texts into labels. It knows nothing of Ray.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypedDict

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from raybias.config import ChainOfThought, Prompted
from raybias.errors import WorkFailed
from raybias.probes import prompts
from raybias.runtime.shards import Shard
from raybias.schema import PREDICTIONS
from raybias.seeding import generator
from raybias.storage import Store

if TYPE_CHECKING:
    from raybias.engine.generation import Generated, TextGenerator
    from raybias.engine.learner import Learner, Weights


#: The style of an item that no transformation was applied to.
PLAIN: Final = "original"


class Answer(TypedDict):
    """What a shard's texts were read as; one entry per text.

    `logits` are the label logits, float32 [texts, labels]; `labels` is None where no label
    could be read; `texts` is what was generated, or None where nothing is; `tokens` is how many
    the model read and wrote for all of them.
    """

    logits: npt.NDArray[np.float32]
    labels: list[int | None]
    parsed: list[bool]
    texts: list[str | None]
    tokens: int


class Answered(NamedTuple):
    """The rows of a shard's file, and how many tokens the model read and wrote for them."""

    table: pa.Table
    tokens: int


class Answerer(Protocol):
    """Answers shards of any run of one method on one backbone."""

    def load(self, run_id: str) -> Any:
        """What a run's answers need beside the backbone."""

    def table(self, run: Any, shard: Shard, items: pa.Table) -> Answered:
        """The rows of a shard's file."""


@dataclass(frozen=True)
class TunedAnswers:
    """Reads labels with tuned adapters."""

    learner: Learner
    store: Store

    def load(self, run_id: str) -> Weights:
        """The weights of a run's adapter."""
        return self.learner.load(self.store, f"adapters/{run_id}")

    def table(self, run: Weights, shard: Shard, items: pa.Table) -> Answered:
        """Rows of `schema.PREDICTIONS`."""
        asked = (items[name].to_pylist() for name in ("item_id", "text"))
        answer = self.answer(run, *asked)
        return Answered(predictions(shard, items, answer), answer["tokens"])

    def answer(self, run: Weights, item_ids: Sequence[str], texts: Sequence[str]) -> Answer:
        """The label with the highest logit."""
        rows = self.learner.encode(texts)
        sequences = self.learner.prepare(rows)
        (logits_NL,) = self.learner.logits([run], [sequences])
        logits = logits_NL.numpy()
        return Answer(
            logits=logits,
            labels=logits.argmax(axis=1).tolist(),
            parsed=[True] * len(texts),
            texts=[None] * len(texts),
            tokens=sum(map(len, rows)),
        )


@dataclass(frozen=True)
class Recipe:
    """A run of a prompted method: `OUT/prompts/<run_id>.json`."""

    run_id: str
    seed: int
    shots: tuple[tuple[str, int], ...] = ()

    def write(self, store: Store, **facts: Any) -> None:
        """Put it into OUT, with what a reader of the study wants to know beside it."""
        content = {"run_id": self.run_id, "seed": self.seed, "shots": self.shots, **facts}
        store.write_text(f"prompts/{self.run_id}.json", json.dumps(content, indent=2))

    @classmethod
    def read(cls, store: Store, run_id: str) -> Recipe:
        """The recipe of a run."""
        content = json.loads(store.read_text(f"prompts/{run_id}.json"))
        shots = tuple((text, label) for text, label in content["shots"])
        return cls(content["run_id"], content["seed"], shots)


@dataclass(frozen=True)
class PromptedAnswers:
    """Reads labels from what a backbone says to a prompt (004).

    Attributes
    ----------
    words: the label words, which are looked for in answers.
    label_ids: their tokens, whose logits stand after the prompt.
    """

    text_generator: TextGenerator
    method: Prompted
    words: tuple[str, ...]
    label_ids: tuple[int, ...]
    store: Store

    def load(self, run_id: str) -> Recipe:
        """The seed and demonstrations of a run."""
        return Recipe.read(self.store, run_id)

    def table(self, run: Recipe, shard: Shard, items: pa.Table) -> Answered:
        """Rows of `schema.PREDICTIONS`."""
        asked = (items[name].to_pylist() for name in ("item_id", "text"))
        answer = self.answer(run, *asked)
        return Answered(predictions(shard, items, answer), answer["tokens"])

    def answer(self, run: Recipe, item_ids: Sequence[str], texts: Sequence[str]) -> Answer:
        """The label word that comes first in each sampled answer."""
        asked = self.text_generator.backbone.encode(
            [prompts.first_prompt(self.method, text, self.words, run.shots) for text in texts]
        )
        thought, found = self._said(run, item_ids, texts, asked)
        said = [self._decoded(each.tokens) for each in thought] or [""] * len(texts)
        answers = [self._decoded(each.tokens) for each in found]
        logits = np.array([each.label_logits for each in found], np.float32)
        read = [prompts.read_answer(each, self.words) for each in answers]
        return Answer(
            logits=logits,
            labels=[
                self._unparsed(run, item_id, own) if label is None else label
                for item_id, label, own in zip(item_ids, read, logits, strict=True)
            ],
            parsed=[label is not None for label in read],
            texts=[
                f"{reasoning} [...]{answer}" if reasoning else answer
                for reasoning, answer in zip(said, answers, strict=True)
            ],
            tokens=sum(map(len, asked)) + sum(len(each.tokens) for each in (*thought, *found)),
        )

    def _said(
        self, run: Recipe, item_ids: Sequence[str], texts: Sequence[str], asked: list[list[int]]
    ) -> tuple[list[Generated], list[Generated]]:
        """The reasonings, none where none is asked for, and what was written at last."""
        from raybias.engine.generation import Followup
        from raybias.engine.sampling import Sampling

        writer, method = self.text_generator, self.method
        encode, model = writer.backbone.encode, writer.backbone.model
        sampling = Sampling.of(model, temperature=method.temperature)

        def keys(stage: str) -> list[tuple[str | int, ...]]:
            return [(run.seed, run.run_id, item_id, stage) for item_id in item_ids]

        if not isinstance(method, ChainOfThought):
            found = writer.generate(
                asked,
                keys("answer"),
                sampling=sampling,
                max_new_tokens=method.answer_tokens,
                label_ids=self.label_ids,
            )
            return [], found

        def conclusions(numbers: Sequence[int], tokens: Sequence[Sequence[int]]) -> list[list[int]]:
            thoughts = zip(numbers, map(self._decoded, tokens), strict=True)
            return encode(
                [
                    prompts.answered_prompt(method, texts[n], self.words, reasoning=said)
                    for n, said in thoughts
                ]
            )

        return writer.generate_twice(
            asked,
            keys("reasoning"),
            then=Followup(conclusions, keys("answer"), method.answer_tokens),
            sampling=sampling,
            max_new_tokens=method.reasoning_tokens,
            label_ids=self.label_ids,
        )

    def _decoded(self, tokens: Sequence[int]) -> str:
        tokenizer = self.text_generator.backbone.tokenizer
        text: str = tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text

    def _unparsed(self, run: Recipe, item_id: str, logits_L: npt.NDArray[np.float32]) -> int | None:
        """What an answer without a label word counts as."""
        if self.method.unparsed == "likelihood":
            return int(logits_L.argmax())
        if self.method.unparsed == "random":
            drawn = generator(run.seed, run.run_id, item_id, "unparsed").integers(len(self.words))
            return int(drawn)
        return None


def predictions(shard: Shard, items: pa.Table, answer: Answer) -> pa.Table:
    """One row of `schema.PREDICTIONS` per item of an answer.

    Raises
    ------
    WorkFailed: a logit is not finite, which a half-precision overflow makes.
    """
    logits_NL = answer["logits"]
    bad = np.flatnonzero(~np.isfinite(logits_NL).all(axis=1))
    if bad.size:
        raise WorkFailed(
            f"{bad.size} of {len(logits_NL)} items have logits that are not finite,"
            f" the first is {items['item_id'][int(bad[0])]}",
            where=f"run {shard.run_id} on probe {shard.probe}",
            cure="use dtype bfloat16 or float32 for this backbone",
        )
    count = len(logits_NL)
    columns: dict[str, Any] = {
        name: pa.repeat(pa.scalar(value, pa.string()), count)
        for name, value in {
            "model": shard.model,
            "method": shard.method,
            "dataset": shard.dataset,
            "run_id": shard.run_id,
            "probe": shard.probe,
            "style": PLAIN,
        }.items()
    }
    for name in ("item_id", "label", "attribute", "group", "template_id", "term"):
        columns[name] = pc.cast(items[name], PREDICTIONS.field(name).type)
    columns["pred"] = pa.array(answer["labels"], pa.int8())
    columns["scores"] = pa.array(list(logits_NL), pa.list_(pa.float32()))
    columns["parsed"] = pa.array(answer["parsed"], pa.bool_())
    columns["answer"] = pa.array(answer["texts"], pa.string())
    return pa.table(columns, schema=PREDICTIONS)
