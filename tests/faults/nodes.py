"""Simulated machines. They outlive heads: copies go on, and wait with their results, until the
lease of the head that started them runs out."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hadar_cli.app.ports import CopyOrder
from hadar_cli.core.steps import StepSet
from tests.faults.misfortune import Misfortune
from tests.faults.weights import Trained, Vector, train, untrained

LEASE_S = 20.0
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
    base: Vector | None  # weights that came with the order
    issued: float
    begins: float = 0.0
    start_s: float = 0.0
    rate: float = 1.0
    hands_in: float = 0.0  # changes when it is recalled
    is_hung: bool = False
    steps: StepSet = field(default_factory=StepSet)
    trained: Trained | None = None
    crashed: bool = False

    def steps_by(self, t: float) -> int:
        done = int(self.rate * max(0.0, t - self.begins - self.start_s) + 1e-9)
        return min(len(self.order.steps), done)


@dataclass(eq=False, slots=True)
class Process:
    """A worker: holds one job's weights and takes one order after another."""

    job: int
    weights: Vector
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
        devices: Sequence[str],
        clock: Clock,
        misfortune: Misfortune,
        rate: Callable[[int, str], float],
    ) -> None:
        self.devices = tuple(devices)
        self._clock, self._misfortune, self._rate = clock, misfortune, rate
        self.processes: dict[str, Process] = {}
        self.copies: dict[str, Copy] = {}  # ended ones too, until somebody forgets them
        self.epoch = 0
        self.listener: Listener | None = None
        self.is_cut = False
        self.lease_number = 0
        self.steps_trained = 0

    # -- what the head can do ----------------------------------------------------------------

    def open(self, epoch: int, attempts: Sequence[str], listener: Listener) -> set[str]:
        """Goes on with the attempts named, ends all others; those it knows are returned."""
        assert epoch >= self.epoch, "a newer head has taken over this run"
        self.epoch, self.listener = epoch, listener
        self.renew()
        known = {attempt for attempt in attempts if attempt in self.copies}
        for device, process in list(self.processes.items()):
            held = [process.copy, *process.waiting]
            if not any(copy and copy.order.attempt in known for copy in held):
                self._kill(device)
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
                self.lose_processes()

        self._clock.at(self._clock.now + after_s, end)

    def take(self, order: CopyOrder, weights: Vector | None) -> None:
        copy = Copy(order, weights, self._clock.now)
        self.copies[order.attempt] = copy
        process = self.processes.get(order.device)
        if order.follows and (process is None or process.job != order.job.id):
            self._crash(copy)  # whom it was to follow is gone
            return
        if process is None or process.job != order.job.id:
            self._kill(order.device)
            process = self.processes[order.device] = Process(order.job.id, untrained(order.job.id))
        process.waiting.append(copy)
        self._go_on(process)

    def release(self, attempt: str) -> None:
        """The copy's worker hands in and leaves; what was sent ahead to it is lost."""
        copy = self.copies.get(attempt)
        process = self.processes.get(copy.order.device) if copy else None
        if process and process.copy and not process.copy.is_hung:
            process.leaves = True
            self._end_at(process, process.copy, self._clock.now + _SAVE_S, self._clock.now)

    def forget(self, attempt: str) -> None:
        self.copies.pop(attempt, None)

    def stop(self) -> None:
        self.lose_processes()
        self.copies.clear()
        self.listener = None

    # -- what happens to it ------------------------------------------------------------------

    def lose_processes(self) -> None:
        for device in list(self.processes):
            self._kill(device)

    def _kill(self, device: str) -> None:
        if process := self.processes.pop(device, None):
            process.alive = False
            for copy in (process.copy, *process.waiting):
                if copy and not copy.trained:
                    self._crash(copy)

    def _crash(self, copy: Copy) -> None:
        copy.crashed = True
        self._tell(copy)

    def _tell(self, copy: Copy) -> None:
        if self.listener:
            self.listener.ended(self, copy)

    # -- training ----------------------------------------------------------------------------

    def _go_on(self, process: Process) -> None:
        if process.copy or not process.waiting or not process.alive:
            return
        copy = process.copy = process.waiting.popleft()
        order, strikes = copy.order, self._misfortune.strikes
        copy.begins = self._clock.now
        copy.start_s = self._misfortune.dice.uniform(0.3, 3.0) if process.is_new else 0.0
        process.is_new = False
        if not order.follows:
            process.weights = untrained(process.job) if copy.base is None else copy.base
        copy.rate = self._rate(order.job.id, order.device)
        latest = max(copy.issued + order.seconds, copy.begins + copy.start_s)
        quota, fits = len(order.steps), copy.steps_by(latest)
        train_s = min(quota, max(1, fits)) / copy.rate if quota else 0.0
        ends = copy.begins + copy.start_s + train_s + _SAVE_S
        if strikes("copy hung"):
            copy.is_hung = True
        elif strikes("copy crashed"):
            device = order.device
            when = self._misfortune.dice.uniform(self._clock.now, ends)
            self._clock.at(when, lambda: process.copy is copy and self._kill(device))
        else:
            late_s = self._misfortune.dice.uniform(0, 40) if strikes("copy slow") else 0.0
            self._end_at(process, copy, ends + late_s, ends)

    def _end_at(self, process: Process, copy: Copy, when: float, trains_until: float) -> None:
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
            self._kill(copy.order.device)
        self._tell(copy)
        self._go_on(process)

    def trains(self, copy: Copy) -> bool:
        process = self.processes.get(copy.order.device)
        return process is not None and process.copy is copy

    def finish(self, copy: Copy) -> None:
        """Has a copy that trains be done now, without a word to anyone."""
        process = self.processes[copy.order.device]
        self._work(process, copy, self._clock.now)
        process.copy = None

    def _work(self, process: Process, copy: Copy, until: float) -> None:
        copy.steps = copy.order.steps.first(copy.steps_by(until))
        steps = [step for first, end in copy.steps.ranges for step in range(first, end)]
        copy.trained = train(process.weights, process.job, steps)
        process.weights = copy.trained.made
        self.steps_trained += len(steps)
