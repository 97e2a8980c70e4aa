"""Ray Serve replicas that hold one backbone and swap methods and their runs on it.

A request is one shard: texts of a probe and the run that reads them. The replica commits the
answers itself, so that they are not lost with a caller or driver that dies meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

from ray import serve
from ray.serve.config import AutoscalingConfig

from raybias.config import Backbone, Full, Lora, Method, Tuned, Verbalizer
from raybias.errors import WorkFailed
from raybias.runtime.memory import MODELS_PER_REPLICA
from raybias.runtime.metrics import Meter
from raybias.runtime.stages import ScorePlan
from raybias.seeding import key
from raybias.storage import Store

if TYPE_CHECKING:
    import pyarrow as pa

    from raybias.engine.backbone import TextEncoder
    from raybias.runtime.answers import Answer
    from raybias.runtime.shards import Shard

T = TypeVar("T")

#: Prompts and factors are small; this many stay loaded beside the backbone of one replica.
ADAPTERS_PER_REPLICA: Final = 16
#: One request computes while the next waits at the replica, so that none stands idle.
REQUESTS_PER_REPLICA: Final = 2


class Scorer:
    """One backbone in one replica.

    Parameters
    ----------
    spec: which backbone.
    methods: what it may be asked to read by; of `share_weights`.
    words: the label words.
    out: URI of the study's OUT, which holds the runs' adapters or prompts.
    threads: CPUs to compute on.
    gpu: whether to compute on the replica's GPU.
    tokens_per_batch: token budget of one forward pass.
    meter: counts what is read here.
    """

    def __init__(
        self,
        *,
        spec: Backbone,
        methods: Sequence[Method],
        words: tuple[str, ...],
        out: str,
        threads: int,
        gpu: bool,
        tokens_per_batch: int,
        meter: Meter,
    ) -> None:
        import torch

        from raybias.runtime.loading import Answerers

        torch.set_num_threads(threads)
        self.store = Store(out)
        device = "cuda" if gpu else "cpu"
        self.answerers = Answerers(
            spec, words, self.store, device=device, tokens_per_batch=tokens_per_batch
        )
        self.spec, self.methods = spec, {method.name: method for method in methods}
        self.answerers.of(methods[0])  # A replica is ready when its backbone is loaded.
        self.meter, self.busy = meter, meter.watched()
        # A request that its caller gives up while it waits here is never computed.
        self.turn = ThreadPoolExecutor(max_workers=1)

    async def run(self, model_id: str) -> Any:
        """What the answers of a run need, by `model_id`; subclasses keep some of them."""
        method, run_id = model_id.split("/")
        return await asyncio.to_thread(lambda: self._answerer(method).load(run_id))

    def _answerer(self, method: str) -> Any:
        return self.answerers.of(self.methods[method])

    async def score(self, shard: Shard, items: pa.Table) -> dict[str, float]:
        """Commit the answers to a shard's items by its run.

        Returns the `tokens` that were read and written, and `seconds` of compute.
        """
        run = await self.run(model_id(shard.method, shard.run_id))
        answered, seconds = await self._in_turn(
            lambda: self._answerer(shard.method).table(run, shard, items)
        )
        self._count(len(items), answered.tokens)
        # The next request computes while this one's file is written.
        await asyncio.to_thread(self.store.write_table, shard.file, answered.table)
        return {"tokens": answered.tokens, "seconds": seconds}

    async def label(self, method: str, run_id: str, texts: list[str]) -> Answer:
        """What a run of a method that reads sentences says of texts that are no items.

        Raises
        ------
        ModelError: a text that the model cannot read.
        """
        asked = self.methods[method]
        if isinstance(asked, Tuned):
            self._check_lengths(asked, texts)
        run = await self.run(model_id(method, run_id))
        # A sampled answer is keyed by its text, so that asking again gives it again.
        ids = [f"served-{key(text):016x}" for text in texts]
        answer: Answer
        answer, _ = await self._in_turn(lambda: self._answerer(method).answer(run, ids, texts))
        self._count(len(texts), answer["tokens"])
        return answer

    def _check_lengths(self, method: Tuned, texts: list[str]) -> None:
        """As a study's items are checked before it begins; prompts check their own room."""
        from raybias.engine.backbone import check_lengths
        from raybias.runtime.train import prompt_length, read_texts

        rows = read_texts(self.encoder, texts, method)
        names = [f"text {place}" for place in range(len(texts))]
        taken = prompt_length(method)
        check_lengths(rows, context=self.encoder.context, taken=taken, names=names)

    @cached_property
    def encoder(self) -> TextEncoder:
        """The backbone's tokenizer."""
        from raybias.engine.backbone import load_tokenizer

        return load_tokenizer(self.spec)

    async def _in_turn(self, work: Callable[[], T]) -> tuple[T, float]:
        """Computes one thing at a time, with its seconds; the replica answers Serve meanwhile."""

        def timed() -> tuple[T, float]:
            begun = time.perf_counter()
            with self.busy.computing():
                return work(), time.perf_counter() - begun

        return await asyncio.get_running_loop().run_in_executor(self.turn, timed)

    def _count(self, rows: int, tokens: int) -> None:
        self.meter.add("raybias_rows_total", rows)
        self.meter.add("raybias_tokens_total", tokens)


