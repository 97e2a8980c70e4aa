"""Ray Serve replicas that hold one backbone and swap its adapters.

A request is one shard: texts of a probe and the run whose soft prompt reads them.
It knows nothing of probes, files of predictions or progress.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from ray import serve
from ray.serve.config import AutoscalingConfig

from raybias.config import Backbone, Verbalizer
from raybias.errors import WorkFailed
from raybias.runtime.plan import ScorePlan
from raybias.storage import Store

if TYPE_CHECKING:
    from torch import Tensor

#: Soft prompts are small; this many stay loaded beside the backbone of one replica.
ADAPTERS_PER_REPLICA: Final = 16
#: One request computes while the next waits at the replica, so that none stands idle.
REQUESTS_PER_REPLICA: Final = 2


class Scorer:
    """One backbone in one replica.

    Parameters
    ----------
    spec: which backbone.
    words: the label words, whose logits are the answer.
    out: URI of the study's OUT, which holds `adapters/<run_id>`.
    prompt_length: number of prompt vectors of every adapter.
    append_eos: whether the label is read at an EOS after the text.
    threads: CPUs to compute on.
    gpu: whether to compute on the replica's GPU.
    tokens_per_batch: token budget of one forward pass.
    """

    def __init__(
        self,
        *,
        spec: Backbone,
        words: tuple[str, ...],
        out: str,
        prompt_length: int,
        append_eos: bool,
        threads: int,
        gpu: bool,
        tokens_per_batch: int,
    ) -> None:
        import torch

        from raybias.engine.backbone import load_backbone
        from raybias.engine.scoring import LabelScorer
        from raybias.engine.verbalizer import verbalizer_ids

        torch.set_num_threads(threads)
        self.backbone = load_backbone(spec, device="cuda" if gpu else "cpu")
        ids = verbalizer_ids(self.backbone.tokenizer, words)
        self.scorer = LabelScorer(self.backbone, ids, tokens_per_batch=tokens_per_batch)
        self.store = Store(out)
        self.prompt_length = prompt_length
        self.append_eos = append_eos
        self.turn = asyncio.Lock()

    @serve.multiplexed(max_num_models_per_replica=ADAPTERS_PER_REPLICA)  # type: ignore[untyped-decorator]
    async def adapter(self, run_id: str) -> Tensor:
        """The soft prompt [P, D] of a run."""
        from raybias.engine.adapter import load_soft_prompt

        return await asyncio.to_thread(
            load_soft_prompt,
            self.store,
            f"adapters/{run_id}",
            width=self.backbone.width,
            length=self.prompt_length,
        )

    async def score(self, texts: list[str]) -> dict[str, Any]:
        """Label logits of `texts` with the run that the request is multiplexed to.

        Returns `logits`, float32 [texts, labels] in the order of `texts`, and `seconds`.
        """
        prompt_PD = await self.adapter(serve.get_multiplexed_model_id())
        async with self.turn:
            begun = time.perf_counter()
            logits = await asyncio.to_thread(self._logits, texts, prompt_PD)
            return {"logits": logits, "seconds": time.perf_counter() - begun}

    def _logits(self, texts: list[str], prompt_PD: Tensor) -> Any:
        rows = self.backbone.encode(texts, append_eos=self.append_eos)
        logits_NL = self.scorer.score(
            rows, prompts_SPD=prompt_PD[None], prompt_of_row=[0] * len(rows)
        )
        return logits_NL.numpy()


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
    verbalizer: Verbalizer,
    out: str,
    prompt_length: int,
    append_eos: bool,
) -> Iterator[str]:
    """Hold a Serve application of autoscaling replicas, reachable by handle alone, as `name`.

    Raises
    ------
    WorkFailed: the replicas do not start.
    """
    app = _deployment(plan)(Scorer).bind(
        spec=spec,
        words=verbalizer.words(),
        out=out,
        prompt_length=prompt_length,
        append_eos=append_eos,
        threads=plan.threads,
        gpu=plan.gpus > 0,
        tokens_per_batch=plan.tokens_per_batch,
    )
    serve.start(proxy_location="Disabled", logging_config={"log_level": "WARNING"})
    try:
        _deploy(app, name)
        yield name
    finally:
        serve.delete(name)


def _deployment(plan: ScorePlan) -> Any:
    return serve.deployment(
        name="Scorer",
        ray_actor_options={"num_cpus": plan.replica_cpus, "num_gpus": plan.gpus},
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


def _deploy(app: serve.Application, name: str) -> None:
    try:
        serve.run(app, name=name, route_prefix=None)
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
