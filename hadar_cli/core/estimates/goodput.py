"""What a step with a larger batch is worth: statistical efficiency from the gradient noise scale.

A step with ``scale`` times the batch averages out that much of the gradient's variance. As long as
noise dominates it is worth nearly ``scale`` small steps, and where the gradient itself does, hardly
more than one (McCandlish et al. 2018; Pollux, OSDI '21). A job's steps are those of its smallest
batch: goodput is how many of them an update is worth, times the updates in a second.
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

import numpy as np

from hadar_cli.core.arrays import FloatArray
from hadar_cli.core.estimates.gangs import FIXED

# What of a batch's time a larger one does not pay again is not known before one was tried: whoever
# supposes much tries one, and knows.
_HOPED_FIXED, _MOST_FIXED = 0.5, 0.95
MEMORY = 0.5  # of what was known, when more is measured


def gain(scale: FloatArray, square: FloatArray, variance: FloatArray) -> FloatArray:
    """Steps of the batch that ``square`` and ``variance`` belong to, in one of ``scale`` times it.

    ``square`` is |∇L|², ``variance`` the trace of the gradient's covariance at that batch.
    """
    needed = variance / scale + square
    with np.errstate(divide="ignore", invalid="ignore"):
        worth = np.where(needed > 0, (variance + square) / needed, 1.0)
    return np.asarray(worth, dtype=np.float64)


class Update(NamedTuple):
    """So many mini-batches, joined to one, make an update that counts for so many steps."""

    batches: int
    steps: int


ONE = Update(1, 1)


def updates(noise: float | None, most: int) -> list[Update]:
    """For every number of steps the smallest batch that is worth them; one step before noise, the
    variance over the square at one mini-batch, is known."""
    found = [ONE]
    for steps in range(2, most + 1):
        if noise is None or noise + 1 <= steps:
            break
        batches = ceil(noise * steps / (noise + 1 - steps) - 0.01)  # whose ``gain`` is ``steps``
        if batches > most:
            break
        found.append(Update(batches, steps))
    return found


class BatchSizes:
    """Which updates jobs may make that leave their batch open, and what a larger batch takes."""

    def __init__(self, most: dict[int, int]) -> None:
        self._most = most  # mini-batches in an update, by job
        self._noise: dict[int, float] = {}
        self._fixed: dict[int, float] = {}  # by class: of the time of one mini-batch

    def __bool__(self) -> bool:
        """Whether any job leaves it open."""
        return bool(self._most)

    def is_open(self, job_id: int) -> bool:
        return job_id in self._most

    def choices(self, job_id: int) -> list[Update]:
        return updates(self._noise.get(job_id), self._most.get(job_id, 1))

    def observe_noise(self, job_id: int, noise: float) -> None:
        known = self._noise.get(job_id, noise)
        self._noise[job_id] = noise + MEMORY * (known - noise)

    def observe_batch(self, row: int, batches: float, times: float) -> None:
        """A batch of so many took so many times as long as one."""
        fixed = min(_MOST_FIXED, max(0.0, (batches - times) / (batches - 1)))
        known = self._fixed.get(row, fixed)
        self._fixed[row] = fixed + MEMORY * (known - fixed)

    def fixed(self, row: int, batches: float) -> float:
        """What of a mini-batch's time ``batches`` of them, or parts of one, pay but once."""
        return FIXED if batches <= 1 else self._fixed.get(row, _HOPED_FIXED)

    def times(self, row: int, batches: float) -> float:
        """What a batch of so many takes, in the time of one."""
        fixed = self.fixed(row, batches)
        return 1 + (1 - fixed) * (batches - 1)

    def alone(self, job_id: int, row: int) -> float:
        """Steps that one device does in the time of one mini-batch, at best."""
        return max(one.steps / self.times(row, one.batches) for one in self.choices(job_id))

    def take(self, other: BatchSizes, rows: dict[int, int]) -> None:
        """What another has learned; ``rows`` are its classes, and which they are here."""
        self._noise |= {job: noise for job, noise in other._noise.items() if job in self._most}
        self._fixed |= {rows[row]: fixed for row, fixed in other._fixed.items() if row in rows}
