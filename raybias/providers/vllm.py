"""A checkpoint that vLLM loads, in an environment that has it.

vLLM gets tokens and a seed per request from its key; label log-probabilities are asked for by token
id. It differs from the built-in engine by rounding, and samples by another generator.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.metadata import packages_distributions, version
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Self

from pydantic import Field

from raybias.config import Backbone
from raybias.config.parts import Ability
from raybias.engine.answers import Answers, FinishReason, Key, Writing, Written
from raybias.engine.checkpoint import reading_model, revision_of, source_of
from raybias.engine.encoder import TextEncoder, load_tokenizer, summed
from raybias.errors import ConfigError
from raybias.providers.base import Engine, provider
from raybias.seeding import key as number_of

if TYPE_CHECKING:
    from raybias.engine.backbone import ModelContext
    from raybias.engine.context import Execution
    from raybias.engine.keyed_draws import Sampling
    from raybias.engine.packing import Row


@provider
class VLLM(Engine):
    """A checkpoint that vLLM loads."""

    api: Literal["vllm"] = "vllm"
    """Names the engine."""
    memory_share: float = Field(0.9, gt=0, lt=1)
    """Share of a GPU's memory that it takes, for weights, keys and values; what stands beside it,
    such as a judge, has the rest."""

    never_change_answers: ClassVar[frozenset[str]] = frozenset(
        (*Engine.never_change_answers, "memory_share")
    )

    @property
    def abilities(self) -> frozenset[Ability]:
        return frozenset(("chat", "text", "first_tokens", "likelihoods"))

    @property
    def gpu_share(self) -> float:
        return self.memory_share

    def as_installed(self) -> Self:
        """Return the backbone with the installed vLLM's version; ConfigError as in `Engine`."""
        found = version(self._distribution())
        if self.version not in ("", found):
            raise ConfigError(
                f"names vLLM {self.version}, and {found} is installed on this machine",
                where=self.name,
                cure=f"`pip install vllm=={self.version}`, or name {found} and give another --out",
            )
        return self.model_copy(update={"version": found})

    def check_device(self, gpus: int) -> None:
        """Refuse (ConfigError) CPUs where the installed vLLM is for GPUs, and the reverse."""
        name = self._distribution()
        for_cpus = "cpu" in name or version(name).endswith("+cpu")
        if for_cpus == (gpus == 0):
            return
        has, wants, cure = (
            ("CPUs", "GPUs", "install vllm itself, or set resources.gpus_per_worker: 0")
            if for_cpus
            else ("GPUs", "CPUs", "give it nodes with GPUs, or leave out `api: vllm`")
        )
        raise ConfigError(
            f"the installed {name} runs on {has}, and the plan has it on {wants}",
            where=self.name,
            cure=cure,
        )

    def answers(self, context: ModelContext) -> Answers:
        """Load the checkpoint once; ConfigError: no such vLLM; ModelError: it cannot load it."""

        self.as_installed()
        return VLLMAnswers(context.spec, context.kept(load))

    def _distribution(self) -> str:
        """Return the name under which vLLM is installed, which depends on the kind of device."""
        if find_spec("vllm") is None:
            raise ConfigError(
                "vLLM, which is to read it, is not installed on this machine",
                where=self.name,
                cure="`pip install 'raybias[vllm]'` in an environment of its own, on every machine,"
                " or leave out `api: vllm`",
            )
        return packages_distributions()["vllm"][0]


#: vLLM's seeds are smaller.
_SEEDS: Final = 2**63
#: Bytes of keys and values on a CPU, where a share of the memory would be that of other work too.
_CPU_CACHE: Final = 2**30
#: The engine computes in the process that asks, and so ends with it; it tells nobody of itself, and
#: the log only what went wrong.
ENVIRONMENT: Final = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