class SmallRunScorer(Scorer):
    """A scorer whose runs are small beside the backbone."""

    @serve.multiplexed(max_num_models_per_replica=ADAPTERS_PER_REPLICA)  # type: ignore[untyped-decorator]
    async def run(self, model_id: str) -> Any:
        """The adapter or prompt of a run."""
        return await super().run(model_id)


class WholeModelScorer(Scorer):
    """A scorer whose runs are as large as the backbone."""

    @serve.multiplexed(max_num_models_per_replica=MODELS_PER_REPLICA)  # type: ignore[untyped-decorator]
    async def run(self, model_id: str) -> Any:
        """The weights of a run."""
        return await super().run(model_id)


def model_id(method: str, run_id: str) -> str:
    """What requests to a replica are multiplexed by: a run, and the method that reads with it."""
    return f"{method}/{run_id}"


def share_weights(methods: Sequence[Method]) -> list[list[Method]]:
    """Methods by the weights that they read: the backbone as it is, or their own of it."""
    frozen: list[Method] = [m for m in methods if not isinstance(m, Lora | Full)]
    own: list[list[Method]] = [[m] for m in methods if isinstance(m, Lora | Full)]
    return [frozen, *own] if frozen else own


def delete_left(prefix: str) -> None:
    """Delete the applications `prefix*` that a killed driver left in the cluster."""
    for name in serve.status().applications:
        if name.startswith(prefix):
            serve.delete(name)


@contextmanager
def scorers(
    name: str,
    plan: ScorePlan,
    *,
    spec: Backbone,
    methods: Sequence[Method],
    verbalizer: Verbalizer,
    out: str,
    meter: Meter,
) -> Iterator[str]:
    """Hold a Serve application of autoscaling replicas, reachable by handle alone, as `name`.

    Parameters
    ----------
    methods: of `share_weights`, for which `plan` is alike.

    Raises
    ------
    WorkFailed: the replicas do not start.
    """
    app = _deployment(plan)(scorer_of(methods)).bind(
        spec=spec,
        methods=tuple(methods),
        words=verbalizer.words(),
        out=out,
        threads=plan.threads,
        gpu=plan.gpus > 0,
        tokens_per_batch=plan.tokens_per_batch,
        meter=meter,
    )
    serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
    try:
        deploy(app, name)
        yield name
    finally:
        serve.delete(name)


def scorer_of(methods: Sequence[Method]) -> type[Scorer]:
    """The class of the replicas that hold the runs of methods of `share_weights`."""
    return WholeModelScorer if isinstance(methods[0], Full) else SmallRunScorer


def _deployment(plan: ScorePlan) -> Any:
    return serve.deployment(
        name="Scorer",
        ray_actor_options={
            "num_cpus": plan.replica_cpus,
            "num_gpus": plan.gpus,
            **plan.requests,
        },
        autoscaling_config=AutoscalingConfig(
            min_replicas=plan.replicas_min,
            max_replicas=plan.replicas_max,
            target_ongoing_requests=REQUESTS_PER_REPLICA,
            # The whole work waits from the start, so scaling up need not wait for a trend.
            upscale_delay_s=1,
            downscale_delay_s=30,
        ),
        max_ongoing_requests=REQUESTS_PER_REPLICA,
        max_constructor_retry_count=2,
        graceful_shutdown_wait_loop_s=0.2,
        graceful_shutdown_timeout_s=5,
    )


def deploy(app: serve.Application, name: str, *, route_prefix: str | None = None) -> None:
    """Run an application and wait until it is ready; by default it is reached by handle alone.

    Raises
    ------
    WorkFailed: a replica does not start; says why.
    """
    try:
        serve.run(app, name=name, route_prefix=route_prefix)
    except RuntimeError as error:
        # Serve keeps the constructor's trace as text; its last line says what happened.
        state = serve.status().applications.get(name)
        said = [each.message for each in state.deployments.values()] if state else []
        lines = [line for text in said for line in text.splitlines() if line.strip()]
        problem = lines[-1].strip() if lines else str(error)
        raise WorkFailed(
            f"no replica starts ({problem})",
            where=name,
            cure="`raybias plan` shows what a replica needs",
        ) from error
