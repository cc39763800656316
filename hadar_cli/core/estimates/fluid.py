"""Fluid bounds: the time that no schedule can beat, however finely it divides the work."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hadar_cli.core.estimates.linear import minimize

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class FluidPlan:
    """The least time for all the work, and the seconds of each device that each job then gets."""

    makespan_s: float
    seconds: Matrix  # jobs × devices


def forked_optimum(
    steps: Sequence[float] | Vector,
    rates: Matrix,
    taken_s: Vector | None = None,
    sizes: Vector | None = None,
) -> FluidPlan:
    """min T with Σ_d X_jd·x_jd ≥ rem_j and Σ_j x_jd ≤ T, for jobs that run anywhere at once.

    ``rates`` is jobs × devices in steps per second; a zero means the job cannot run there.
    ``taken_s`` are the seconds of each device that are taken by something else. With ``sizes``, a
    column stands for so many equal devices.
    """
    jobs, devices = rates.shape
    work = np.asarray(steps, dtype=np.float64)
    pools = np.ones(devices) if sizes is None else sizes
    return _least_time(work, rates, np.ones(jobs), pools, False, taken_s)


def gang_optimum(
    steps: Sequence[float] | Vector,
    rates: Matrix,
    gang: Vector,
    capacity: Vector,
    elastic: NDArray[np.bool_] | None = None,
    proportional: NDArray[np.bool_] | None = None,
) -> FluidPlan:
    """The same for gangs of W_j devices, or of no more than W_j for ``elastic`` jobs.

    ``rates`` is jobs × kinds, steps per second of one device. W_j·x_jr is then the seconds of
    devices of kind r that the gang has: Σ_r W_j·X_jr·x_jr ≥ rem_j, Σ_j W_j·x_jr ≤ c_r·T,
    Σ_r x_jr ≤ T. A gang of several kinds runs at its slowest member's rate, which is never more
    than the members' rates together: it is covered too, as is one of ``proportional`` shares, which
    runs at just these.
    """
    work = np.asarray(steps, dtype=np.float64)
    return _for_gangs(work, rates, gang, capacity, elastic, proportional, one=True)


def _for_gangs(
    work: Vector,
    rates: Matrix,
    gang: Vector,
    capacity: Vector,
    elastic: NDArray[np.bool_] | None,
    proportional: NDArray[np.bool_] | None,
    one: bool,
) -> FluidPlan:
    is_too_small = gang[:, None] > capacity[None, :]
    if proportional is not None:
        is_too_small &= ~proportional[:, None]
    if elastic is not None:
        is_too_small &= ~elastic[:, None]
    # A whole gang is on such a kind only beside others, and no faster than the best of those.
    speeds = np.where(is_too_small, np.minimum(rates, _best_other(rates)), rates) * gang[:, None]
    return _least_time(work, speeds, gang.astype(np.float64), capacity.astype(np.float64), one)


def gang_bound_s(
    steps: Vector,
    rates: Matrix,
    gang: Vector,
    capacity: Vector,
    elastic: NDArray[np.bool_],
    proportional: NDArray[np.bool_],
) -> float:
    """The makespan of ``gang_optimum``, sought for classes of jobs that differ in their steps only.

    That is a bound for any jobs. It is the optimum if what a class gets can be divided among its
    jobs by their steps and none is busy longer than that; else the larger program is solved.
    """
    table = np.column_stack([rates, gang, elastic, proportional])
    classes, which = np.unique(table, axis=0, return_inverse=True)
    which = which.reshape(-1)
    work: Vector = np.bincount(which, weights=steps).astype(np.float64)
    kinds = rates.shape[1]
    flags = classes[:, -2] > 0, classes[:, -1] > 0
    plan = _for_gangs(work, classes[:, :kinds], classes[:, kinds], capacity, *flags, one=False)
    longest = np.zeros(len(classes))
    np.maximum.at(longest, which, steps)
    busy_s = plan.seconds.sum(axis=1) * longest / np.maximum(work, 1e-300)
    if busy_s.max(initial=0.0) <= plan.makespan_s:
        return plan.makespan_s
    return gang_optimum(steps, rates, gang, capacity, elastic, proportional).makespan_s


def _best_other(rates: Matrix) -> Matrix:
    """For each kind the highest rate on any other; 0 where there is none."""
    others = np.zeros_like(rates)
    for kind in range(rates.shape[1]):
        others[:, kind] = np.delete(rates, kind, axis=1).max(axis=1, initial=0.0)
    return others


def _least_time(
    work: Vector,
    speeds: Matrix,
    width: Vector,
    pools: Vector,
    one: bool,
    taken_s: Vector | None = None,
) -> FluidPlan:
    """min T over seconds x_jr: enough work done, no pool over T, and if ``one`` no job over T."""
    jobs, kinds = speeds.shape
    nothing = np.zeros((jobs, kinds))
    if not work.any():
        return FluidPlan(0.0, nothing)
    if (work[~speeds.any(axis=1)] > 0).any():
        return FluidPlan(float("inf"), nothing)
    if kinds == 1 and not one:  # all there is to do, one after another
        alone_s = np.divide(work[:, None], speeds, where=speeds > 0, out=nothing)
        taken = 0.0 if taken_s is None else float(taken_s[0])
        return FluidPlan((float(width @ alone_s[:, 0]) + taken) / float(pools[0]), alone_s)
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
    if taken_s is not None:
        limits[jobs : jobs + kinds] = -taken_s / scale
    cost = np.zeros(last + 1)
    cost[last] = 1.0
    answer = minimize(cost, (rows, columns, values), limits, by_simplex=True)
    if answer is None:
        return FluidPlan(float("inf"), nothing)
    seconds = nothing
    seconds[row, column] = answer[:last] * scale
    return FluidPlan(float(answer[last]) * scale, seconds)
