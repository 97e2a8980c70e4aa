"""How a replica answers, with real predictors and without Ray: ahead, and by every method."""

from __future__ import annotations

import asyncio
import json
import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch

from raybias import methods
from raybias.config import Backbone
from raybias.engine.adapter_folder import ADAPTER_WEIGHTS, PROMPT
from raybias.engine.adapters.base import write_folder
from raybias.engine.backbone import ModelContext
from raybias.methods import FewShot, ZeroShot
from raybias.methods.base import Answered, Compute, Method, Run, Shard, shard_of
from raybias.methods.label_prompts import ChainOfThought, PromptedReader
from raybias.methods.sentence_scores import PairScore
from raybias.runtime.predict.replica import REQUESTS_PER_REPLICA, Replica
from raybias.runtime.predict.shards import ShardWorker
from raybias.runtime.progress import Meter
from raybias.schema import ITEMS, LABELS, PAIRS
from raybias.seeding import generator
from raybias.storage import Store
from support import prompting
from support.reading import labelled

#: Rows of a probe, of a shard, and the runs that read them.
COUNT, ROWS, RUNS = 12, 4, ("run 1", "run 2")
#: Longer than anything here takes.
PATIENCE_S = 60
TEXTS = prompting.texts(COUNT)

LABEL_ITEMS = pa.Table.from_pylist(
    [{"item_id": f"i{n}", "label": n % 3, "text": text} for n, text in enumerate(TEXTS)],
    schema=ITEMS,
)
PAIR_ITEMS = pa.Table.from_pylist(
    [
        {"pair_id": f"p{n}", "style": "original", "sent_more": text, "sent_less": TEXTS[n - 1]}
        for n, text in enumerate(TEXTS)
    ],
    schema=PAIRS,
)
SOFT = methods.SoftPrompt(prompt_length=4)
METHODS: list[tuple[Method, pa.Table]] = [
    (SOFT, LABEL_ITEMS),
    (ChainOfThought(seeds=(7,), reasoning_tokens=4), LABEL_ITEMS),
    (PairScore(scores=("bias_bench", "shared", "perplexity")), PAIR_ITEMS),
]


