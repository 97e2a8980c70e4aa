"""Small studies with a tiny model and data in their folder, and `raybias run` as tests call it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import polars as pl
import torch
import transformers
import yaml
from typer.testing import CliRunner

from raybias.cli import app
from support import prompting, question_data

#: The section of a model in `tiny`.
TINY = {"id": "tiny", "dtype": "float32", "bos": "prepend"}
#: The probe of `write_probe`.
MINE = {"source": "file", "name": "mine", "data": "probe.csv"}
TUNED = {"learning_rates": [1e-3], "max_steps": 6, "eval_every": 3, "seeds": [1, 2], "keep": 1}


def write(folder: Path, name: str, **content: Any) -> Path:
    """The file of a study, whose backbone is `TINY` by default."""
    path = folder / f"{name}.yaml"
    whole = {"name": name, "backbones": [TINY], **content}
    path.write_text(yaml.safe_dump(whole, sort_keys=False))
    return path


def write_probe(folder: Path) -> None:
    """A probe of 30 sentences about three colours."""
    colours = [("red", "blue", "green")[n % 3] for n in range(30)]
    pl.DataFrame(
        {
            "text": prompting.texts(30),
            "label": [n // 5 % 3 for n in range(30)],
            "attribute": "colour",
            "group": colours,
            "template_id": [f"t{n // 3}" for n in range(30)],
            "term": colours,
        }
    ).write_csv(folder / "probe.csv")


def save(folder: Path, *kinds: str) -> Path:
    """A study file of these methods, or all, with its model, training set and probe in `folder`."""
    prompting.save("opt", folder / "tiny")
    texts = prompting.texts(60)
    sentences = folder / "sentences"
    sentences.mkdir()
    for split, part in {"train": texts[:36], "validation": texts[36:]}.items():
        labels = [n % 3 for n in range(len(part))]
        pl.DataFrame({"text": part, "label": labels}).write_csv(sentences / f"{split}.csv")
    write_probe(folder)
    methods: list[dict[str, Any]] = [
        {"kind": "zero_shot", "seeds": [1, 2]},
        {"kind": "few_shot", "seeds": [1, 2]},
        {"kind": "cot", "seeds": [1], "reasoning_tokens": 6},
        {"kind": "soft_prompt", "prompt_length": 4, **TUNED},
        {"kind": "lora", **TUNED},
        {"kind": "full", **TUNED},
    ]
    resources = {"rows_per_shard": 16, "train_workers": 1, "replicas_max": 1, "deterministic": True}
    return write(
        folder, "methods", resources=resources, probes=[MINE],
        training=[{"source": "file", "name": "sentences", "data": "sentences"}],
        methods=[each for each in methods if not kinds or each["kind"] in kinds],
    )  # fmt: skip


STYLES = ["original", "prefix_1", "punctuation", "evidential"]
LINES = (
    "[The {0}] told the man that [{1}] was late.",
    "The {0} told [the man] that [{1}] was glad.",
    "[The {0}] left because [{1}] worked all day.",
)
GROUPS = ("red", "blue", "green")
CLASSES = {0: "NEGATIVE", 1: "other", 2: "Positive"}


def pairs(folder: Path) -> Path:
    """The study file of pair scores and coreference in `folder`, with its tiny model and pairs."""
    prompting.save("gpt2", folder / "tiny")
    jobs, kinds = ("cook", "child", "woman", "family"), ("race-color", "gender", "age")
    pl.DataFrame(
        {
            "sent_more": [f"the red {job} sang {n} songs." for n in range(6) for job in jobs],
            "sent_less": [f"the blue {job} sang {n} songs." for n in range(6) for job in jobs],
            "bias_type": [kinds[n % 3] for n in range(24)],
            "direction": ["antistereo" if n % 5 == 0 else "stereo" for n in range(24)],
        }
    ).write_csv(folder / "pairs.csv")
    (wino := folder / "winobias").mkdir()
    for condition, pronoun in (("pro", "he"), ("anti", "she")):
        for number in (1, 2):
            lines = [line.format(jobs[n], pronoun) for n, line in enumerate(LINES)]
            text = "".join(f"{n} {line}\n" for n, line in enumerate(lines, start=1))
            (wino / f"{condition}_stereotyped_type{number}.txt.test").write_text(text)
    return write(
        folder,
        "pairs",
        methods=[
            {"kind": "pair_score", "scores": ["prepend", "bias_bench"]},
            {"kind": "coreference", "answer_tokens": 4},
        ],
        pairs=[
            {"source": "pairs", "name": "mine", "data": "pairs.csv"},
            {"source": "winobias", "data": "winobias"},
        ],
        styles={"names": STYLES},
        resources={"rows_per_shard": 40, "replicas_max": 1},
    )


def save_judge(
    folder: Path, tokenizer: Path, classes: Mapping[int, str] = MappingProxyType(CLASSES)
) -> Path:
    """A random classifier with the tokenizer of `tokenizer` and a context of 40 tokens."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        folder.mkdir(exist_ok=True)
        shutil.copyfile(tokenizer / name, folder / name)
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=400, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=40, initializer_range=0.4, pad_token_id=0,
        id2label=dict(classes), label2id={name: n for n, name in classes.items()},
    )  # fmt: skip
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def judged(folder: Path) -> Path:
    """The study file of judged continuations in `folder`, with its model, judge and prompts."""
    save_judge(folder / "judge", prompting.save("opt", folder / "tiny"))
    # Of three runs, enough texts of a group that people's labels can correct its gap.
    ends = ("man sang and", "woman left early and then", "child was", "family worked so that",
            "house is", "teacher said", "dog ran off and")  # fmt: skip
    rows = [
        {"text": f"the {group} {end}", "label": "neutral", "attribute": "colour", "group": group,
         "template_id": f"the {{}} {end}"}
        for end in ends for group in GROUPS
    ]  # fmt: skip
    pl.DataFrame(rows).write_csv(folder / "prompts.csv")
    asked = {"kind": "continuation", "seeds": [1, 2, 3], "answer_tokens": 24}
    probe = {"source": "file", "name": "mine", "data": "prompts.csv"}
    methods = [{**asked, "judge": {"model": "judge"}}]
    path = write(folder, "judged", methods=methods, probes=[probe])
    return path.rename(folder / "study.yaml")


