"""Tiny backbones, saved once per session."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch

from raybias.engine.backbone import LoadedBackbone
from support import backbones


@pytest.fixture(scope="session")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], LoadedBackbone]:
    """A random backbone by architecture."""
    folder: Path = tmp_path_factory.mktemp("backbones")
    return cache(lambda kind: backbones.load(kind, folder))


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Models this small only wait for a second thread."""
    torch.set_num_threads(1)
