"""Runs copies on real nodes, each through its agent. Local and SSH nodes differ only in their
connection, so this file knows neither."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor

from hadar_cli.engine.ports import CopyOrder, Merged, Report
from hadar_cli.nodes.connection import Connection
from hadar_cli.nodes.gangs import Abandon, FindPort, Gangs, PortAnswer, Start, TellHead
from hadar_cli.nodes.session.threads import SessionThreads

_MOST_MERGES = 4  # at once: they share a disk


class NodeExecutor:
    """Devices of several nodes behind the executor port; no node waits for another.

    ``imports`` is what every node's nursery imports while the first round is still being planned.
    """

    tick_s = 0.5
    prolongs = False  # handing in at the slot's end is also the checkpoint

    def __init__(
        self,
        connections: Sequence[Connection],
        epoch: int,
        clock_starts_at: float,
        imports: Sequence[str] = (),
    ) -> None:
        self._clock_zero = time.monotonic() - clock_starts_at
        self._reports: queue.Queue[Report | PortAnswer | Exception] = queue.Queue()
        self._nodes = [SessionThreads(c, epoch, self._reports.put, imports) for c in connections]
        self._merging = threading.Semaphore(_MOST_MERGES)
        self._by_device = {d.name: node for node in self._nodes for d in node.devices}
        directories = {c.node.name: c.directory for c in connections}
        self._gangs = Gangs([c.node for c in connections], directories)

    def now(self) -> float:
        return time.monotonic() - self._clock_zero

    def adopt(self, orders: Sequence[CopyOrder]) -> None:
        members = self._gangs.adopt(orders)
        for node in self._nodes:
            node.begin([o for o in members if self._by_device.get(o.device) is node])

    def start(self, order: CopyOrder) -> None:
        self._gangs.start(order)
        self._act()

    def wait(self, until: float) -> list[Report]:
        reports: list[Report] = []
        try:
            found = self._reports.get(timeout=max(0.0, until - self.now()))
            while True:
                reports += self._hear(found)
                found = self._reports.get_nowait()
        except queue.Empty:
            self._gangs.look(self.now())
            return reports + self._act()

    def aside(self, work: Callable[[], Merged]) -> None:
        # A daemon: a head that is told to leave at once does not wait for what it would do again.
        threading.Thread(target=self._do_aside, args=(work,), daemon=True).start()

    def _do_aside(self, work: Callable[[], Merged]) -> None:
        with self._merging:
            try:
                self._reports.put(work())
            except Exception as error:  # raised by whoever waits, or nobody would hear of it
                self._reports.put(error)

    def recall(self, attempts: Sequence[str] | None = None) -> None:
        members = None if attempts is None else self._gangs.members_of(attempts)
        for node in self._nodes:
            node.recall(members)

    def _hear(self, found: Report | PortAnswer | Exception) -> list[Report]:
        match found:
            case Exception():
                raise found
            case PortAnswer(attempt, port, why, is_gone):
                if port:
                    self._gangs.port_found(attempt, port)
                else:
                    self._gangs.no_port(attempt, why, is_gone)
            case _:
                self._gangs.hear(found, self.now())
        return self._act()

    def _act(self) -> list[Report]:
        """Carries out what the gangs want; returns what they tell the head."""
        told: list[Report] = []
        for action in self._gangs.take():
            match action:
                case TellHead(report):
                    told.append(report)
                case Start(order):
                    self._by_device[order.device].start(order)
                case Abandon(attempts):
                    for node in self._nodes:
                        node.abandon(attempts)
                case FindPort(attempt, device, address):
                    self._by_device[device].find_port(attempt, address, self._reports.put)
        return told

    def stop(self, grace_s: float) -> None:
        with ThreadPoolExecutor(max(1, len(self._nodes))) as pool:
            list(pool.map(lambda node: node.stop(grace_s), self._nodes))

    def leave(self, kept: Collection[str]) -> None:
        """Lets go of the nodes of these names, whose copies live on for the next head to adopt,
        and stops the others."""
        with ThreadPoolExecutor(max(1, len(self._nodes))) as pool:
            list(pool.map(lambda node: node.leave() if node.name in kept else None, self._nodes))
