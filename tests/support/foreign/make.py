"""Have other harnesses write their logs of twelve made-up questions of BBQ; one package each.

    python tests/support/foreign/make.py inspect    # with inspect_ai 0.3.285
    python tests/support/foreign/make.py lm_eval    # with lm_eval 0.4.13; also lm_eval_pairs
    python tests/support/foreign/make.py helm       # with crfm-helm 0.5.16

What each asks, parses and writes is its own code; only the models are stand-ins.
"""

from __future__ import annotations

import gzip
import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))
from support.answer_data import bbq_line  # noqa: E402


def questions() -> list[dict[str, Any]]:
    """Lines of BBQ without answers, each with a context of its own."""
    lines = [bbq_line(n, context=f"At shop {n}.", question="Who was slow?") for n in range(12)]
    for line in lines:
        del line["m_pred"]
        line["answer_info"] |= {"ans2": ["Can't be determined", "unknown"]}
    return lines


def inspect(folder: Path) -> Path:
    """The log of inspect_evals' task by its own sample, solver and scorer."""
    from inspect_ai import Task, eval
    from inspect_ai.dataset import MemoryDataset, Sample
    from inspect_ai.log import read_eval_log, write_eval_log
    from inspect_ai.model import ModelOutput, ModelUsage, get_model
    from inspect_ai.scorer import choice
    from inspect_ai.solver import multiple_choice

    kept = ("category", "question_index", "question_polarity", "context_condition",
            "answer_info", "additional_metadata")  # fmt: skip
    samples = [
        # As inspect_evals.bbq.record_to_sample and combine_subsets make it.
        Sample(
            input=f"Context: {line['context']}\n\nQuestion: {line['question']}",
            target=chr(ord("A") + line["label"]),
            choices=[line[f"ans{n}"] for n in range(3)],
            id=f"Age_{line['example_id']:05d}",
            metadata={"source_id": line["example_id"], **{name: line[name] for name in kept}},
        )
        for line in questions()
    ]
    said = ["ANSWER: A", "ANSWER: B", "ANSWER: C", "I would rather not say."] * 6
    outputs = [ModelOutput.from_content("mockllm/model", text) for text in said]
    for each in outputs:
        each.usage = ModelUsage()
    model = get_model("mockllm/model", custom_outputs=outputs)
    task = Task(dataset=MemoryDataset(samples), solver=[multiple_choice()], scorer=choice())
    (log,) = eval(task, model=model, epochs=2, log_dir=str(folder), log_format="json",
                  display="none", max_samples=1, max_connections=1)  # fmt: skip
    log = read_eval_log(log.location)
    for sample in log.samples:
        sample.events = []
    write_eval_log(log, str(folder / "log.json"), format="json")
    return folder / "log.json"


def pairs() -> list[dict[str, Any]]:
    """Six pairs with the columns of CrowS-Pairs, as its multilingual copy on the hub has them."""
    return [
        {
            "id": n,
            "sent_more": f"They are slow, {n}.",
            "sent_less": f"We are slow, {n}.",
            "stereo_antistereo": ("stereo", "antistereo")[n % 2],
            "bias_type": ("age", "gender")[n // 3],
        }
        for n in range(6)
    ]


def lm_eval(folder: Path) -> Path:
    """The samples of lm-eval's own BBQ task, whose data set is a local file."""
    hub = "dataset_path: oskarvanderwal/bbq\ndataset_name: All\n"
    return _samples(folder, "bbq/bbq_multiple_choice.yaml", "bbq", hub, questions())


def lm_eval_pairs(folder: Path) -> Path:
    """The samples of lm-eval's own CrowS-Pairs task, whose data set is a local file."""
    hub = "dataset_path: jannalu/crows_pairs_multilingual\ndataset_name: english\n"
    file = "crows_pairs/crows_pairs_english.yaml"
    return _samples(folder, file, "crows_pairs_english", hub, pairs())


def _samples(folder: Path, file: str, task: str, hub: str, lines: list[dict[str, Any]]) -> Path:
    import lm_eval.tasks as tasks
    from lm_eval import simple_evaluate
    from lm_eval.loggers import EvaluationTracker

    data = folder / "data.jsonl"
    data.write_text("\n".join(map(json.dumps, lines)))
    kind = file.partition("/")[0]
    shutil.copytree(Path(tasks.__file__).parent / kind, folder / kind)
    local = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {data}}}}}\n"
    text = (folder / file).read_text().replace(hub, local)
    (folder / file).write_text(text.replace(f"task: {task}\n", f"task: {task}_local\n"))
    manager = tasks.TaskManager(include_path=str(folder / kind), include_defaults=False)
    tracker = EvaluationTracker(output_path=str(folder / "out"))
    found = simple_evaluate(
        model="dummy", tasks=[f"{task}_local"], task_manager=manager, log_samples=True,
        evaluation_tracker=tracker,
    )  # fmt: skip
    tracker.general_config_tracker.log_experiment_args("dummy", "", "", "", None)
    tracker.save_results_aggregated(found, found["samples"])
    tracker.save_results_samples(f"{task}_local", found["samples"][f"{task}_local"])
    (written,) = (folder / "out").rglob("samples_*.jsonl")
    return written


def helm(folder: Path) -> Path:
    """The state of HELM's own scenario, each instance answered with a letter, and its scores."""
    from helm.benchmark.adaptation.adapter_spec import AdapterSpec
    from helm.benchmark.adaptation.request_state import RequestState
    from helm.benchmark.adaptation.scenario_state import ScenarioState
    from helm.benchmark.metrics.bbq_metrics import BBQMetric
    from helm.benchmark.scenarios.bbq_scenario import BBQScenario
    from helm.benchmark.scenarios.scenario import with_instance_ids
    from helm.common.general import asdict_without_nones
    from helm.common.request import GeneratedOutput, Request, RequestResult

    (folder / "data").mkdir()
    (folder / "data" / "Age").write_text("".join(json.dumps(each) + "\n" for each in questions()))
    instances = with_instance_ids(BBQScenario(subject="Age").get_instances(str(folder)))
    states = []
    for n, instance in enumerate(instances):
        texts = [each.output.text for each in instance.references]
        said = GeneratedOutput(text=(" A", " B", " C", " None")[n % 4], logprob=-1.0, tokens=[])
        states.append(
            RequestState(
                instance=instance, reference_index=None, request_mode=None, train_trial_index=0,
                output_mapping=dict(zip("ABC", texts, strict=True)),
                request=Request(model="openai/gpt2", prompt=instance.input.text),
                result=RequestResult(success=True, embedding=[], completions=[said], cached=False),
                num_train_instances=0, prompt_truncated=False,
            )
        )  # fmt: skip
    found = {each.name.name: each.mean for each in BBQMetric().evaluate_instances(states, "")}
    (HERE / "helm_scores.json").write_text(json.dumps(found) + "\n")
    spec = AdapterSpec(method="multiple_choice_joint", model="openai/gpt2")
    path = folder / "scenario_state.json"
    state = asdict_without_nones(ScenarioState(adapter_spec=spec, request_states=states))
    path.write_text(json.dumps(state, indent=1))
    return path


NAMES = {
    "inspect": "inspect_bbq.json.gz",
    "lm_eval": "samples_bbq.jsonl.gz",
    "lm_eval_pairs": "samples_crows_pairs_english.jsonl.gz",
    "helm": "scenario_state.json.gz",
}

if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        written = globals()[sys.argv[1]](Path(temporary))
        packed = gzip.compress(written.read_bytes(), mtime=0)
        (HERE / NAMES[sys.argv[1]]).write_bytes(packed)
