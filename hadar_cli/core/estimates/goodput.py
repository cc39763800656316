"""What a step with a larger batch is worth: statistical efficiency from the gradient noise scale.

A step with ``scale`` times the batch averages out that much of the gradient's variance. As long as
noise dominates it is worth nearly ``scale`` small steps, and where the gradient itself does, hardly
more than one (McCandlish et al. 2018; Pollux, OSDI '21).
"""

from __future__ import annotations

import numpy as np

from hadar_cli.core.arrays import FloatArray


def gain(scale: FloatArray, square: FloatArray, variance: FloatArray) -> FloatArray:
    """Steps of the batch that ``square`` and ``variance`` belong to, in one of ``scale`` times it.

    ``square`` is |∇L|², ``variance`` the trace of the gradient's covariance at that batch.
    """
    needed = variance / scale + square
    with np.errstate(divide="ignore", invalid="ignore"):
        worth = np.where(needed > 0, (variance + square) / needed, 1.0)
    return np.asarray(worth, dtype=np.float64)
