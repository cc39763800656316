"""Large clusters in small programs: equal devices are one pool, equal jobs one class.

The fluid optimum is sought for classes and pools, which are few however many jobs and devices
there are. What it gives a class is dealt out to its jobs, and a pool's seconds to its devices: a
job stays where it is warm, is split only where a device is full, and so ends up with few copies.
"""

from __future__ import annotations

import heapq

import numpy as np

from hadar_cli.core.arrays import BoolArray, IntArray
from hadar_cli.core.estimates.fluid import Matrix, Vector, forked_optimum


def share_out(steps: Vector, rates: Matrix, warm: BoolArray) -> Matrix:
    """Seconds of each device (columns) for each job (rows) with which all end together, soonest."""
    columns, pool_of, sizes = _distinct(rates.T)
    classes, class_of, _ = _distinct(columns.T)
    work: Vector = np.bincount(class_of, weights=steps).astype(np.float64)
    plan = forked_optimum(work, classes, sizes=sizes.astype(np.float64))
    seconds = np.zeros_like(rates)
    by_pool = _deal_to_jobs(steps, plan.seconds, classes, class_of, _warm_pools(warm, pool_of))
    for pool in range(len(sizes)):
        members = np.flatnonzero(pool_of == pool)
        seconds[:, members] = _deal_to_devices(by_pool[:, pool], warm[:, members])
    return seconds


def _distinct(rows: Matrix) -> tuple[Matrix, IntArray, IntArray]:
    """The different rows, which of them each row is, and how often each occurs."""
    order = np.lexsort(rows.T)
    is_new = np.append(True, (rows[order][1:] != rows[order][:-1]).any(axis=1))
    which = np.empty(len(rows), dtype=np.int64)
    which[order] = np.cumsum(is_new) - 1
    return rows[order][is_new], which, np.bincount(which)


def _warm_pools(warm: BoolArray, pool_of: IntArray) -> BoolArray:
    """Jobs × pools: whether a copy is warm on a device of the pool."""
    pools = np.zeros((len(warm), pool_of.max() + 1), dtype=np.bool_)
    for job, device in np.argwhere(warm).tolist():
        pools[job, pool_of[device]] = True
    return pools


def _deal_to_jobs(
    steps: Vector, class_seconds: Matrix, classes: Matrix, class_of: IntArray, warm: BoolArray
) -> Matrix:
    """Jobs × pools: each class's seconds to its jobs, the warm first, then shortest first."""
    seconds = np.zeros(warm.shape)
    room = class_seconds * classes  # in steps
    left = steps.copy()

    def take(job: int, pool: int, *, all_of_it: bool = False) -> None:
        own = class_of[job]
        taken = left[job] if all_of_it else min(left[job], room[own, pool])
        room[own, pool] -= taken
        left[job] -= taken
        seconds[job, pool] += taken / classes[own, pool]

    for job, pool in np.argwhere(warm & (room[class_of] > 0)).tolist():
        take(job, pool)
    fastest_first = np.argsort(-classes, axis=1, kind="stable").tolist()
    for job in np.argsort(steps, kind="stable").tolist():
        pools = [p for p in fastest_first[class_of[job]] if room[class_of[job], p] > 0]
        for pool in pools:
            if left[job] > 0:
                take(job, pool, all_of_it=pool == pools[-1])
        if left[job] > 0 and not pools:  # rounding left it nothing
            take(job, fastest_first[class_of[job]][0], all_of_it=True)
    return seconds


def _deal_to_devices(seconds: Vector, warm: BoolArray) -> Matrix:
    """Jobs × devices of one pool: every device the same time, jobs whole while that is possible."""
    dealt = np.zeros(warm.shape)
    full_s = float(seconds.sum()) / warm.shape[1]
    left = seconds.tolist()
    load = [0.0] * warm.shape[1]

    def put(job: int, device: int) -> None:
        part = min(left[job], full_s - load[device])
        dealt[job, device] += part
        load[device] += part
        left[job] -= part

    for job, device in np.argwhere(warm & (seconds > 0)[:, None]).tolist():
        put(job, device)
    emptiest = [(load[device], device) for device in range(len(load))]
    heapq.heapify(emptiest)
    for job in np.argsort(seconds, kind="stable").tolist():
        while left[job] > 1e-9 * full_s and emptiest:
            _, device = heapq.heappop(emptiest)
            put(job, device)
            if load[device] < full_s * (1 - 1e-9):
                heapq.heappush(emptiest, (load[device], device))
    return dealt