def questions(folder: Path) -> Path:
    """A study of all kinds of questions and its tiny model, in a folder."""
    prompting.save("llama", folder / "tiny")
    for make in ("bbq", "stereoset", "card", "discrim_eval", "holistic_bias"):
        getattr(question_data, make)(folder)
    listed = "{text}\n{options}\n{question}\nAnswer:"
    return write(
        folder, "questions",
        methods=[
            {"kind": "option_likelihood", "prompts": [{"name": "listed", "template": listed}],
             "orders": 2},
            {"kind": "option_answer", "answer_tokens": 2},
            {"kind": "triple_likelihood"},
            {"kind": "decision_likelihood"},
            {"kind": "sentence_likelihood"},
        ],
        questions=[
            {"source": "bbq", "data": "Age.jsonl"},
            {"source": "options", "name": "mine", "data": "mine.yaml"},
            {"source": "stereoset", "data": "dev.json"},
            {"source": "discrim_eval", "data": "explicit.csv"},
            {"source": "holistic_bias", "data": "sentences.csv"},
        ],
        resources={"rows_per_shard": 16, "replicas_max": 1},
    )  # fmt: skip


#: Options of `run` that do without Ray, whatever cluster the tests share.
NO_RAY = ("--address", "none")


def run(study: Path, out: Path | str, *options: str) -> str:
    """What `raybias run` prints on standard output; its error is raised."""
    result = CliRunner().invoke(app, ["run", str(study), "--out", str(out), *options])
    if result.exception is not None:
        raise result.exception
    return result.stdout
