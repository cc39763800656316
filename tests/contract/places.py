"""Where the suite runs: every executor, with what can befall its nodes and its head."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from hadar_cli.assembly import connect
from hadar_cli.config.inventory import read_nodes
from hadar_cli.core.model import Mix, Node
from hadar_cli.engine.ports import CopyOrder, Executor
from hadar_cli.node.agent import processes
from hadar_cli.node.contract import WORKER
from hadar_cli.nodes.connection import Connection
from hadar_cli.nodes.executor import NodeExecutor
from hadar_cli.nodes.remote import RemoteAccess, RemoteConnection
from hadar_cli.project.packing import CodePacker
from hadar_cli.runs.store import RunFacts, RunStore
from hadar_cli.simulation.executor import Costs, SimulatedExecutor
from hadar_cli.transports import give_back
from tests.faults import weights
from tests.faults.executor import FaultyExecutor
from tests.faults.misfortune import Misfortune
from tests.faults.nodes import Clock, SimulatedNode
from tests.support import pipes
from tests.support.lab import Lab
from tests.support.raylets import RayLab
from tests.support.slurm import SlurmLab

Connect = Callable[[], list[Connection]]


class Place(Protocol):
    """Two nodes, "one" and "two", with a device each, and the head that drives them."""

    executor: Executor

    def next_head(self) -> Executor:
        """The head was killed; another one is there, and has adopted nothing yet."""
        ...

    def take_away(self) -> None:
        """Node "one" cannot be reached any more."""
        ...

    def bring_back(self) -> None: ...

    def close(self) -> None: ...


class SimulatedPlace:
    """The simulator: what an earlier head started is unknown there."""

    def __init__(self) -> None:
        self._simulated = SimulatedExecutor(lambda job, device: 100.0, Costs(0.5, 0.1))
        self.executor: Executor = self._simulated

    def next_head(self) -> Executor:
        now = self.executor.now()
        return SimulatedExecutor(lambda job, device: 100.0, Costs(0.5, 0.1), starts_at=now)

    def take_away(self) -> None:
        self._simulated.lose_device("one", at=self.executor.now())

    def bring_back(self) -> None:
        self._simulated.return_device("one", at=self.executor.now())

    def close(self) -> None: ...


class RealPlace:
    """Real agents and workers. ``begin`` and ``end`` are how node "one" comes and goes."""

    def __init__(
        self, folder: Path, connect: Connect, begin: Callable[[], None], end: Callable[[], None]
    ) -> None:
        self._folder, self._connect, self._begin, self._end = folder, connect, begin, end
        self._heads: list[NodeExecutor] = []
        self.executor = self.next_head()
        self.executor.adopt([])

    def next_head(self) -> Executor:
        self._connections = self._connect()
        self._heads.append(NodeExecutor(self._connections, len(self._heads) + 1, 0.0))
        return self._heads[-1]

    def take_away(self) -> None:
        self._end()
        self._connections[0].abort()

    def bring_back(self) -> None:
        self._begin()

    def close(self) -> None:
        for head in reversed(self._heads):
            head.stop(0.0)
        assert _strays(self._folder) == []


def _strays(below: Path) -> list[int]:
    """Processes that a worker anywhere below the directory left behind."""
    workers = {path.parent.resolve() for path in below.rglob("worker.json")}
    return [
        pid
        for worker in workers
        for pid in processes.tagged(WORKER, f"{worker.parents[1]}/{worker.name}")
    ]


def local_place(folder: Path) -> RealPlace:
    python = _Interpreter(folder)
    nodes = (Node("one", "local", python=str(python.path)), Node("two", "local"))
    store = _store(folder, nodes)
    return RealPlace(folder, lambda: connect(nodes, store), python.put, python.hide)


def piped_place(folder: Path) -> RealPlace:
    """The same nodes by a transport that is a few lines of a process's pipes."""
    python = _Interpreter(folder)
    ways = (str(python.path), sys.executable)
    nodes = tuple(Node(n, "local", python=way) for n, way in zip(("one", "two"), ways, strict=True))
    store, home = _store(folder, nodes), folder / "home"
    home.mkdir()

    def over_pipes() -> list[Connection]:
        packer = CodePacker(store.directory / "code")
        return [
            RemoteConnection(RemoteAccess(node, pipes.into(str(home))), store, packer)
            for node in nodes
        ]

    return RealPlace(folder, over_pipes, python.put, python.hide)


