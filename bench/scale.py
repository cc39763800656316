"""What many nodes cost the head: threads, memory, sockets, processor time and bytes.

    python -m bench.scale [--nodes 8 16 32 64]

Real agents behind as many private SSH servers on this computer, and one head, which is this
process. What a node costs is the slope of a line through the sizes; 200 and 1,000 nodes are on that
line. Wall time is left out: here the nodes themselves share the head's two cores.
"""

from __future__ import annotations

import argparse
import gc
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

import numpy as np
import paramiko

from hadar_cli.assembly import connect
from hadar_cli.config.inventory import read_nodes
from hadar_cli.core.model import Job, Launch, Mix, Node
from hadar_cli.core.steps import StepSet
from hadar_cli.engine.ports import CopyOrder, HandedIn
from hadar_cli.nodes.executor import NodeExecutor
from hadar_cli.runs.store import RunFacts, RunStore
from tests.support.lab import running

SCRIPT = str(Path(__file__).parents[1] / "tests" / "support" / "waiting_script.py")
IDLE_S = 10.0
ROUNDS = 3
# All nodes at once would keep this computer's cores from the head. Its threads, which wait for the
# one that has the interpreter and does not get to run, wake every 5 ms to ask for it: it is this
# that one would measure.
AT_ONCE = 8
MODELLED = (200, 1000)
_TCP_INFO_BYTES = 120  # where tcp_info tells bytes acknowledged, then bytes received


@dataclass(frozen=True)
class Cost:
    """Of one size, or of one node."""

    threads: float
    resident_mb: float
    files: float  # open, sockets included
    idle_cpu_ms_per_s: float  # while copies train and nothing is said but that all live
    idle_bytes_per_s: float
    order_cpu_ms: float  # of one order for each, to its weights in the store, beyond the idle cost


def resident_mb() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1000


def moved_bytes() -> int:
    """Over all SSH connections, both ways."""
    total = 0
    for one in gc.get_objects():
        if type(one) is paramiko.Transport and one.is_alive():
            told = one.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
            total += sum(struct.unpack_from("QQ", told, _TCP_INFO_BYTES))
    return total


class Head:
    """A run on these nodes, of which only the executor is real."""

    def __init__(self, nodes: Sequence[Node], folder: Path) -> None:
        self.nodes = nodes
        self.job = Job(0, "j", 10**9, 8, launch=Launch(script=SCRIPT))
        name = f"scale-{len(nodes)}"
        store = RunStore.create(folder, RunFacts(name, Mix("m", (self.job,)), tuple(nodes), "", ""))
        self.executor = NodeExecutor(connect(nodes, store), 1, 0.0)
        self._attempts = 0
        self.executor.adopt([])
        self.round(1, len(nodes))  # opens all, and starts a worker on each

    def close(self) -> None:
        self.executor.stop(0.0)

    def round(self, steps: int, at_once: int) -> None:
        """An order for each node, to so many at once; returns when all have handed in."""
        for first in range(0, len(self.nodes), at_once):
            self._order(self.nodes[first : first + at_once], steps)

    def _order(self, nodes: Sequence[Node], steps: int) -> None:
        left = set()
        for node in nodes:
            n = self._attempts = self._attempts + steps
            left.add(f"a{n}")
            share = StepSet.of([(n, n + steps)])
            self.executor.start(
                CopyOrder(f"a{n}", self.job, node.name, share, 300.0, None, 1, 1, 1, n, 1, 2)
            )
        deadline = time.monotonic() + 300.0
        while left:
            assert time.monotonic() < deadline, f"{len(left)} copies are missing"
            for report in self.executor.wait(self.executor.now() + 5.0):
                if isinstance(report, HandedIn):
                    left.discard(report.attempt)

    def cost(self) -> Cost:
        began, moved = time.process_time(), moved_bytes()
        self.executor.wait(self.executor.now() + IDLE_S)
        idle_s, moved = time.process_time() - began, moved_bytes() - moved
        order_s = []
        for _ in range(ROUNDS):
            began, since = time.process_time(), time.monotonic()
            self.round(1, AT_ONCE)
            waited_s = idle_s / IDLE_S * (time.monotonic() - since)  # many nodes are slow here
            order_s.append(time.process_time() - began - waited_s)
        return Cost(
            threading.active_count(),
            resident_mb(),
            len(list(Path("/proc/self/fd").iterdir())),
            1000 * idle_s / IDLE_S,
            moved / IDLE_S,
            1000 * min(order_s),
        )


def measured(sizes: Sequence[int]) -> dict[int, Cost]:
    found = {}
    with tempfile.TemporaryDirectory(prefix="hadar-bench-") as directory:
        folder = Path(directory)
        with running(folder / "lab", max(sizes)) as lab:
            nodes = [replace(n, emulated_speed=None, gpus=()) for n in read_nodes(lab.inventory)]
            for size in sizes:
                with closing(Head(nodes[:size], folder)) as head:
                    found[size] = head.cost()
                show(f"{size} nodes", found[size])
                gc.collect()
    return found


def modelled(found: dict[int, Cost], size: int) -> Cost:
    lines = np.polyfit(list(found), [astuple(cost) for cost in found.values()], 1)
    return Cost(*(lines[0] * size + lines[1]))


def show(name: str, cost: Cost) -> None:
    told = (f"{field.name} {getattr(cost, field.name):,.1f}" for field in fields(cost))
    print(f"{name:>14}: {', '.join(told)}", flush=True)


def main() -> None:
    usage = argparse.ArgumentParser(description=__doc__)
    usage.add_argument("--nodes", type=int, nargs="+", default=[8, 16, 32, 64])
    found = measured(usage.parse_args().nodes)
    if len(found) > 1:
        zero, one = modelled(found, 0), modelled(found, 1)
        show("a node", Cost(*(b - a for a, b in zip(astuple(zero), astuple(one), strict=True))))
        for size in MODELLED:
            show(f"{size} modelled", modelled(found, size))


if __name__ == "__main__":
    main()
