"""Gangs on simulated nodes: members that train the same steps, and wait for each other in vain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from hadar_cli.core.policies.port import ClusterView, Stint
from hadar_cli.nodes.gangs import MemberOrder
from tests.faults.checker import Violation

if TYPE_CHECKING:
    from tests.faults.nodes import Clock, Copy, Process, SimulatedNode

_HANGS = 0.3  # of those who lost a peer; the others notice, and end
_ORPHANED_S = 60.0  # nobody may train for longer in a gang that is given up


@dataclass(eq=False)
class Ring:
    """The members of one gang's attempt that have come so far."""

    size: int
    members: dict[int, tuple[SimulatedNode, Process, Copy]] = field(default_factory=dict)
    is_broken: bool = False


class Rings:
    """All of a world's: they know of each other across nodes, as processes on a network do."""

    def __init__(self, clock: Clock, dice: Random) -> None:
        self._clock, self._dice = clock, dice
        self._rings: dict[str, Ring] = {}
        self._met: dict[str, dict[int, Process]] = {}  # by a gang's name

    @staticmethod
    def key(copy: Copy) -> str:
        return copy.order.attempt.partition(".")[0]

    def join(self, node: SimulatedNode, process: Process, copy: Copy) -> None:
        """Begins to train once all have come; until then, and without them, it waits."""
        order = copy.order
        assert isinstance(order, MemberOrder) and order.member
        ring = self._rings.setdefault(self.key(copy), Ring(order.member.size))
        ring.members[order.member.rank] = (node, process, copy)
        if ring.is_broken:
            self._miss_a_peer(node, process, copy)
        elif len(ring.members) == ring.size:
            self._check_group(order.member.gang, ring)
            self._begin(ring)

    def _check_group(self, name: str, ring: Ring) -> None:
        """A gang of one name is the same processes for ever, and they hold the same weights."""
        processes = {rank: process for rank, (_, process, _) in ring.members.items()}
        if self._met.setdefault(name, processes) != processes:
            raise Violation(f"gang {name} goes on with other processes than it met with")
        states = [np.concatenate([p.weights, p.state]) for p in processes.values()]
        if any(not np.array_equal(states[0], other) for other in states):
            raise Violation(f"the members of gang {name} do not hold the same weights")

    def _begin(self, ring: Ring) -> None:
        copies = [copy for _, _, copy in ring.members.values()]
        begins = max(copy.begins + copy.start_s for copy in copies)
        rate = ring.size * min(copy.rate for copy in copies)
        latest = min(copy.issued + copy.order.seconds for copy in copies)
        for copy in copies:
            copy.begins, copy.start_s, copy.rate = begins, 0.0, rate
        fits = copies[0].steps_by(max(latest, begins))
        ends = begins + min(len(copies[0].order.steps), max(1, fits)) / rate + 0.1
        if any(process.leaves for _, process, _ in ring.members.values()):
            ends = begins
        self._end_all(ring, ends, ends)

    def _end_all(self, ring: Ring, when: float, trains_until: float) -> None:
        for node, process, copy in ring.members.values():
            node.end_at(process, copy, when + self._dice.uniform(0, 0.05), trains_until)

    def is_ringed(self, copy: Copy) -> bool:
        """Whether all its members are at work."""
        ring = self._rings.get(self.key(copy))
        return ring is not None and len(ring.members) == ring.size and not ring.is_broken

    def stop(self, copy: Copy) -> None:
        """One is asked to hand in: the word travels with the gradients, all stop alike."""
        if self.is_ringed(copy):
            self._end_all(self._rings[self.key(copy)], self._clock.now + 0.1, self._clock.now)

    def lose(self, copy: Copy) -> None:
        """A member is no more."""
        ring = self._rings.setdefault(self.key(copy), Ring(2))
        if not ring.is_broken and not copy.trained:
            ring.is_broken = True
            for node, process, other in ring.members.values():
                if other is not copy and not other.trained:
                    self._miss_a_peer(node, process, other)

    def hang(self, copy: Copy) -> None:
        """A member says nothing any more, and so nobody gets on."""
        ring = self._rings.setdefault(self.key(copy), Ring(2))
        ring.is_broken = True
        for _, _, other in ring.members.values():
            other.is_hung = other.is_hung or not other.trained

    def _miss_a_peer(self, node: SimulatedNode, process: Process, copy: Copy) -> None:
        if self._dice.random() < _HANGS:
            copy.is_hung = True
        else:
            when = self._clock.now + self._dice.uniform(0, 2)
            self._clock.at(when, lambda: node.kill_if(process, copy))


class OrphanWatch:
    """Looks for members that train, or wait, in a gang that nobody knows of any more."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._since: dict[str, float] = {}

    def look(self, node: SimulatedNode, held: set[str], is_reachable: bool) -> None:
        for process in node.processes.values():
            if not process.copy or not isinstance(process.copy.order, MemberOrder):
                continue
            attempt = process.copy.order.attempt
            if attempt in held or not is_reachable:
                self._since.pop(attempt, None)
            elif self._now() > self._since.setdefault(attempt, self._now()) + _ORPHANED_S:
                raise Violation(f"{attempt} is an orphan: its gang is given up, and it lives on")


@dataclass(frozen=True, slots=True)
class GangWhims:
    """Random gangs on random devices, most of which stay together from slot to slot."""

    name: ClassVar[str] = "gang-whims"
    forks: ClassVar[bool] = False
    seed: int = 0

    def plan(self, view: ClusterView) -> list[Stint]:
        dice = Random(f"{self.seed} {view.now_s} {view.devices}")
        free = list(view.devices)
        busy = {device for gang in view.running.values() for device in gang}
        is_new_slot = view.seconds >= view.slot_s
        stints: list[Stint] = []
        if is_new_slot:
            for job, gang in view.running.items():
                if dice.random() < 0.7 and view.queue.knows(job):
                    stints.append(self._stint(view, job, gang))
            busy = {device for stint in stints for device in stint.devices}
        free = [d for d in (x.name for x in view.cluster) if d not in busy and (d in free or busy)]
        taken = {stint.job for stint in stints} | (set() if is_new_slot else set(view.running))
        for job in view.queue.ids.tolist():
            able = [d for d in free if view.rates.rate(job, d) > 0]
            if job in taken or not able:
                continue
            if dice.random() < 0.1 and (stints or view.running):
                continue
            most = min(len(able), view.queue.job(job).gpus)
            gang = tuple(dice.sample(able, dice.randint(1, most)))
            stints.append(self._stint(view, job, gang))
            free = [device for device in free if device not in gang]
        return stints

    def _stint(self, view: ClusterView, job: int, gang: tuple[str, ...]) -> Stint:
        return Stint(job, gang[0], view.queue.remaining(job), gang if len(gang) > 1 else ())