def sshd_place(folder: Path, lab: Lab) -> RealPlace:
    found = read_nodes(lab.inventory)
    workdir, names = str(folder / "workdir"), ("one", "two")
    nodes = tuple(
        replace(node, name=name, workdir=workdir, gpus=())
        for name, node in zip(names, found, strict=True)
    )
    store, name = _store(folder, nodes), found[0].name
    return RealPlace(
        folder, lambda: connect(nodes, store), lambda: lab.start(name), lambda: lab.stop(name)
    )


class SlurmPlace(RealPlace):
    """Allocations of a cluster: a node goes when an administrator drains it."""

    def __init__(self, folder: Path, lab: SlurmLab) -> None:
        nodes = tuple(
            replace(node, name=name, workdir=str(folder / "workdir"), gpus=())
            for name, node in zip(("one", "two"), read_nodes(lab.inventory), strict=True)
        )
        store, name = _store(folder, nodes), lab.names[0]
        self._lab = lab
        super().__init__(
            folder,
            lambda: connect(nodes, store),
            lambda: lab.resume(name),
            lambda: lab.drain(name),
        )

    def close(self) -> None:
        super().close()
        for connection in self._connections:
            connection.give_back()
        assert self._lab.jobs() == []


class RayPlace(RealPlace):
    """Actors of a cluster: a node goes with its raylet and all that it started."""

    def __init__(self, folder: Path, lab: RayLab) -> None:
        two, one = read_nodes(lab.inventory)  # the first raylet is the cluster's head
        nodes = tuple(
            replace(node, name=name, workdir=str(folder / "workdir"), gpus=())
            for name, node in (("one", one), ("two", two))
        )
        store = _store(folder, nodes)
        super().__init__(
            folder,
            lambda: connect(nodes, store),
            lambda: lab.start(one.name),
            lambda: lab.end(one.name),
        )

    @staticmethod
    def end(lab: RayLab) -> None:
        """All of these places are one run, as far as Ray can tell: its keepers stay until now."""
        with TemporaryDirectory() as folder:
            store = _store(Path(folder), ())
            for name in ("one", "two"):
                give_back(replace(read_nodes(lab.inventory)[0], name=name), [store])
        assert lab.keepers() == []


def _store(folder: Path, nodes: tuple[Node, ...]) -> RunStore:
    return RunStore.create(folder, RunFacts("r", Mix("m", ()), nodes, "", ""))


class _Interpreter:
    """A node's Python that can be gone."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "python"
        self.put()

    def put(self) -> None:
        part = self.path.with_suffix(".part")
        part.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        part.chmod(0o755)
        part.rename(self.path)

    def hide(self) -> None:
        self.path.unlink()


class FaultyPlace:
    """That of the fault schedules, on a calm day."""

    def __init__(self, folder: Path) -> None:
        facts = (Node("one", "local"), Node("two", "local"))
        self.misfortune, self.clock = Misfortune(1), Clock()
        self.misfortune.left = 0
        self.store = _store(folder, facts)
        self.nodes = [
            SimulatedNode(node, self.clock, self.misfortune, lambda job, device: 100.0)
            for node in facts
        ]
        self.node_of = {device: node for node in self.nodes for device in node.devices}
        self.trained: dict[str, weights.Trained] = {}
        self.spoiled: set[str] = set()
        self._epoch = 0
        self.executor: Executor = self._head()
        self.executor.adopt([])

    def _head(self) -> FaultyExecutor:
        self._epoch += 1
        world: Any = self  # as much of it as an executor uses
        return FaultyExecutor(world, self._epoch, self.clock.now)

    def check_device_is_free(self, order: CopyOrder, held: Iterable[CopyOrder]) -> None: ...

    def check_pair_is_not_avoided(self, order: CopyOrder) -> None: ...

    def next_head(self) -> Executor:
        assert isinstance(self.executor, FaultyExecutor)
        self.executor.is_dead = True
        self.executor = self._head()
        return self.executor

    def take_away(self) -> None:
        self.nodes[0].is_cut = True
        self.nodes[0].let_lease_run_out(20.0)

    def bring_back(self) -> None:
        self.nodes[0].is_cut = False

    def close(self) -> None: ...
