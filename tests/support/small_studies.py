"""Small studies that need no Ray: pairs in styles, and continuations that a classifier judges."""

from __future__ import annotations

import shutil
from pathlib import Path

import polars as pl
import torch
import transformers
import yaml

from support import prompting

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
    wino = folder / "winobias"
    wino.mkdir()
    for condition, pronoun in (("pro", "he"), ("anti", "she")):
        for number in (1, 2):
            lines = [line.format(jobs[n], pronoun) for n, line in enumerate(LINES)]
            text = "".join(f"{n} {line}\n" for n, line in enumerate(lines, start=1))
            (wino / f"{condition}_stereotyped_type{number}.txt.test").write_text(text)
    content = {
        "name": "pairs",
        "backbones": [{"id": "tiny", "dtype": "float32", "bos": "prepend"}],
        "methods": [
            {"kind": "pair_score", "scores": ["prepend", "bias_bench"]},
            {"kind": "coreference", "answer_tokens": 4},
        ],
        "pairs": [
            {"source": "pairs", "name": "mine", "data": "pairs.csv"},
            {"source": "winobias", "data": "winobias"},
        ],
        "styles": {"names": STYLES},
        "resources": {"rows_per_shard": 40, "replicas_max": 1},
    }
    path = folder / "pairs.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def save_judge(folder: Path, tokenizer: Path) -> Path:
    """A random classifier with the tokenizer of `tokenizer` and a context of 40 tokens."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        folder.mkdir(exist_ok=True)
        shutil.copyfile(tokenizer / name, folder / name)
    torch.manual_seed(1)
    config = transformers.BertConfig(
        vocab_size=400, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, max_position_embeddings=40, initializer_range=0.4, pad_token_id=0,
        id2label=CLASSES, label2id={name: n for n, name in CLASSES.items()},
    )  # fmt: skip
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    return folder


def judged(folder: Path) -> Path:
    """The study file of judged continuations in `folder`, with its model, judge and prompts."""
    save_judge(folder / "judge", prompting.save("opt", folder / "tiny"))
    ends = ("man sang and", "woman left early and then", "child was", "family worked so that")
    rows = [
        {"text": f"the {group} {end}", "label": "neutral", "attribute": "colour", "group": group,
         "template_id": f"the {{}} {end}"}
        for end in ends for group in GROUPS
    ]  # fmt: skip
    pl.DataFrame(rows).write_csv(folder / "prompts.csv")
    content = {
        "name": "judged",
        "backbones": [{"id": "tiny", "dtype": "float32", "bos": "prepend"}],
        "methods": [{"kind": "continuation", "seeds": [1, 2, 3], "answer_tokens": 24,
                     "judge": {"model": "judge"}}],
        "probes": [{"source": "file", "name": "mine", "data": "prompts.csv"}],
    }  # fmt: skip
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(content))
    return path
