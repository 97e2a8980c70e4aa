"""Studies of models whose configurations alone are there, planned on imagined machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
from transformers import OPTConfig

from raybias.config import Study, parse_study
from raybias.planning.inventory import assumed
from raybias.planning.plan import plan
from raybias.planning.prepared import PreparedStudy
from raybias.planning.stage_plans import Plan
from support.words import word_tokenizer

#: Width, layers and heads.
SIZES = {
    "opt-small": (64, 3, 4),
    "opt-125m": (768, 12, 12),
    "opt-13b": (5120, 40, 40),
    "opt-66b": (9216, 64, 72),
}


def save(folder: Path) -> Path:
    """OPTs without weights in `folder`, with training sets and a probe of short and long texts."""
    words = ["<s>", "negative", "neutral", "positive", "a"]
    for name, (hidden, layers, heads) in SIZES.items():
        OPTConfig(
            hidden_size=hidden, word_embed_proj_dim=hidden, ffn_dim=4 * hidden,
            num_hidden_layers=layers, num_attention_heads=heads,
        ).save_pretrained(folder / name)  # fmt: skip
        word_tokenizer(words, unknown="a", bos_token="<s>").save_pretrained(folder / name)
    for name, text, rows in (("short", "a b c", 10), ("long", "a " * 20, 30)):
        (folder / name).mkdir()
        for split, count in (("train", rows), ("validation", rows * 3 // 5)):
            sentences = {"text": [text] * count, "label": [n % 3 for n in range(count)]}
            pl.DataFrame(sentences).write_csv(folder / name / f"{split}.csv")
    few = {
        "text": ["a b c d e"] * 8, "label": [0, 1, 2, 0] * 2, "attribute": "x",
        "group": ["y", "z"] * 4,
    }  # fmt: skip
    many = {
        "text": [f"sentence {n}" for n in range(1100)],
        "label": [n % 3 for n in range(1100)],
        "attribute": ["age"] * 1000 + ["colour"] * 100,
        "group": ["old", "young"] * 500 + ["red", "blue"] * 50,
    }
    pl.DataFrame(few).write_csv(folder / "few.csv")
    pl.DataFrame(many).write_csv(folder / "many.csv")
    return folder


def study(
    folder: Path, *models: str, data: str = "short", probe: str = "many", dtype: str = "bfloat16",
    **sections: Any,
) -> Study:  # fmt: skip
    """A study of a soft prompt, of OPT-125M by default."""
    sections["methods"] = sections.get("methods") or [{"max_steps": 100}]
    return parse_study(
        {
            "name": "imagined",
            "backbones": [
                {"id": str(folder / name), "dtype": dtype} for name in models or ("opt-125m",)
            ],
            "training": [{"source": "file", "name": "set", "data": str(folder / data)}],
            "probes": [{"source": "file", "name": "mine", "data": str(folder / f"{probe}.csv")}],
            **sections,
        }
    )


def planned(wanted: Study, *nodes: str, **options: Any) -> Plan:
    """The plan of a study on nodes as `--assume` takes them."""
    return plan(PreparedStudy.of(wanted), assumed(*nodes), **options)
