"""Queues made by hand or by chance, and a bare loop of rounds to run them to their end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hadar_cli.core.policies.gangs.queue import GangPolicy, Queue, gang_rate


def queue_of(
    rates: Sequence[Sequence[float]],
    *,
    capacity: Sequence[int],
    gang: Sequence[int] | None = None,
    steps: Sequence[float] | None = None,
    arrived_s: Sequence[float] | None = None,
    elastic: bool = False,
    slot_s: float = 360.0,
    **others: Any,
) -> Queue:
    """Jobs 0, 1, 2… with these rates of one device; whatever is not said is plain."""
    x = np.array(rates, dtype=np.float64).reshape(-1, len(capacity))
    n = len(x)
    remaining = np.full(n, 1e5) if steps is None else np.array(steps, dtype=np.float64)
    plain: dict[str, Any] = {
        "now_s": 0.0,
        "slot_s": slot_s,
        "kinds": tuple("abcdefgh"[: len(capacity)]),
        "capacity": np.array(capacity),
        "per_node": np.full(len(capacity), 4),
        "ids": np.arange(n),
        "remaining": remaining,
        "target": remaining.copy(),
        "gang": np.ones(n, dtype=np.int64) if gang is None else np.array(gang),
        "elastic": np.full(n, elastic),
        "arrived_s": np.zeros(n) if arrived_s is None else np.array(arrived_s, dtype=np.float64),
        "attained_s": np.zeros(n),
        "rounds_on": np.zeros_like(x),
        "rates": x,
    }
    return Queue(**(plain | others))


def chance_queue(seed: int, jobs: int, capacity: Sequence[int], **others: Any) -> Queue:
    """Rates of every job its own, so that no two choices are worth the same."""
    rng = np.random.default_rng(seed)
    rates = np.exp(rng.normal(0.0, 1.0, (jobs, len(capacity))))
    widest = max(1, sum(capacity))
    gang = np.minimum(rng.choice([1, 1, 1, 2, 4, 8], jobs), widest)
    steps = np.exp(rng.uniform(5.0, 11.0, jobs))
    arrived = -rng.uniform(0.0, 1e4, jobs)
    return queue_of(
        rates.tolist(),
        capacity=capacity,
        gang=gang.tolist(),
        steps=steps.tolist(),
        arrived_s=arrived.tolist(),
        **others,
    )


def run_rounds(policy: GangPolicy, queue: Queue, most: int = 10_000) -> list[dict[int, Any]]:
    """Whole rounds until all work is done; the allocations of each. No refill, no restarts."""
    history: list[dict[int, Any]] = []
    memory: Any = None
    while len(queue):
        assert len(history) < most, f"{len(queue)} jobs never end"
        decision = policy.allocate(queue, memory)
        memory = decision.memory
        history.append(decision.allocations)
        queue = _after(queue, decision.allocations)
    return history


def _after(queue: Queue, allocations: dict[int, Any]) -> Queue:
    remaining, attained = queue.remaining.copy(), queue.attained_s.copy()
    rounds = queue.rounds_on.copy()
    for j, job in enumerate(queue.ids.tolist()):
        if job in allocations:
            remaining[j] -= gang_rate(allocations[job], queue.rates[j].tolist()) * queue.slot_s
            attained[j] += sum(allocations[job]) * queue.slot_s
            rounds[j] += np.array(allocations[job]) > 0
    left = np.flatnonzero(remaining > 1e-6)
    after = replace(
        queue,
        now_s=queue.now_s + queue.slot_s,
        remaining=remaining,
        attained_s=attained,
        rounds_on=rounds,
    ).permuted(left, np.arange(len(queue.kinds)))
    running = {job: allocations[job] for job in after.ids.tolist() if job in allocations}
    return replace(after, running=running)
