"""Gang policies as the loop knows policies: their memory kept, their kinds turned into devices."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import is_
from typing import Any, ClassVar

import numpy as np

from hadar_cli.core.model import Device, Job
from hadar_cli.core.placement import Placement, Site, place
from hadar_cli.core.policies.registry import ClusterView, Stint
from hadar_cli.core.queue import Allocation, FloatArray, GangPolicy, Queue
from hadar_cli.core.state import JobState


class GangScheduler:
    """Asks a gang policy at the start of a slot, and again when devices come free inside it."""

    forks: ClassVar[bool] = False

    def __init__(self, policy: GangPolicy) -> None:
        self.policy = policy
        self._memory: Any = None
        self._cluster: tuple[Device, ...] = ()
        self._site = Site.of(())
        self._capacity = self._per_node = np.zeros(0, dtype=np.int64)
        self._books = _Books()
        self._counts: dict[tuple[str, ...], Allocation] = {}
        self._seats: Placement = {}  # what was last decided, whether or not it still runs
        self._may_move: bool = getattr(policy, "preempts", True)

    @property
    def name(self) -> str:
        return self.policy.name

    def plan(self, view: ClusterView) -> list[Stint]:
        if view.cluster != self._cluster:
            self._survey(view.cluster)
        self._books.open(view.queue)
        running = self._allocations(view.running)
        self._books.advance(view.now_s, running)
        if not view.queue:
            return []
        is_new_slot = view.seconds >= view.slot_s
        return self._decide(view, running) if is_new_slot else self._refill(view, running)

    def _decide(self, view: ClusterView, running: dict[int, Allocation]) -> list[Stint]:
        seats = self._known_seats(view)
        held = running if seats is view.running else self._allocations(seats)
        decision = self.policy.allocate(self._queue(view, held), self._memory)
        self._memory = decision.memory
        self._books.count_round(decision.allocations, self._site.kinds)
        if decision.allocations != held:
            pinned = () if self._may_move else held
            seats = place(self._site, seats, decision.allocations, pinned)
        self._seats = seats
        return self._stints(decision.allocations, seats)

    def _refill(self, view: ClusterView, running: dict[int, Allocation]) -> list[Stint]:
        """Work for devices that came free; whoever runs stays where it is."""
        self._seats = view.running
        if len(view.queue) == len(view.running):
            return []  # nobody waits
        new = self.policy.refill(self._queue(view, running), self._memory)
        if not new:
            return []
        self._seats = place(self._site, view.running, running | new, pinned=running)
        return self._stints(new, self._seats)

    def _known_seats(self, view: ClusterView) -> Placement:
        """Who runs, and who only handed in at the slot's end, as copies on real nodes do."""
        if len(view.running) == len(self._seats):
            return view.running
        here, taken = self._site.home, {d for gang in view.running.values() for d in gang}
        seats = dict(view.running)
        for state in view.queue:
            gang = self._seats.get(state.job.id, ())
            is_free = taken.isdisjoint(gang) and all(device in here for device in gang)
            if gang and is_free and state.job.id not in seats:
                seats[state.job.id] = gang
        return seats

    def _allocations(self, placed: Placement) -> dict[int, Allocation]:
        return {job: self._count(gang) for job, gang in placed.items()}

    def _stints(self, jobs: Collection[int], placed: Placement) -> list[Stint]:
        left = self._books.left(jobs)
        gangs = [placed[job] for job in jobs]
        return [Stint(job, g[0], n, g) for job, n, g in zip(jobs, left, gangs, strict=True)]

    def _survey(self, cluster: tuple[Device, ...]) -> None:
        """Takes in a cluster that is new, or has lost or regained devices."""
        self._cluster, self._site = cluster, Site.of(cluster)
        self._counts.clear()
        shape = len(self._site.kinds)
        self._capacity, self._per_node = np.zeros((2, shape), dtype=np.int64)
        for shelf in self._site.shelves:
            size = len(shelf.devices)
            self._capacity[shelf.kind] += size
            self._per_node[shelf.kind] = max(self._per_node[shelf.kind], size)

    def _count(self, gang: tuple[str, ...]) -> Allocation:
        """Devices of each kind; those just lost, whose gang is about to fail, are none."""
        if gang not in self._counts:
            self._counts[gang] = self._site.counts(d for d in gang if d in self._site.home)
        return self._counts[gang]

    def _queue(self, view: ClusterView, running: Mapping[int, Allocation]) -> Queue:
        books, rows = self._books, self._books.rows
        rates, spread_rates = view.rates.by_kind(books.jobs, self._site.kinds, view.cluster)
        books.remaining[rows] = [state.remaining for state in view.queue]
        books.take_off(view.progress)
        return Queue(
            now_s=view.now_s,
            slot_s=view.slot_s,
            kinds=self._site.kinds,
            capacity=self._capacity,
            per_node=self._per_node,
            ids=books.ids[rows],
            remaining=books.remaining[rows],
            target=books.target[rows],
            gang=books.gang[rows],
            elastic=books.elastic[rows],
            arrived_s=books.arrived_s[rows],
            attained_s=books.attained_s[rows],
            rounds_on=books.rounds_on(self._site.kinds),
            rates=rates,
            spread_rates=spread_rates,
            running=running,
        )


