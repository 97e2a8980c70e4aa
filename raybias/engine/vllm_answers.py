"""Answer prompts with vLLM, as the built-in engine does.

vLLM is given tokens, not text, and each request's own seed, which its key decides; tokens are
written as text by the tokenizer that read the prompts. Label log-probabilities are asked for by
token id. What it computes differs from the built-in engine by rounding, and what is sampled by the
generator that draws.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch

from raybias.config.provider import Key, Second, Writing, Written, write_after
from raybias.engine.backbone import TextEncoder, empty_model, load_tokenizer
from raybias.engine.context import Execution, Way
from raybias.engine.generation.sampling import Sampling
from raybias.engine.model_files import reading_model, revision_of, source_of
from raybias.engine.scoring.continuations import continuation_rows
from raybias.engine.verbalizer import summed
from raybias.seeding import key as number_of

if TYPE_CHECKING:
    from raybias.config import Backbone
    from raybias.engine.packing import Row
    from raybias.providers.vllm import VLLM

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


class VLLMAnswers:
    """What one checkpoint writes, and how likely it finds texts; see `config.provider.Answers`.

    Parameters
    ----------
    llm: vLLM's `LLM`, as `load` makes it.
    """

    def __init__(self, spec: Backbone, llm: Any) -> None:
        self.spec, self.llm = spec, llm
        self.encoder: TextEncoder = load_tokenizer(spec)
        self._model = empty_model(spec)

    def write(self, prompts: Sequence[str], keys: Sequence[Key], how: Writing) -> list[Written]:
        """Write an answer after each prompt, in their order.

        Raises
        ------
        ModelError: a prompt that leaves no room for its answer.
        """
        rows = (self.encoder.for_chat if how.chat else self.encoder).encode(prompts)
        sampling = Sampling.of(self._model, temperature=how.temperature)
        made = self._all(rows, [writing_parameters(sampling, how, key) for key in keys])
        return [
            self._written(row, each, sampling, how) for row, each in zip(rows, made, strict=True)
        ]

    def write_twice(
        self, prompts: Sequence[str], keys: Sequence[Key], how: Writing, then: Second
    ) -> tuple[list[Written], list[Written]]:
        """Write after each prompt, and then after the second prompt made of that."""
        return write_after(self, prompts, keys, how, then)

    def likelihoods(
        self, texts: Sequence[tuple[str, str]], *, chat: bool = False
    ) -> tuple[list[float], int]:
        """Compute the natural log-likelihood of each second text behind its first."""
        rows = continuation_rows(self.encoder.for_chat if chat else self.encoder, texts)
        made = self._all([row.tokens for row in rows], [LIKELIHOOD] * len(rows))
        sums = []
        for row, reply in zip(rows, made, strict=True):
            told = zip(row.tokens[row.since :], reply.prompt_logprobs[row.since :], strict=True)
            sums.append(float(sum(values[token].logprob for token, values in told)))
        return sums, sum(len(row.tokens) for row in rows)

    def _all(self, rows: Sequence[Row], parameters: Sequence[Mapping[str, Any]]) -> list[Any]:
        """Have vLLM answer all rows; it batches them by itself."""
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

    def _written(self, row: Row, reply: Any, sampling: Sampling, how: Writing) -> Written:
        (made,) = reply.outputs
        # vLLM writes a token where only its log-probabilities are asked for.
        tokens = [*made.token_ids][: how.most]
        if tokens and tokens[-1] in sampling.eos_ids:
            tokens.pop()
        text = str(self.encoder.tokenizer.decode(tokens, skip_special_tokens=True))
        told = [made.logprobs[0][label].logprob for label in how.label_ids]
        scores = summed(told, how.labels)
        return Written(text, scores, len(row) + len(tokens))


#: vLLM's sampling parameters of a likelihood; it wants to write a token too.
LIKELIHOOD: Final[Mapping[str, Any]] = {
    "max_tokens": 1,
    "temperature": 0.0,
    "prompt_logprobs": 0,
    "detokenize": False,
}


def writing_parameters(sampling: Sampling, how: Writing, key: Key) -> dict[str, Any]:
    """Return vLLM's sampling parameters of one answer.

    `vllm.SamplingParams` takes them, and so does the column `sampling_params` of `ray.data.llm`.
    """
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
    """Return the options of vLLM's engine, as `vllm.LLM` takes them.

    The GPUs of one worker share every layer (tensor parallelism).
    """
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
    """Load a checkpoint into vLLM's `LLM`.

    Raises
    ------
    ModelError: whatever vLLM says of it.
    """
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    with reading_model(spec, "vLLM"):
        from vllm import LLM

        llm = LLM(**engine_options(spec, execution))
    execution.ways["vLLM"] = Way(f"vLLM {spec.version}", fastest=True)
    return llm
