"""Gang policies as the loop knows policies: their memory kept, their kinds turned into devices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import ClassVar, TypeVar

import numpy as np

from hadar_cli.core.arrays import FloatArray
from hadar_cli.core.model import Device
from hadar_cli.core.policies.gangs.cluster_devices import ClusterDevices, Placement
from hadar_cli.core.policies.gangs.placement import Placed, place, place_beside
from hadar_cli.core.policies.gangs.queue import Allocation, Decision, GangPolicy, LateQueue
from hadar_cli.core.policies.gangs.service_history import ServiceHistory
from hadar_cli.core.policies.job_queue import JobQueue
from hadar_cli.core.policies.port import ClusterView, Stint

T = TypeVar("T")


class GangScheduler:
    """Asks a gang policy at the start of a slot, and again when devices come free inside it."""

    forks: ClassVar[bool] = False

    def __init__(self, policy: GangPolicy) -> None:
        self.policy = policy
        self._cluster: tuple[Device, ...] = ()
        self._devices = ClusterDevices.of(())
        self._placed = Placed(self._devices, {})
        self._capacity = self._per_node = np.zeros(0, dtype=np.int64)
        self._history = ServiceHistory()
        self._decision = Decision({})
        self._decided_for: JobQueue | None = None
        self._stood = 0  # for so many rounds
        self._places: Placement = {}  # what was last decided, whether or not it still runs
        self._stints: list[Stint] | None = []  # of all that was decided, if asked for yet
        self._may_move: bool = getattr(policy, "preempts", True)

    @property
    def name(self) -> str:
        return self.policy.name

    def plan(self, view: ClusterView) -> list[Stint]:
        if view.cluster is not self._cluster and view.cluster != self._cluster:
            self._survey(view.cluster)
        if not view.queue or not view.cluster:  # nothing to do, or nobody left to do it
            return []
        if view.seconds < view.slot_s:
            return self._refill(view)
        places = self._known_places(view)
        if not self._stands(view, places):
            self._decide(view, places)
        elif places is not view.running:  # they handed in, and go on with what is left
            self._stints = None
        if self._stints is None:
            self._stints = self._as_stints(view, self._decision.allocations, view.progress())
        self._stood += 1
        return self._stints

    def _stands(self, view: ClusterView, places: Placement) -> bool:
        """Whether the decision was for these jobs, all are where it put them, and it lasts."""
        is_same = view.queue is self._decided_for and places == self._places
        return is_same and view.now_s < self._decision.until_s

    def _decide(self, view: ClusterView, places: Placement) -> None:
        held = self._allocations(places)
        queue = self._queue(view, held).settled()
        decision = self.policy.allocate(queue, self._decision.memory)
        self._decision, self._decided_for = decision, view.queue
        if decision.allocations != held:
            pinned = () if self._may_move else held
            places = place(self._devices, places, decision.allocations, pinned)
        self._places, self._stints = places, None
        self._history.watch(held, decision.allocations)

    def _refill(self, view: ClusterView) -> list[Stint]:
        """Work for devices that came free; whoever runs stays where it is.

        The decision stands with that change, as long as it would have stood without it.
        """
        self._placed.follow(view.running)
        running, new = self._placed.allocations, {}
        if len(view.queue) > len(view.running):  # somebody waits
            new = self.policy.refill(self._queue(view, running), self._decision.memory)
        self._count_rounds()
        self._decision = replace(self._decision, allocations=running | new)
        self._decided_for = view.queue if self._decision.outlasts_refills else None
        self._places = view.running
        if new:
            self._places = self._put(new)
            self._history.watch(new)
        self._stints = None
        return self._as_stints(view, new, {})

    def _put(self, new: Mapping[int, Allocation]) -> Placement:
        """Seats for those who are to join the running."""
        running = self._placed
        if running.broken:  # who has lost a device counts with the others only
            return place(
                self._devices, running.gangs, {**running.allocations, **new}, running.gangs
            )
        return place_beside(running, new, pinned=running.gangs)

    def _known_places(self, view: ClusterView) -> Placement:
        """Who runs, and who only handed in at the slot's end, as copies on real nodes do."""
        if len(view.running) == len(self._places):
            return view.running
        here, taken = self._devices.home, {d for gang in view.running.values() for d in gang}
        places, missing = dict(view.running), self._places.keys() - view.running.keys()
        for job in view.queue.ids[np.isin(view.queue.ids, list(missing))].tolist():
            gang = self._places[job]
            if taken.isdisjoint(gang) and all(device in here for device in gang):
                places[job] = gang
        return places

    def _allocations(self, placed: Placement) -> dict[int, Allocation]:
        """Devices of each kind; those just lost, whose gang is about to fail, are none."""
        return dict(
            zip(placed, map(self._devices.counts.__getitem__, placed.values()), strict=True)
        )

    def _as_stints(
        self, view: ClusterView, jobs: Iterable[int], done: Mapping[int, int]
    ) -> list[Stint]:
        remaining, places = view.queue.remaining, self._places
        return [
            Stint(job, places[job][0], remaining(job) - done.get(job, 0), places[job])
            for job in jobs
        ]

    def _survey(self, cluster: tuple[Device, ...]) -> None:
        """Takes in a cluster that is new, or has lost or regained devices."""
        self._count_rounds()
        kinds = self._devices.kinds
        self._cluster, self._devices = cluster, ClusterDevices.of(cluster)
        self._placed = Placed(self._devices, {})
        self._decided_for = None
        if self._devices.kinds != kinds:  # what a policy remembers goes by kinds
            self._decision = Decision({})
        self._capacity = np.array(self._devices.counts[tuple(self._devices.home)], dtype=np.int64)
        self._per_node = np.array(self._devices.largest, dtype=np.int64)

    def _count_rounds(self) -> None:
        self._history.count_rounds(self._decision.allocations, self._devices.kinds, self._stood)
        self._stood = 0

    def _queue(self, view: ClusterView, running: Mapping[int, Allocation]) -> LateQueue:
        history, kinds = self._history, self._devices.kinds
        self._count_rounds()
        history.rows(view.queue)  # those who run may be an earlier head's, and not met yet
        history.serve(view.now_s, view.running)

        rates = _once(lambda: view.rates.by_kind(view.queue.ids, kinds, view.cluster))
        done = _once(lambda: history.done(view.queue, view.progress()))

        def speed() -> FloatArray:
            return np.asarray(queue.rates.max(axis=1, initial=0.0))

        left = _once(lambda: history.remaining(view.queue, done(), speed))
        queue = LateQueue(
            {
                "remaining": lambda: left()[0],
                "at_worst": lambda: left()[1],
                "target": lambda: done() + queue.remaining,
                "attained_s": lambda: history.attained_s(view.queue),
                "rounds_on": lambda: history.rounds_on(view.queue, kinds),
                "rates": lambda: rates()[0],
                "spread_rates": lambda: rates()[1],
                "sized_rates": lambda: view.rates.by_size(view.queue.ids, kinds, view.cluster),
                **history.columns(view.queue),
            },
            now_s=view.now_s,
            slot_s=view.slot_s,
            kinds=kinds,
            capacity=self._capacity,
            per_node=self._per_node,
            ids=view.queue.ids,
            running=running,
            restart_s=view.start_cost_s,
            met=history.met,
            arrivals_s=history.arrivals_s(view.now_s),
        )
        return queue


def _once(make: Callable[[], T]) -> Callable[[], T]:
    """What it makes, made when it is first asked for. Queues are many: ``functools.cache`` would
    cost more than most of what they hold."""
    made: list[T] = []

    def get() -> T:
        if not made:
            made.append(make())
        return made[0]

    return get