class _Books:
    """Every job met so far in columns of numbers, and what it has had of the cluster."""

    def __init__(self) -> None:
        self._row: dict[int, int] = {}
        self.ids = self.gang = np.zeros(0, dtype=np.int64)
        self.elastic = np.zeros(0, dtype=np.bool_)
        self.target = self.remaining = self.arrived_s = self.attained_s = np.zeros(0)
        self._rounds: dict[str, FloatArray] = {}  # by kind
        self._now_s = 0.0
        self._states: Sequence[JobState] = ()
        self.jobs: Sequence[Job] = ()  # that are in the queue now
        self.rows = np.zeros(0, dtype=np.int64)  # theirs

    def open(self, states: Sequence[JobState]) -> None:
        """Turns to the jobs of this queue, which are mostly those of the last."""
        if states is self._states:
            return
        if len(states) == len(self._states) and all(map(is_, states, self._states)):
            self._states = states
            return
        self._states = states
        self.jobs = [state.job for state in states]
        self._enter([job for job in self.jobs if job.id not in self._row])
        self.rows = np.array([self._row[job.id] for job in self.jobs], dtype=np.int64)

    def _enter(self, jobs: Sequence[Job]) -> None:
        if not jobs:
            return
        self._row |= {job.id: row for row, job in enumerate(jobs, start=len(self._row))}
        self.ids = np.append(self.ids, [job.id for job in jobs])
        self.gang = np.append(self.gang, [job.gpus for job in jobs])
        self.elastic = np.append(self.elastic, [job.elastic for job in jobs])
        self.target = np.append(self.target, [float(job.target_steps) for job in jobs])
        self.remaining = self.target.copy()
        self.arrived_s = np.append(self.arrived_s, [job.arrives_s for job in jobs])
        nothing = np.zeros(len(jobs))
        self.attained_s = np.append(self.attained_s, nothing)
        self._rounds = {kind: np.append(had, nothing) for kind, had in self._rounds.items()}

    def take_off(self, progress: Mapping[int, int]) -> None:
        """Steps that are done but not committed."""
        self.remaining[[self._row[job] for job in progress]] -= list(progress.values())

    def left(self, jobs: Iterable[int]) -> list[int]:
        steps: list[int] = self.remaining[[self._row[job] for job in jobs]].astype(int).tolist()
        return steps

    def advance(self, now_s: float, running: Mapping[int, Allocation]) -> None:
        elapsed, self._now_s = now_s - self._now_s, now_s
        if elapsed and running:
            widths = np.array([sum(counts) for counts in running.values()])
            self.attained_s[[self._row[job] for job in running]] += elapsed * widths

    def count_round(self, allocations: Mapping[int, Allocation], kinds: Sequence[str]) -> None:
        rows = [self._row[job] for job in allocations]
        for kind, counts in zip(kinds, zip(*allocations.values(), strict=True), strict=False):
            self._rounds_on(kind)[rows] += np.array(counts) > 0

    def rounds_on(self, kinds: Sequence[str]) -> FloatArray:
        return np.stack([self._rounds_on(kind)[self.rows] for kind in kinds], axis=1)

    def _rounds_on(self, kind: str) -> FloatArray:
        if kind not in self._rounds:
            self._rounds[kind] = np.zeros(len(self._row))
        return self._rounds[kind]
