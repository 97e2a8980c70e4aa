"""Scale a run's loss where gradients are computed in float16 (Micikevicius et al. 2018).

float16 has no gradient below 6e-8, so the loss is multiplied with a power of two before the
backward pass and the gradient divided by it behind. What is then too large shows as a gradient that
is not finite: that step is left out, and the factor halved. The rule and its numbers are those of
`torch.amp.GradScaler`, which has one factor for all parameters that it is given; here each run of a
pack has its own, so that no run's step depends on another's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

import torch
from torch import Tensor

_FIRST: Final = 2.0**16
_GROWS_AFTER: Final = 2000
#: How a state holds the numbers of a scale.
_STATE: Final = {"factor": torch.float64, "finite": torch.int64, "skipped": torch.int64}


@dataclass
class LossScale:
    """The factor of one run's loss.

    Attributes
    ----------
    factor: 1 for a run whose gradients are not in float16, and stays so.
    finite: steps since it was changed.
    skipped: steps that were left out.
    """

    factor: float = 1.0
    finite: int = 0
    skipped: int = 0
    dynamic: bool = False

    @classmethod
    def of(cls, *, half: bool) -> Self:
        """Begin a run, whose gradients are in float16 or not."""
        return cls(_FIRST, dynamic=True) if half else cls()

    @property
    def can_shrink(self) -> bool:
        """Whether a smaller factor may give a finite gradient; below 1 there is nothing to gain."""
        return self.dynamic and self.factor >= 1

    def update(self, *, finite: bool) -> bool:
        """Take a step's outcome to the next factor; return whether the step is to be taken."""
        if not self.dynamic:
            return finite
        if not finite:
            self.factor, self.finite, self.skipped = self.factor / 2, 0, self.skipped + 1
            return False
        self.finite += 1
        if self.finite == _GROWS_AFTER:
            self.factor, self.finite = self.factor * 2, 0
        return True

    def state(self) -> dict[str, Tensor]:
        """Return its numbers as tensors; none for a factor that stays 1."""
        kept = _STATE if self.dynamic else {}
        return {name: torch.tensor(getattr(self, name), dtype=d) for name, d in kept.items()}

    def load_state(self, state: Mapping[str, Tensor]) -> None:
        """Take up what `state` returned."""
        for name, value in state.items():
            setattr(self, name, value.item())
