"""What tests of plans share."""

from __future__ import annotations

from pathlib import Path

import pytest

from support import imagined


@pytest.fixture(scope="session")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of `imagined.save`."""
    return imagined.save(tmp_path_factory.mktemp("imagined"))
