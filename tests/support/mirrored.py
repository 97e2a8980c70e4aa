"""Models of the hub in a bucket, and a cache of the hub that is empty."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest
from huggingface_hub import constants


def mirror(
    models: Mapping[str, Path], commit: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Path]:
    """Mirror folders of models, by id, in `place`; return each one's folder in the bucket.

    `commit` is of no other test in this process, which looks for a commit once.
    """
    held = {}
    for name, folder in models.items():
        there = place / "bucket" / f"models--{name.replace('/', '--')}"
        (there / "refs").mkdir(parents=True)
        (there / "refs" / "main").write_text(commit)
        held[name] = shutil.copytree(folder, there / "snapshots" / commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(place / "cache"))
    monkeypatch.setenv("RAYBIAS_MODELS", (place / "bucket").as_uri())
    return held
