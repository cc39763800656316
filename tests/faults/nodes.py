"""Simulated machines. They outlive heads: copies go on, and wait with their results, until the
lease of the head that started them runs out."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from hadar_cli.core.model import Node
from hadar_cli.core.steps import StepSet
from hadar_cli.engine.ports import CopyOrder
from hadar_cli.node.agent_events import Finished, WorkerEnd
from hadar_cli.node.contract import Assignment
from hadar_cli.nodes.gangs import MemberOrder
from tests.faults.checker import Violation
from tests.faults.gangs import Rings
from tests.faults.misfortune import Misfortune
from tests.faults.weights import NONE, Coded, Given, Trained, Vector, code, train, untrained

_SAVE_S = 0.1


class Clock:
    """Virtual time, and what will happen in it."""

    def __init__(self) -> None:
        self.now = 0.0
        self._number = 0
        self._coming: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, when: float, action: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._coming, (max(when, self.now), self._number, action))

    def step(self, until: float) -> bool:
        """Does the next thing; False, and the time is ``until``, if nothing happens by then."""
        if self._coming and self._coming[0][0] <= until:
            self.now, _, action = heapq.heappop(self._coming)
            action()
            return True
        self.now = max(self.now, until)
        return False

    def pass_to(self, until: float) -> None:
        while self.step(until):
            pass


@dataclass(eq=False, slots=True)
class Copy:
    """An order on a node, and what became of it."""

    order: CopyOrder
    assigned: Assignment
    given: Given | None  # what came with the order
    issued: float
    coded: Coded | None = None
    begins: float = 0.0
    start_s: float = 0.0
    rate: float = 1.0
    hands_in: float = 0.0  # changes when it is recalled
    is_hung: bool = False
    steps: StepSet = field(default_factory=StepSet)
    trained: Trained | None = None
    crashed: WorkerEnd | None = None
    told: Finished | None = None  # what it says of itself, true or not

    def steps_by(self, t: float) -> int:
        done = int(self.rate * max(0.0, t - self.begins - self.start_s) + 1e-9)
        return min(len(self.order.steps), done)


@dataclass(eq=False, slots=True)
class Process:
    """A worker: holds one job's weights and takes one order after another."""

    worker: str
    device: str
    job: int
    weights: Vector
    state: Vector = field(default_factory=lambda: NONE)
    last: str = ""  # the attempt that it handed in last
    owed: Vector = field(default_factory=lambda: NONE)
    left: Vector | None = None  # by that attempt, of which it is not known yet if it was merged
    orders: int = 0
    undone: StepSet = field(default_factory=StepSet)  # of its last order
    copy: Copy | None = None
    waiting: deque[Copy] = field(default_factory=deque)
    is_new: bool = True
    leaves: bool = False
    alive: bool = True


class Listener(Protocol):
    """The head's end of the line."""

    def ended(self, node: SimulatedNode, copy: Copy) -> None: ...


