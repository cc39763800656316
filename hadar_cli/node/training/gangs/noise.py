"""The gradient noise scale: how much of a mini-batch's gradient is chance.

A mini-batch's gradient is the true one plus noise whose variance shrinks with the batch. Parts of
one batch, the shares of a gang's members or two halves on one device, tell both: their gradients
differ by noise alone. Variance over square, at the job's own batch, is the noise scale in
mini-batches: as many of them are worth averaging (McCandlish et al. 2018).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

_ENOUGH = 4  # steps; the difference of two squares tells nothing alone
MOST = 1e6  # where no gradient can be seen for all its noise


class NoiseScale:
    """What the steps of one order tell; numbers stay on the device until they are read."""

    def __init__(self, batches: int = 1) -> None:
        self._batches = batches  # of the job's own size, in one of these
        self._variance: Any = 0.0
        self._square: Any = 0.0
        self._steps = 0

    def note(self, whole: Any, parts: Any, count: int) -> None:
        """``parts`` is Σ |uᵢ|²/wᵢ of a batch's parts with the shares wᵢ, ``whole`` is |Σ uᵢ|²."""
        variance = (parts - whole) / (count - 1)
        self._add(whole, variance)

    def note_first(self, whole: Any, part: Any, share: float) -> None:
        """The same of one part: ``part`` is |u₁|², ``share`` its w₁."""
        self._add(whole, (part / share - share * whole) / (1.0 - share))

    def read(self) -> float | None:
        """In mini-batches of the job's own size."""
        variance, square = float(self._variance) * self._batches, float(self._square)
        if self._steps < _ENOUGH or not abs(variance) + abs(square) < float("inf"):
            return None
        return min(MOST, max(0.0, variance) / square) if square > 0 else MOST

    def _add(self, whole: Any, variance: Any) -> None:
        self._steps += 1
        self._variance, self._square = self._variance + variance, self._square + whole - variance


def square_of(tensors: Iterable[torch.Tensor]) -> Any:
    """|x|² of all numbers together."""
    return sum(torch.linalg.vector_norm(x.detach(), dtype=torch.float32) ** 2 for x in tensors)
