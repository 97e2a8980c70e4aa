"""Made-up answers to BBQ's questions, and scores of StereoSet's triples."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import polars as pl

from raybias import schema
from raybias.columns import POLARITIES


def bbq_line(number: int = 0, **changes: Any) -> dict[str, Any]:
    """A line of BBQ's published files: the unknown option is the last, the target the first."""
    line = {
        "example_id": number,
        "question_index": str(number // 4 + 1),
        "question_polarity": ("neg", "nonneg")[number // 2 % 2],
        "context_condition": ("ambig", "disambig")[number % 2],
        "category": "Age",
        "answer_info": {"ans0": ["he", "old"], "ans1": ["she", "nonOld"], "ans2": ["?", "unknown"]},
        "additional_metadata": {"stereotyped_groups": ["old"]},
        "ans0": "The grandfather",
        "ans1": "The grandson",
        "ans2": "Can't be determined",
        "label": (2, number // 2 % 2)[number % 2],
        "m_pred": ("the grandfather.", "The grandson", "can't be determined")[number % 3],
    }
    return line | changes


def bbq_file(*lines: dict[str, Any]) -> bytes:
    """The lines as JSON; by default twelve."""
    return b"\n".join(json.dumps(line).encode() for line in lines or map(bbq_line, range(12)))


def questions() -> list[dict[str, Any]]:
    """Lines of BBQ without answers, each with a context of its own."""
    lines = [bbq_line(n, context=f"At shop {n}.", question="Who was slow?") for n in range(12)]
    for line in lines:
        del line["m_pred"]
        line["answer_info"] |= {"ans2": ["Can't be determined", "unknown"]}
    return lines


def option_answers(items: int, templates: int, seed: int, *, unparsed: float = 0.1) -> pl.DataFrame:
    """schema.OPTION_ANSWERS of random answers, right in most questions that tell the answer.

    Questions have all orders of options.
    """
    random = np.random.default_rng(seed)
    options = np.stack([random.permutation(3) for _ in range(items)])
    ambiguous = random.random(items) < 0.5
    pred = random.choice(3, items, p=(0.5, 0.3, 0.2))
    chosen = {"pred": pred, "label": np.where(ambiguous, 2, random.integers(0, 2, items))}
    chosen["pred"] = np.where(~ambiguous & (random.random(items) < 0.7), chosen["label"], pred)
    places = {name: options[np.arange(items), kind] for name, kind in chosen.items()}
    frame = pl.DataFrame(
        {
            "model": random.choice(["m", "n"], items),
            "probe": "bbq",
            "method": "",
            "category": "Age",
            "template_id": [f"t{n}" for n in random.integers(0, templates, items)],
            "item_id": [str(n) for n in range(items)],
            "context": np.where(ambiguous, "ambig", "disambig"),
            "polarity": random.choice(POLARITIES, items),
            "target": options[:, 0],
            "unknown": options[:, 2],
            "scores": None,
            "answer": "",
            "prompt": "",
            **places,
        }
    )
    lost = pl.Series(random.random(items) < unparsed)
    types = pl.Schema(schema.OPTION_ANSWERS)
    return frame.with_columns(pred=pl.when(~lost).then("pred")).select(
        pl.col(name).cast(dtype) for name, dtype in types.items()
    )


def stereoset(
    triples: int, terms: int, *, domain: str = "race", task: str = "intrasentence"
) -> dict[str, Any]:
    """The content of a dev.json; sentence ids are of the form domain-task-triple-role."""
    roles = ("stereotype", "anti-stereotype", "unrelated")
    return {
        "data": {
            task: [
                {
                    "id": f"{domain}-{n}",
                    "target": f"term {n % terms}",
                    "bias_type": domain,
                    "context": "It is BLANK.",
                    "sentences": [
                        {"id": f"{domain}-{task}-{n}-{role}", "sentence": "x", "gold_label": role}
                        for role in roles
                    ],
                }
                for n in range(triples)
            ]
        }
    }


def predictions(items: dict[str, Any], seed: int) -> dict[str, Any]:
    """Published scores of the items' sentences: few different ones, so that there are ties."""
    random = np.random.default_rng(seed)
    return {
        task: [
            {"id": sentence["id"], "score": float(random.integers(0, 4))}
            for triple in triples
            for sentence in triple["sentences"]
        ]
        for task, triples in items["data"].items()
    }