class VLLMAnswers(Answers):
    """Answers of one checkpoint by `llm`, which `load` makes; see `Answers`."""

    def __init__(self, spec: Backbone, llm: Any) -> None:
        from raybias.engine.backbone import empty_model

        self.spec, self.llm = spec, llm
        self.encoder: TextEncoder = load_tokenizer(spec)
        self._model = empty_model(spec)

    def write(self, prompts: Sequence[str], keys: Sequence[Key], how: Writing) -> list[Written]:
        from raybias.engine.keyed_draws import Sampling

        rows = (self.encoder.for_chat if how.chat else self.encoder).encode(prompts)
        sampling = Sampling.of(self._model, temperature=how.temperature)
        replies = self._all(rows, [writing_parameters(sampling, how, key) for key in keys])
        written = []
        for row, reply in zip(rows, replies, strict=True):
            (made,) = reply.outputs
            # vLLM writes a token where only its log-probabilities are asked for.
            tokens = [*made.token_ids][: how.most]
            finish: FinishReason = "length" if 0 < how.most == len(tokens) else "stop"
            if tokens and tokens[-1] in sampling.eos_ids:
                tokens.pop()
                finish = "stop"
            text = str(self.encoder.tokenizer.decode(tokens, skip_special_tokens=True))
            told = [made.logprobs[0][label].logprob for label in how.label_ids]
            scores = summed(told, how.labels)
            written.append(Written(text, scores, len(row) + len(tokens), finish_reason=finish))
        return written

    def likelihoods(
        self, texts: Sequence[tuple[str, str]], *, chat: bool = False
    ) -> tuple[list[float], int]:
        from raybias.engine.sentence_scores import continuation_rows

        rows = continuation_rows(self.encoder.for_chat if chat else self.encoder, texts)
        made = self._all([row for row, _ in rows], [LIKELIHOOD] * len(rows))
        sums = []
        for (row, since), reply in zip(rows, made, strict=True):
            told = zip(row[since:], reply.prompt_logprobs[since:], strict=True)
            sums.append(float(sum(values[token].logprob for token, values in told)))
        return sums, sum(len(row) for row, _ in rows)

    def _all(self, rows: Sequence[Row], parameters: Sequence[Mapping[str, Any]]) -> list[Any]:
        from vllm import SamplingParams

        if not rows:
            return []
        prompts = [{"prompt_token_ids": [*row]} for row in rows]
        with reading_model(self.spec, "vLLM"):
            return list(
                self.llm.generate(
                    prompts, [SamplingParams(**each) for each in parameters], use_tqdm=False
                )
            )


#: vLLM's sampling parameters of a likelihood; it wants to write a token too.
LIKELIHOOD: Final[Mapping[str, Any]] = {
    "max_tokens": 1,
    "temperature": 0.0,
    "prompt_logprobs": 0,
    "detokenize": False,
}


def writing_parameters(sampling: Sampling, how: Writing, key: Key) -> dict[str, Any]:
    """Return one answer's parameters for `vllm.SamplingParams`, or `ray.data.llm`."""
    drawn = {
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "seed": number_of(*key) % _SEEDS,
    }
    labels = how.label_ids
    return {
        "max_tokens": max(1, how.most),
        "temperature": sampling.temperature,
        "repetition_penalty": sampling.repetition_penalty,
        # What ends a row is what ends it for the built-in engine, and nothing else.
        "ignore_eos": True,
        "stop_token_ids": [*sampling.eos_ids],
        "detokenize": False,
        **(drawn if sampling.temperature else {}),
        **({"logprob_token_ids": labels} if labels else {}),
    }


def engine_options(spec: VLLM, execution: Execution) -> dict[str, Any]:
    """Return options for `vllm.LLM`; a worker's GPUs split every layer (tensor parallelism)."""
    import torch

    on_cpu = torch.device(execution.device).type == "cpu"
    return {
        "model": str(source_of(spec)),
        "revision": revision_of(spec),
        "dtype": spec.dtype,
        "tensor_parallel_size": execution.devices,
        "distributed_executor_backend": "uni" if execution.devices == 1 else "mp",
        "skip_tokenizer_init": True,
        "generation_config": "vllm",
        "load_format": "safetensors",
        "trust_remote_code": False,
        # As much of the model's context as the memory holds.
        "max_model_len": -1,
        "seed": 0,
        # To compile a model for a CPU takes longer than what a CPU is asked for.
        **(
            {"kv_cache_memory_bytes": _CPU_CACHE, "enforce_eager": True}
            if on_cpu
            else {"gpu_memory_utilization": spec.memory_share}
        ),
    }


def load(spec: VLLM, execution: Execution) -> Any:
    """Load a checkpoint into vLLM's `LLM`; ModelError with vLLM's message."""
    from raybias.engine.context import Way

    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    with reading_model(spec, "vLLM"):
        from vllm import LLM

        llm = LLM(**engine_options(spec, execution))
    execution.ways["vLLM"] = Way(f"vLLM {spec.version}", fastest=True)
    return llm
