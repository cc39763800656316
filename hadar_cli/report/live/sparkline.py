"""A series of numbers in a few cells: how it went, not what it was."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

LEVELS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], cells: int) -> str:
    """The series from its lowest to its highest value, at most ``cells`` wide.

    A longer series is averaged into the cells; NaN and Inf are left out.
    """
    finite = [value for value in values if math.isfinite(value)]
    if not finite or cells < 1:
        return ""
    means = _squeeze(finite, cells)
    low, high = min(means), max(means)
    if high <= low:
        return LEVELS[0] * len(means)
    return "".join(_level((mean - low) / (high - low)) for mean in means)


def heat(shares: Sequence[float]) -> str:
    """Shares from 0 to 1 on a fixed scale, a cell each."""
    return "".join(_level(share) for share in shares)


class Series:
    """A series of bounded length: as it grows, its points come to stand for more values each."""

    _MOST = 128

    def __init__(self) -> None:
        self.points: list[float] = []
        self._stride, self._sum, self._count = 1, 0.0, 0

    def add(self, value: float) -> None:
        if not math.isfinite(value):
            return
        self._sum += value
        self._count += 1
        if self._count == self._stride:
            self.points.append(self._sum / self._count)
            self._sum, self._count = 0.0, 0
        if len(self.points) == self._MOST:
            self.points = _squeeze(self.points, self._MOST // 2)
            self._stride *= 2


def _squeeze(values: Sequence[float], cells: int) -> list[float]:
    """Means of ``cells`` neighbouring groups, or the values themselves if they are no more."""
    if len(values) <= cells:
        return list(values)
    edges = [i * len(values) // cells for i in range(cells + 1)]
    groups = [values[a:b] for a, b in pairwise(edges)]
    return [math.fsum(group) / len(group) for group in groups]


def _level(share: float) -> str:
    return LEVELS[round(max(0.0, min(1.0, share)) * (len(LEVELS) - 1))]
