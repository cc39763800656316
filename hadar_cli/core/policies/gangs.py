"""Gang policies as the loop knows policies: their memory kept, their kinds turned into devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from hadar_cli.core.model import Device
from hadar_cli.core.placement import Site, place
from hadar_cli.core.policies.registry import ClusterView, Stint
from hadar_cli.core.queue import Allocation, GangPolicy, Queue


class GangScheduler:
    """Asks a gang policy at the start of a slot, and again when devices come free inside it."""

    forks: ClassVar[bool] = False

    def __init__(self, policy: GangPolicy) -> None:
        self.policy = policy
        self._memory: Any = None
        self._cluster: tuple[Device, ...] = ()
        self._site = Site.of(())
        self._service = _Service()

    @property
    def name(self) -> str:
        return self.policy.name

    def plan(self, view: ClusterView) -> list[Stint]:
        if view.cluster != self._cluster:
            self._cluster, self._site = view.cluster, Site.of(view.cluster)
        running = {job: self._site.counts(gang) for job, gang in view.running.items()}
        self._service.advance(view.now_s, running)
        queue = self._queue(view, running)
        if view.seconds < view.slot_s:
            allocations = running | self.policy.refill(queue, self._memory)
        else:
            decision = self.policy.allocate(queue, self._memory)
            allocations, self._memory = decision.allocations, decision.memory
            self._service.count_round(allocations)
        placed = place(self._site, view.running, allocations)
        left = dict(zip(queue.ids.tolist(), queue.remaining.tolist(), strict=True))
        return [Stint(job, gang[0], int(left[job]), gang) for job, gang in placed.items()]

    def _queue(self, view: ClusterView, running: Mapping[int, Allocation]) -> Queue:
        site, jobs = self._site, [state.job for state in view.queue]
        ids = [job.id for job in jobs]
        rates, spread_rates = view.rates.by_kind(jobs, site.kinds, view.cluster)
        sizes = np.zeros(len(site.kinds), dtype=np.int64)
        capacity = np.zeros(len(site.kinds), dtype=np.int64)
        for shelf in site.shelves:
            capacity[shelf.kind] += len(shelf.devices)
            sizes[shelf.kind] = max(sizes[shelf.kind], len(shelf.devices))
        done = view.progress
        return Queue(
            now_s=view.now_s,
            slot_s=view.slot_s,
            kinds=site.kinds,
            capacity=capacity,
            per_node=sizes,
            ids=np.array(ids, dtype=np.int64),
            remaining=np.array(
                [state.remaining - done.get(state.job.id, 0) for state in view.queue], dtype=float
            ),
            target=np.array([job.target_steps for job in jobs], dtype=float),
            gang=np.array([job.gpus for job in jobs], dtype=np.int64),
            elastic=np.array([job.elastic for job in jobs], dtype=bool),
            arrived_s=np.array([job.arrives_s for job in jobs], dtype=float),
            attained_s=np.array([self._service.attained_s.get(i, 0.0) for i in ids]),
            rounds_on=self._service.rounds_on(ids, len(site.kinds)),
            rates=rates,
            spread_rates=spread_rates,
            running=running,
        )


class _Service:
    """What each job has had of the cluster so far."""

    def __init__(self) -> None:
        self.attained_s: dict[int, float] = {}
        self._rounds: dict[int, list[float]] = {}
        self._now_s = 0.0

    def advance(self, now_s: float, running: Mapping[int, Allocation]) -> None:
        elapsed, self._now_s = now_s - self._now_s, now_s
        for job, counts in running.items():
            self.attained_s[job] = self.attained_s.get(job, 0.0) + elapsed * sum(counts)

    def count_round(self, allocations: Mapping[int, Allocation]) -> None:
        for job, counts in allocations.items():
            had = self._rounds.setdefault(job, [0.0] * len(counts))
            for kind, count in enumerate(counts):
                had[kind] += count > 0

    def rounds_on(self, ids: list[int], kinds: int) -> np.ndarray:
        nothing = [0.0] * kinds
        return np.array([self._rounds.get(i, nothing) for i in ids]).reshape(len(ids), kinds)
