"""Fluid bounds: the time that no schedule can beat, however finely it divides the work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FluidPlan:
    """The least time for all the work, and the seconds of each device that each job then gets."""

    makespan_s: float
    seconds: Matrix  # jobs × devices


def forked_optimum(steps: Sequence[float], rates: Matrix) -> FluidPlan:
    """min T with Σ_d X_jd·x_jd ≥ rem_j and Σ_j x_jd ≤ T, for jobs that run anywhere at once.

    ``rates`` is jobs × devices in steps per second; a zero means the job cannot run there.
    """
    from scipy.optimize import linprog  # slow to import, and most commands never need it

    work = np.asarray(steps, dtype=np.float64)
    jobs, devices = rates.shape
    if not jobs or not work.any():
        return FluidPlan(0.0, np.zeros((jobs, devices)))
    scale = np.maximum(work, 1.0)[:, None]
    pairs = jobs * devices
    progress = np.zeros((jobs, pairs + 1))
    for j in range(jobs):
        progress[j, j * devices : (j + 1) * devices] = -rates[j] / scale[j]
    busy = np.zeros((devices, pairs + 1))
    for d in range(devices):
        busy[d, d:pairs:devices] = 1.0
        busy[d, pairs] = -1.0
    cost = np.zeros(pairs + 1)
    cost[pairs] = 1.0
    limits = np.concatenate([-work / scale[:, 0], np.zeros(devices)])
    answer = linprog(cost, A_ub=np.vstack([progress, busy]), b_ub=limits, method="highs-ds")
    if answer.status != 0:
        return FluidPlan(float("inf"), np.zeros((jobs, devices)))
    return FluidPlan(float(answer.fun), answer.x[:pairs].reshape(jobs, devices))
