"""Read a study's fully tuned classifiers again with int8 weights, for `raybias compare`.

    python benchmarks/int8_classifier.py OUT INTO
    raybias compare OUT INTO

Each run of the method `full` is quantised by torchao as docs/precision.md shows, and read by the
quantised model's own forward pass; INTO/predictions then has OUT's rows with its labels and scores.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import polars as pl
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer, TorchAoConfig

#: Sentences of one pass.
_ROWS = 64


def scores(folder: Path, texts: list[str]) -> torch.Tensor:
    """Return the label logits [N, 3] of a checkpoint's int8 twin."""
    from torchao.quantization import Int8WeightOnlyConfig

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        how = TorchAoConfig(Int8WeightOnlyConfig())
        model = AutoModelForSequenceClassification.from_pretrained(
            folder, quantization_config=how, dtype=torch.float32
        ).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    # Sentences of like length are read together.
    order = sorted(range(len(texts)), key=lambda n: len(texts[n]))
    logits_NL = torch.empty(len(texts), 3)
    with torch.no_grad():
        for first in range(0, len(texts), _ROWS):
            rows = order[first : first + _ROWS]
            inputs = tokenizer([texts[n] for n in rows], padding=True, return_tensors="pt")
            logits_NL[rows] = model(**inputs).logits.float()
    return logits_NL


def main() -> None:
    """Write INTO, and print how many labels of each run differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("into", type=Path)
    args = parser.parse_args()
    for file in sorted(args.out.glob("predictions/*/*.parquet")):
        frame = pl.read_parquet(file)
        probe, run = file.parts[-2], file.stem
        items = pl.read_parquet(args.out / f"items/{probe}.parquet")
        texts = frame.join(items.select("item_id", "text"), on="item_id", maintain_order="left")
        logits_NL = scores(args.out / "adapters" / run, texts["text"].to_list())
        columns: dict[str, Any] = {
            "pred": logits_NL.argmax(-1).numpy(),
            "scores": logits_NL.tolist(),
        }
        read = frame.with_columns(
            pl.Series(name, values).cast(frame.schema[name]) for name, values in columns.items()
        )
        place = args.into / file.relative_to(args.out)
        place.parent.mkdir(parents=True, exist_ok=True)
        read.write_parquet(place)
        differ = (read["pred"] != frame["pred"]).sum()
        print(f"{probe}, {run}: {differ} of {frame.height} labels differ")


if __name__ == "__main__":
    main()