class SimulatedNode:
    """One machine with its devices."""

    def __init__(
        self,
        facts: Node,
        clock: Clock,
        misfortune: Misfortune,
        rate: Callable[[int, str], float],
        pieces: Callable[[int, str], int] = lambda job, device: 1,
        rings: Rings | None = None,
        is_broken: Callable[[int], bool] = lambda job: False,
    ) -> None:
        self.facts = facts
        self.devices = tuple(device.name for device in facts.devices)
        self._clock, self._misfortune, self._rate = clock, misfortune, rate
        self._rings = rings or Rings(clock, misfortune.dice)
        self._is_broken = is_broken  # a job whose script ends with an error
        self._pieces = pieces  # that a job's batch must be split into to fit a device
        self.processes: dict[str, Process] = {}  # by worker
        self._ended: set[str] = set()  # workers that are no more
        self.copies: dict[str, Copy] = {}  # ended ones too, until somebody forgets them
        self.epoch = 0
        self.listener: Listener | None = None
        self.is_cut = False
        self.lease_number = 0
        self.steps_trained = 0

    # -- what the head can do ----------------------------------------------------------------

    def open(
        self, epoch: int, attempts: Sequence[str], workers: Sequence[str], listener: Listener
    ) -> dict[str, Assignment]:
        """Goes on with the attempts and workers named, ends all others; what is known of them."""
        assert epoch >= self.epoch, "a newer head has taken over this run"
        self.epoch, self.listener = epoch, listener
        self.renew()
        known = {a: self.copies[a].assigned for a in attempts if a in self.copies}
        kept = {assigned.worker for assigned in known.values()} | set(workers)
        for worker in self.processes.keys() - kept:
            self._kill(worker, WorkerEnd.RELEASED)
        self.copies = {a: copy for a, copy in self.copies.items() if a in known}
        for copy in list(self.copies.values()):
            if copy.trained or copy.crashed:
                self._tell(copy)
        return known

    def renew(self) -> None:
        self.lease_number += 1

    def let_lease_run_out(self, after_s: float) -> None:
        """Nobody renews it from now on."""
        number = self.lease_number

        def end() -> None:
            if number == self.lease_number:
                self.lose_processes(WorkerEnd.NO_LEASE)

        self._clock.at(self._clock.now + after_s, end)

    def take(self, order: CopyOrder, worker: str, given: Given | None) -> Assignment:
        process = self.processes.get(worker)
        is_gone = worker in self._ended
        if not process and not is_gone:
            if order.follows:
                raise Violation(f"{order.attempt} follows another, and was sent to a new process")
            untouched = untrained(order.job.id)
            process = Process(worker, order.device, order.job.id, untouched)
            self.processes[worker] = process
        number = 9
        if process:
            number = process.orders = process.orders + 1
        copy = Copy(order, Assignment(worker, number), given, self._clock.now)
        self.copies[order.attempt] = copy
        if process:
            process.waiting.append(copy)
            self._go_on(process)
        else:
            self._crash(copy, WorkerEnd.EXITED)
        return copy.assigned

    def release(self, worker: str) -> None:
        """It hands in what it has and leaves; what was sent ahead to it is lost."""
        process = self.processes.get(worker)
        if not process:
            return
        if process.copy and isinstance(process.copy.order, MemberOrder):
            process.leaves = True
            self._rings.stop(process.copy)
            if process.copy and process.copy.order.attempt not in self.copies:
                self._kill(worker, WorkerEnd.RELEASED)  # nobody wants what it has
        elif process.copy and not process.copy.is_hung:
            process.leaves = True
            self.end_at(process, process.copy, self._clock.now + _SAVE_S, self._clock.now)
        elif not process.copy:
            self._kill(worker, WorkerEnd.RELEASED)

    def forget(self, attempt: str) -> None:
        self.copies.pop(attempt, None)

    def stop(self) -> None:
        self.lose_processes()
        self.copies.clear()
        self.listener = None

    # -- what happens to it ------------------------------------------------------------------

    def lose_processes(self, end: WorkerEnd = WorkerEnd.SUPERVISOR_KILLED) -> None:
        for worker in list(self.processes):
            self._kill(worker, end)

    def _kill(self, worker: str, end: WorkerEnd) -> None:
        if process := self.processes.pop(worker, None):
            process.alive = False
            self._ended.add(worker)
            for copy in (process.copy, *process.waiting):
                if copy and not copy.trained:
                    self._crash(copy, end)

    def kill_if(self, process: Process, copy: Copy, end: WorkerEnd = WorkerEnd.EXITED) -> None:
        if process.copy is copy:
            self._kill(process.worker, end)

    def _crash(self, copy: Copy, end: WorkerEnd) -> None:
        copy.crashed = end
        self._tell(copy)
        if isinstance(copy.order, MemberOrder):
            self._rings.lose(copy)

    def _tell(self, copy: Copy) -> None:
        if self.listener:
            self.listener.ended(self, copy)

    # -- training ----------------------------------------------------------------------------

    def _go_on(self, process: Process) -> None:
        if process.copy or not process.waiting or not process.alive:
            return
        copy = process.copy = process.waiting.popleft()
        if copy.order.follows:  # it begins with what the one before it has left undone
            copy.order = replace(copy.order, steps=copy.order.steps | process.undone)
        order, strikes = copy.order, self._misfortune.strikes
        copy.begins = self._clock.now
        copy.start_s = self._misfortune.dice.uniform(0.3, 3.0) if process.is_new else 0.0
        process.is_new = False
        if copy.given:
            self._load(process, copy.order, copy.given)  # or else it goes on with what it has
        copy.rate = self._rate(order.job.id, order.device)
        latest = max(copy.issued + order.seconds, copy.begins + copy.start_s)
        quota, fits = len(order.steps), copy.steps_by(latest)
        train_s = min(quota, max(1, fits)) / copy.rate if quota else 0.0
        ends = copy.begins + copy.start_s + train_s + _SAVE_S
        is_doomed = self._doom(process, copy, ends)
        if isinstance(order, MemberOrder):
            self._rings.join(self, process, copy)
        elif not is_doomed:
            late_s = self._misfortune.dice.uniform(0, 40) if strikes("copy slow") else 0.0
            self.end_at(process, copy, ends + late_s, ends)

    def _doom(self, process: Process, copy: Copy, ends: float) -> bool:
        """Whether it will never be done, of which it may be seen to already."""
        order, strikes = copy.order, self._misfortune.strikes
        if order.steps and (
            order.micro_batches < self._pieces(order.job.id, order.device)
            or strikes("copy out of memory")
        ):
            end = WorkerEnd.OUT_OF_MEMORY
            self._clock.at(copy.begins + 0.1, lambda: self.kill_if(process, copy, end))
        elif self._is_broken(order.job.id):
            self._clock.at(copy.begins + 0.1, lambda: self.kill_if(process, copy))
        elif strikes("copy hung"):
            copy.is_hung = True
            if isinstance(order, MemberOrder):
                self._rings.hang(copy)
        elif strikes("copy crashed"):
            when = self._misfortune.dice.uniform(self._clock.now, ends)
            self._clock.at(when, lambda: self.kill_if(process, copy))
        else:
            return False
        return True

    def _load(self, process: Process, order: CopyOrder, given: Given) -> None:
        """As ``training`` does it at the beginning of an order."""
        was_merged = process.last in order.merged_of
        if isinstance(order, MemberOrder):
            process.last *= was_merged
        if was_merged and process.left is not None:
            process.owed = process.left
        process.left = None
        if not order.steps:  # or else it will hand in, and the checker wants to know the last one
            process.last *= was_merged
        process.weights = given.weights
        if given.state is not None:
            process.state = given.state
        elif not was_merged or given.older_state is None:
            process.state = NONE if given.older_state is None else given.older_state

    def end_at(self, process: Process, copy: Copy, when: float, trains_until: float) -> None:
        copy.hands_in = when

        def end() -> None:
            is_current = process.alive and process.copy is copy and copy.hands_in == when
            if is_current and not copy.is_hung:
                self._end(process, copy, trains_until)

        self._clock.at(when, end)

    def _end(self, process: Process, copy: Copy, trained_until: float) -> None:
        self._work(process, copy, trained_until)
        process.copy = None
        if process.leaves:
            self._kill(process.worker, WorkerEnd.RELEASED)
        self._tell(copy)
        self._go_on(process)

    def trains(self, copy: Copy) -> bool:
        process = self.processes.get(copy.assigned.worker)
        return process is not None and process.copy is copy

    def finish(self, copy: Copy) -> None:
        """Has a copy that trains be done now, without a word to anyone."""
        process = self.processes[copy.assigned.worker]
        self._work(process, copy, self._clock.now)
        process.copy = None

    def _work(self, process: Process, copy: Copy, until: float) -> None:
        copy.steps = copy.order.steps.first(copy.steps_by(until))
        process.undone = copy.order.steps - copy.steps
        steps = [step for first, end in copy.steps.ranges for step in range(first, end)]
        trained = train(process.weights, process.state, process.job, steps)
        process.weights, process.state = trained.made, trained.state
        order = copy.order
        sends_state = not order.keeps_optimizer
        copy.trained = replace(trained, sends_state=sends_state, previous=process.last)
        if order.returns_weights or isinstance(order, MemberOrder):
            process.last = Rings.key(copy)  # of a gang's members, rank 0's
        if order.weights and order.hand_in != "full":
            copy.coded = code(trained.made, trained.base, order.hand_in, process.owed)
            copy.trained = replace(copy.trained, made=copy.coded.made)
            if order.hand_in != "bf16":
                process.left = copy.coded.left
        is_first = not isinstance(order, MemberOrder) or not order.member or not order.member.rank
        self.steps_trained += len(steps) if is_first else 0  # a gang's members do the same ones
