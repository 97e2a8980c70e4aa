"""What decides whether torch repeats its bits on a GPU."""

from __future__ import annotations

import os

import torch


def settings() -> dict[str, object]:
    """The settings of this process."""
    return {
        "strict": torch.are_deterministic_algorithms_enabled(),
        "warns": torch.is_deterministic_algorithms_warn_only_enabled(),
        "fills": torch.utils.deterministic.fill_uninitialized_memory,
        "cudnn": torch.backends.cudnn.deterministic,
        "cudnn_tries": torch.backends.cudnn.benchmark,
        "cudnn_tf32": torch.backends.cudnn.allow_tf32,
        "tf32": torch.backends.cuda.matmul.allow_tf32,
        "workspace": os.environ.get("CUBLAS_WORKSPACE_CONFIG"),
    }