@dataclass
class Watch:
    """What a replica has begun and done, by shard; each part can be held up."""

    changed: threading.Condition = field(default_factory=threading.Condition)
    prepared: list[str] = field(default_factory=list)
    computed: list[str] = field(default_factory=list)
    before_preparing: Callable[[], object] = lambda: None
    before_computing: Callable[[], object] = lambda: None

    def note(self, done: list[str], shard: Shard) -> None:
        with self.changed:
            done.append(shard.file)
            self.changed.notify_all()

    def until(self, reached: Callable[[], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(reached, PATIENCE_S), (self.prepared, self.computed)


class WatchedWorker(ShardWorker):
    watch: Watch

    def prepare(self, run: Any, shard: Shard, items: pa.Table) -> Compute:
        self.watch.before_preparing()
        compute = super().prepare(run, shard, items)
        self.watch.note(self.watch.prepared, shard)
        return partial(self.compute, compute, shard)

    def compute(self, compute: Compute, shard: Shard) -> Answered:
        self.watch.before_computing()
        result = compute()
        self.watch.note(self.watch.computed, shard)
        return result


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Backbone:
    folder = prompting.save("opt", tmp_path_factory.mktemp("tiny"))
    return Backbone(id=str(folder), name="tiny", dtype="float32", bos="prepend")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An OUT with two runs of every method."""
    store = Store(tmp_path)
    for seed, run_id in enumerate(RUNS):
        prompt_PD = torch.randn(4, 32, generator=torch.Generator().manual_seed(seed))
        tensors = {PROMPT: prompt_PD}
        folder = f"adapters/{run_id}"
        write_folder(store, folder, tensors, file=ADAPTER_WEIGHTS, parts=[], record={})
        recipe = {"run_id": run_id, "seed": seed, "shots": []}
        store.write_text(f"prompts/{run_id}.json", json.dumps(recipe))
    return store


def scorer_of(method: Method, spec: Backbone, store: Store) -> tuple[Replica, Watch]:
    context, meter = ModelContext(spec, LABELS), Meter(study="s", stage="score", model="m")
    made = Replica(context, [method], store.uri, meter)
    watched = WatchedWorker(context, [method], store)
    watched.watch = Watch()
    made.worker = watched
    return made, watched.watch


def shards_of(method: Method) -> list[Shard]:
    return [
        Shard("mine", run_id, "tiny", method.name, "none", first, ROWS, "predictions", COUNT)
        for run_id in RUNS
        for first in range(0, COUNT, ROWS)
    ]


def part(items: pa.Table, shard: Shard) -> pa.Table:
    return items.slice(shard.first_row, shard.rows)


async def as_serve_sends(scorer: Replica, shards: Sequence[Shard], items: pa.Table) -> None:
    """Send shards, of which a replica has two at a time."""
    room = asyncio.Semaphore(REQUESTS_PER_REPLICA)

    async def send(shard: Shard) -> None:
        async with room:
            await scorer.score(shard, part(items, shard))

    await asyncio.gather(*map(send, shards))


@pytest.mark.parametrize(("method", "items"), METHODS, ids=[each.kind for each, _ in METHODS])
def test_a_shard_is_prepared_while_the_one_before_computes_and_no_bit_changes(
    method: Method, items: pa.Table, spec: Backbone, store: Store
) -> None:
    (scorer, watch), shards = scorer_of(method, spec, store), shards_of(method)

    def another_is_prepared() -> None:
        wanted = min(len(watch.computed) + 2, len(shards))
        watch.until(lambda: len(watch.prepared) >= wanted)
        # No more than one waits.
        assert len(watch.prepared) <= wanted

    watch.before_computing = another_is_prepared
    asyncio.run(as_serve_sends(scorer, shards, items))
    assert sorted(watch.computed) == sorted(shard.file for shard in shards)

    plain: Any = method.reader(ModelContext(spec, LABELS), store)
    for shard in shards:
        run, schema = plain.load(shard.run_id), method.output().schema
        expected = shard_of(plain, run, shard, part(items, shard), schema)().table
        assert store.read_table(shard.file).equals(expected)


@pytest.mark.parametrize("where", ["before_preparing", "before_computing"])
def test_a_request_that_is_given_up_while_it_waits_is_not_done(
    where: str, spec: Backbone, store: Store
) -> None:
    scorer, watch = scorer_of(SOFT, spec, store)
    first, given_up, last = shards_of(SOFT)[:3]

    def send(shard: Shard) -> asyncio.Task[int]:
        work: Coroutine[Any, Any, int] = scorer.score(shard, part(LABEL_ITEMS, shard))
        return asyncio.ensure_future(work)

    begun, go_on = threading.Event(), threading.Event()
    setattr(watch, where, lambda: begun.set() or go_on.wait(PATIENCE_S))
    queue = scorer.ahead if where == "before_preparing" else scorer.turn

    async def three() -> None:
        kept = [send(first)]
        await asyncio.to_thread(begun.wait, PATIENCE_S)
        dropped = send(given_up)
        while queue._work_queue.qsize() != 1:
            await asyncio.sleep(0.01)
        dropped.cancel()
        kept.append(send(last))
        await asyncio.sleep(0)
        go_on.set()
        await asyncio.gather(*kept)

    asyncio.run(asyncio.wait_for(three(), PATIENCE_S))
    assert watch.computed == [first.file, last.file]
    assert (given_up.file in watch.prepared) is (where == "before_computing")
    assert not store.exists(given_up.file)


def test_runs_that_read_the_same_texts_share_what_is_prepared(spec: Backbone, store: Store) -> None:
    predictor: Any = SOFT.reader(ModelContext(spec, LABELS), store)
    encoded: list[int] = []
    prepare = predictor.trainer.prepare
    predictor.trainer.prepare = lambda rows: encoded.append(len(rows)) or prepare(rows)
    tables = [
        predictor.prepare(predictor.load(shard.run_id), part(LABEL_ITEMS, shard))().table
        for shard in shards_of(SOFT)
    ]
    # By its texts, whatever a shard is called.
    second = shards_of(SOFT)[1]
    other = predictor.prepare(predictor.load(RUNS[0]), part(LABEL_ITEMS, second))().table
    assert other["scores"].equals(tables[1]["scores"])
    assert encoded == [ROWS] * (COUNT // ROWS)
    # A change of method frees the last one's predictor at once, with its part of a device's memory.
    alive = weakref.ref(predictor)
    del predictor
    assert alive() is None


SHOTS = tuple((f"it was {n} times as long", n % 3) for n in range(9))
RAW: dict[str, Any] = {"seeds": (7,), "prompt_format": "raw"}
PROMPTED = (ZeroShot(**RAW), FewShot(**RAW), ChainOfThought(**RAW, reasoning_tokens=9))


def ask(who: PromptedReader, texts: list[str]) -> list[Any]:
    shots = SHOTS if isinstance(who.method, FewShot) else ()
    run = Run("run", seed=7, recipe={"shots": shots})
    answer = labelled(who, run, [f"item {text}" for text in texts], texts)
    return [answer[name] for name in ("labels", "parsed", "texts")]


def test_methods_share_the_weights_and_change_none_of_each_others_answers(
    spec: Backbone, store: Store
) -> None:
    texts = prompting.texts(8)
    held = ShardWorker(ModelContext(spec, LABELS), [*PROMPTED, SOFT], store)
    alone = SOFT.trainer(ModelContext(spec, LABELS))
    models = []
    for method in (*PROMPTED, SOFT, PROMPTED[1]):
        now: Any = held.reader(method.name)
        assert held.reader(method.name) is now
        if isinstance(method, methods.SoftPrompt):
            models.append(now.trainer.backbone.model)
            rows = SOFT.encode(alone.encoder, texts)
            found, expected = (
                trainer.logits([trainer.init_weights(1)], [trainer.prepare(rows)])[0]
                for trainer in (now.trainer, alone)
            )
            torch.testing.assert_close(found, expected)
        else:
            models.append(now.answers.backbone.model)
            plain = method.reader(ModelContext(spec, LABELS), store)
            assert ask(now, texts) == ask(plain, texts)
    assert len(set(map(id, models))) == 1


def test_an_answer_without_a_label_counts_as_the_method_says(spec: Backbone, store: Store) -> None:
    texts = prompting.texts(40)
    ids = [f"item {text}" for text in texts]
    found: dict[str, dict[str, Any]] = {}
    for rule in ("random", "likelihood", "invalid"):
        reader = ZeroShot(**RAW, unparsed=rule).reader(ModelContext(spec, LABELS), store)
        found[rule] = labelled(reader, Run("run", seed=7), ids, texts)
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
