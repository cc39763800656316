"""Fluid bounds: the time that no schedule can beat, however finely it divides the work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FluidPlan:
    """The least time for all the work, and the seconds of each device that each job then gets."""

    makespan_s: float
    seconds: Matrix  # jobs × devices


def forked_optimum(steps: Sequence[float], rates: Matrix) -> FluidPlan:
    """min T with Σ_d X_jd·x_jd ≥ rem_j and Σ_j x_jd ≤ T, for jobs that run anywhere at once.

    ``rates`` is jobs × devices in steps per second; a zero means the job cannot run there.
    """
    jobs, devices = rates.shape
    ones = np.ones(jobs)
    return _least_time(np.asarray(steps, dtype=np.float64), rates, ones, np.ones(devices), False)


def gang_optimum(
    steps: Sequence[float] | Vector, rates: Matrix, gang: Vector, capacity: Vector
) -> FluidPlan:
    """The same for gangs of W_j devices that run in one place at a time.

    ``rates`` is jobs × kinds, steps per second of one device. x_jr is then the seconds that the
    whole gang spends on kind r: Σ_r W_j·X_jr·x_jr ≥ rem_j, Σ_j W_j·x_jr ≤ c_r·T, Σ_r x_jr ≤ T.
    """
    work = np.asarray(steps, dtype=np.float64)
    fits = gang[:, None] <= capacity[None, :]  # a gang over two kinds is slower than on the better
    speeds = np.where(fits, rates, 0.0) * gang[:, None]
    # A gang that only mixed kinds can hold runs at the slowest of them, at best everywhere.
    homeless = ~speeds.any(axis=1)
    speeds[homeless] = (rates * gang[:, None])[homeless]
    return _least_time(work, speeds, gang.astype(np.float64), capacity.astype(np.float64), True)


def _least_time(work: Vector, speeds: Matrix, width: Vector, pools: Vector, one: bool) -> FluidPlan:
    """min T over seconds x_jr: enough work done, no pool over T, and if ``one`` no job over T."""
    from scipy.optimize import linprog  # slow to import, and most commands never need it
    from scipy.sparse import coo_array

    jobs, kinds = speeds.shape
    nothing = np.zeros((jobs, kinds))
    if not work.any():
        return FluidPlan(0.0, nothing)
    if (work[~speeds.any(axis=1)] > 0).any():
        return FluidPlan(float("inf"), nothing)
    row, column = np.nonzero(speeds)
    pair = np.arange(len(row))
    last = len(pair)
    scale = float(work.max() / speeds[int(work.argmax())].max())  # T near 1 suits the solver
    share = speeds[row, column] * scale / np.maximum(work, 1e-12)[row]
    blocks: list[tuple[Any, Any, Any]] = [
        (row, pair, np.where(work[row] > 0, -share, -1.0)),
        (jobs + column, pair, width[row]),
        (jobs + np.arange(kinds), np.full(kinds, last), -pools),
    ]
    if one:
        blocks.append((jobs + kinds + row, pair, np.ones(last)))
        blocks.append((jobs + kinds + np.arange(jobs), np.full(jobs, last), np.full(jobs, -1.0)))
    rows, columns, values = (np.concatenate(part) for part in zip(*blocks, strict=True))
    height = jobs + kinds + (jobs if one else 0)
    limits = np.zeros(height)
    limits[:jobs] = np.where(work > 0, -1.0, 0.0)
    cost = np.zeros(last + 1)
    cost[last] = 1.0
    matrix = coo_array((values, (rows, columns)), shape=(height, last + 1)).tocsr()
    answer = linprog(cost, A_ub=matrix, b_ub=limits, method="highs-ds")
    if answer.status != 0:
        return FluidPlan(float("inf"), nothing)
    seconds = nothing
    seconds[row, column] = answer.x[:last] * scale
    return FluidPlan(float(answer.fun) * scale, seconds)
