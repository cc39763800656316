"""The best allocation of one round by dynamic programming: an oracle for small queues.

The paper's Algorithm 2 keeps a table over (job, state of the servers). Over pools of kinds the
state is the devices left of each kind, so twelve jobs are a moment's work; hundreds are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

from hadar_cli.core.policies.gangs.queue import Allocation, Queue

MOST_JOBS = 12


def best_allocation(
    queue: Queue, payoff: Callable[[int, Allocation, Allocation], float]
) -> tuple[float, dict[int, Allocation]]:
    """The largest sum of ``payoff(row, allocation, devices left before it)``, and who gets what.

    Jobs are seen in the order of their rows; to leave one out pays nothing.
    """
    if len(queue) > MOST_JOBS:
        raise ValueError(f"{len(queue)} jobs; the exact oracle is for {MOST_JOBS} at most")

    @cache
    def best(j: int, free: Allocation) -> tuple[float, tuple[tuple[int, Allocation], ...]]:
        if j == len(queue):
            return 0.0, ()
        champion = best(j + 1, free)
        for allocation in allocations(queue, j, free):
            left = tuple(f - n for f, n in zip(free, allocation, strict=True))
            later, others = best(j + 1, left)
            total = payoff(j, allocation, free) + later
            if total > champion[0]:
                champion = total, ((int(queue.ids[j]), allocation), *others)
        return champion

    total, chosen = best(0, tuple(int(c) for c in queue.capacity))
    return total, dict(chosen)


def allocations(queue: Queue, j: int, free: Allocation) -> Iterator[Allocation]:
    """Every way to give row ``j`` its gang (any part of it, if elastic) from what is free."""
    gang = int(queue.gang[j])
    usable = [f if queue.rates[j, r] > 0 else 0 for r, f in enumerate(free)]
    for size in range(1 if queue.elastic[j] else gang, gang + 1):
        yield from _divide(size, usable)


def _divide(size: int, room: list[int]) -> Iterator[Allocation]:
    if not room:
        if size == 0:
            yield ()
        return
    for count in range(min(size, room[0]) + 1):
        for rest in _divide(size - count, room[1:]):
            yield (count, *rest)
