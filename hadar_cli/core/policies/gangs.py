"""Gang policies as the loop knows policies: their memory kept, their kinds turned into devices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from hadar_cli.core.model import Device, Job
from hadar_cli.core.placement import Placement, Site, place
from hadar_cli.core.policies.registry import ClusterView, Stint
from hadar_cli.core.queue import Allocation, Decision, FloatArray, GangPolicy, IntArray, Queue
from hadar_cli.core.state import JobState


class GangScheduler:
    """Asks a gang policy at the start of a slot, and again when devices come free inside it."""

    forks: ClassVar[bool] = False

    def __init__(self, policy: GangPolicy) -> None:
        self.policy = policy
        self._cluster: tuple[Device, ...] = ()
        self._site = Site.of(())
        self._capacity = self._per_node = np.zeros(0, dtype=np.int64)
        self._books = _Books()
        self._counts: dict[tuple[str, ...], Allocation] = {}
        self._decision = Decision({})
        self._decided_for: Sequence[JobState] = ()
        self._stood = 0  # for so many rounds
        self._seats: Placement = {}  # what was last decided, whether or not it still runs
        self._stints: list[Stint] = []
        self._may_move: bool = getattr(policy, "preempts", True)

    @property
    def name(self) -> str:
        return self.policy.name

    def plan(self, view: ClusterView) -> list[Stint]:
        if view.cluster != self._cluster:
            self._survey(view.cluster)
        if not view.queue:
            return []
        if view.seconds < view.slot_s:
            return self._refill(view)
        seats = self._known_seats(view)
        if not self._stands(view, seats):
            self._decide(view, seats)
        elif seats is not view.running:  # they handed in, and go on with what is left
            self._stints = self._as_stints(view, self._decision.allocations)
        self._stood += 1
        return self._stints

    def _stands(self, view: ClusterView, seats: Placement) -> bool:
        """Whether the decision was for these jobs, all are where it put them, and it lasts."""
        is_same = view.queue is self._decided_for and seats == self._seats
        return is_same and view.now_s < self._decision.until_s

    def _decide(self, view: ClusterView, seats: Placement) -> None:
        held = self._allocations(seats)
        decision = self.policy.allocate(self._queue(view, held), self._decision.memory)
        self._decision, self._decided_for = decision, view.queue
        if decision.allocations != held:
            pinned = () if self._may_move else held
            seats = place(self._site, seats, decision.allocations, pinned)
        self._seats = seats
        self._stints = self._as_stints(view, decision.allocations)

    def _refill(self, view: ClusterView) -> list[Stint]:
        """Work for devices that came free; whoever runs stays where it is.

        The decision stands with that change, as long as it would have stood without it.
        """
        running, new = self._allocations(view.running), {}
        if len(view.queue) > len(view.running):  # somebody waits
            new = self.policy.refill(self._queue(view, running), self._decision.memory)
        self._count_rounds()
        self._decision = replace(self._decision, allocations=running | new)
        self._decided_for, self._seats = view.queue, view.running
        if new:
            self._seats = place(self._site, view.running, running | new, pinned=running)
        self._stints = self._as_stints(view, self._decision.allocations)
        return self._as_stints(view, new)

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

    def _as_stints(self, view: ClusterView, jobs: Iterable[int]) -> list[Stint]:
        states, seats, done = self._books.states, self._seats, view.progress
        return [
            Stint(job, seats[job][0], states[job].remaining - done.get(job, 0), seats[job])
            for job in jobs
        ]

    def _survey(self, cluster: tuple[Device, ...]) -> None:
        """Takes in a cluster that is new, or has lost or regained devices."""
        self._count_rounds()
        kinds = self._site.kinds
        self._cluster, self._site = cluster, Site.of(cluster)
        self._decided_for = ()
        if self._site.kinds != kinds:  # what a policy remembers goes by kinds
            self._decision = Decision({})
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

    def _count_rounds(self) -> None:
        self._books.count_rounds(self._decision.allocations, self._site.kinds, self._stood)
        self._stood = 0

    def _queue(self, view: ClusterView, running: Mapping[int, Allocation]) -> Queue:
        books, kinds = self._books, self._site.kinds
        self._count_rounds()
        books.open(view.queue)
        books.serve(view.now_s, view.running)
        rates, spread_rates = view.rates.by_kind(books.jobs, kinds, view.cluster)
        return Queue(
            now_s=view.now_s,
            slot_s=view.slot_s,
            kinds=kinds,
            capacity=self._capacity,
            per_node=self._per_node,
            remaining=books.remaining(view.progress),
            attained_s=books.attained_s(),
            rounds_on=books.rounds_on(kinds),
            rates=rates,
            spread_rates=spread_rates,
            running=running,
            **books.columns,
        )


class _Books:
    """Every job met so far in columns of numbers, and what it has had of the cluster."""

    def __init__(self) -> None:
        self.states: dict[int, JobState] = {}
        self._row: dict[int, int] = {}
        self._ids = self._gang = np.zeros(0, dtype=np.int64)
        self._elastic = np.zeros(0, dtype=np.bool_)
        self._target = self._arrived_s = self._attained_s = np.zeros(0)
        self._served_until_s = 0.0
        self._kinds: list[str] = []
        self._rounds = np.zeros((0, 0))  # jobs × kinds
        self._queue: Sequence[JobState] = ()
        self._rows: IntArray = np.zeros(0, dtype=np.int64)  # of the queue's jobs
        self.jobs: Sequence[Job] = ()
        self.columns: dict[str, Any] = {}  # of the queue, but for what changes while it stays

    def open(self, queue: Sequence[JobState]) -> None:
        """Turns to the jobs of this queue, which is mostly the last one itself."""
        if queue is self._queue:
            return
        self._queue = queue
        self.jobs = [state.job for state in queue]
        self._enter([state for state in queue if state.job.id not in self._row])
        rows = self._rows = np.array([self._row[job.id] for job in self.jobs])
        self.columns = {
            "ids": self._ids[rows],
            "gang": self._gang[rows],
            "elastic": self._elastic[rows],
            "target": self._target[rows],
            "arrived_s": self._arrived_s[rows],
        }

    def _enter(self, states: Sequence[JobState]) -> None:
        if not states:
            return
        jobs, nothing = [state.job for state in states], np.zeros(len(states))
        self.states |= {state.job.id: state for state in states}
        self._row |= {job.id: row for row, job in enumerate(jobs, start=len(self._row))}
        self._ids = np.append(self._ids, [job.id for job in jobs])
        self._gang = np.append(self._gang, [job.gpus for job in jobs])
        self._elastic = np.append(self._elastic, [job.elastic for job in jobs])
        self._target = np.append(self._target, [float(job.target_steps) for job in jobs])
        self._arrived_s = np.append(self._arrived_s, [job.arrives_s for job in jobs])
        self._attained_s = np.append(self._attained_s, nothing)
        self._rounds = np.pad(self._rounds, ((0, len(jobs)), (0, 0)))

    def remaining(self, progress: Mapping[int, int]) -> FloatArray:
        """Steps that are not done, whether or not those that are have been committed."""
        steps = self._target.copy()
        steps[self._rows] = [state.remaining for state in self._queue]
        steps[[self._row[job] for job in progress]] -= list(progress.values())
        left: FloatArray = steps[self._rows]
        return left

    def serve(self, now_s: float, gangs: Placement) -> None:
        """Those who run now did so since the last time; nobody is moved in between."""
        elapsed_s, self._served_until_s = now_s - self._served_until_s, now_s
        served_s = [elapsed_s * len(gang) for gang in gangs.values()]
        self._attained_s[[self._row[job] for job in gangs]] += served_s

    def attained_s(self) -> FloatArray:
        attained: FloatArray = self._attained_s[self._rows]
        return attained

    def count_rounds(
        self, allocations: Mapping[int, Allocation], kinds: Sequence[str], times: int
    ) -> None:
        if times and allocations:
            rows = np.array([self._row[job] for job in allocations])
            counts = np.array(list(allocations.values()))
            self._rounds[rows[:, None], self._columns(kinds)] += times * (counts > 0)

    def rounds_on(self, kinds: Sequence[str]) -> FloatArray:
        columns = self._columns(kinds)
        return self._rounds[self._rows[:, None], columns]

    def _columns(self, kinds: Sequence[str]) -> list[int]:
        if new := [kind for kind in kinds if kind not in self._kinds]:
            self._kinds += new
            self._rounds = np.pad(self._rounds, ((0, 0), (0, len(new))))
        return [self._kinds.index(kind) for kind in kinds]
