"""Runs copies on real nodes, each through its agent. Local and SSH nodes differ only in their
connection, so this file knows neither."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from hadar_cli.adapters.connection import Connection
from hadar_cli.adapters.node_hand import NodeHand
from hadar_cli.app.ports import CopyOrder, Report
from hadar_cli.errors import HadarError

_LOOK_AFTER_EVERY_S = 1.0


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
        self._reports: queue.Queue[Report | HadarError] = queue.Queue()
        self._nodes = [NodeHand(c, epoch, self._reports.put, imports) for c in connections]
        self._by_device = {d.name: node for node in self._nodes for d in node.devices}
        self._closing = threading.Event()
        threading.Thread(target=self._look_after_nodes, daemon=True).start()

    def now(self) -> float:
        return time.monotonic() - self._clock_zero

    def adopt(self, orders: Sequence[CopyOrder]) -> None:
        for node in self._nodes:
            node.begin([o for o in orders if self._by_device.get(o.device) is node])

    def start(self, order: CopyOrder) -> None:
        self._by_device[order.device].start(order)

    def wait(self, until: float) -> list[Report]:
        for node in self._nodes:
            node.report_late_copies()
        reports: list[Report] = []
        try:
            found = self._reports.get(timeout=max(0.0, until - self.now()))
            while True:
                if isinstance(found, HadarError):
                    raise found
                reports.append(found)
                found = self._reports.get_nowait()
        except queue.Empty:
            return reports

    def recall(self, attempts: Sequence[str] | None = None) -> None:
        for node in self._nodes:
            node.recall(attempts)

    def stop(self, grace_s: float) -> None:
        self._closing.set()
        with ThreadPoolExecutor(max(1, len(self._nodes))) as pool:
            list(pool.map(lambda node: node.stop(grace_s), self._nodes))

    def _look_after_nodes(self) -> None:
        while not self._closing.wait(_LOOK_AFTER_EVERY_S):
            for node in self._nodes:
                node.look_after()
