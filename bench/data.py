"""A data set to the lab's five nodes over real sshd: sent once, gone on after a cut, kept.

    python -m bench.data [--mb 1000]

Half of it is one file, half are thousands of small ones. Each node's server is ended, with all its
sessions, once half of the node's bytes are sent, and started again. The limit is the data itself,
once for every node; what a changed script costs afterwards stands beside it.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.frame import Row, beside, line
from hadar_cli.assembly import connect
from hadar_cli.config.inventory import read_nodes
from hadar_cli.config.mixes import read_mix
from hadar_cli.core.model import Node
from hadar_cli.nodes.supply.preparation import prepare
from hadar_cli.nodes.wire import Wire
from hadar_cli.runs.store import RunFacts, RunStore
from tests.support.lab import Lab, running

NODES = 5
SMALL = 20_000  # bytes of a small file


class Counter:
    """Bytes that are sent to nodes; cuts a node's connection when half of its data is under way."""

    def __init__(self, lab: Lab, cut_after: int) -> None:
        self.bytes, self.cuts = 0, 0
        self._lab, self._cut_after = lab, cut_after
        self._of_thread: dict[int, int] = {}
        self._left = list(lab.names)
        self._lock = threading.Lock()

    def count(self, size: int) -> None:
        """Each node has a thread of its own, but which is which does not matter here."""
        with self._lock:
            self.bytes += size
            mine = self._of_thread.get(threading.get_ident(), 0) + size
            self._of_thread[threading.get_ident()] = mine
            if mine - size < self._cut_after <= mine and self._left:
                name = self._left.pop()
                self._lab.stop(name)
                self._lab.start(name)
                self.cuts += 1


@contextmanager
def counted(counter: Counter) -> Iterator[None]:
    send = Wire.send_bytes

    def counting(wire: Wire, content: bytes) -> None:
        send(wire, content)
        counter.count(len(content))

    Wire.send_bytes = counting  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Wire.send_bytes = send  # type: ignore[method-assign]


def make_project(root: Path, mb: int) -> Path:
    (root / "data" / "small").mkdir(parents=True)
    with (root / "data" / "large.bin").open("wb") as file:
        for _ in range(mb // 2):
            file.write(os.urandom(1_000_000))
    for number in range(mb * 500_000 // SMALL):
        (root / "data" / "small" / f"{number}.bin").write_bytes(os.urandom(SMALL))
    (root / "train.py").write_text("print('one')\n")
    (root / "mix.yaml").write_text("data: data\njobs: [{script: train.py, steps: 10}]\n")
    return root


def send(project: Path, nodes: tuple[Node, ...], runs: Path, name: str) -> float:
    """Prepares all nodes as a run does, and places the job's code; how long it took."""
    mix = read_mix(project / "mix.yaml")
    store = RunStore.create(runs, RunFacts(name, mix, nodes, "", ""))
    connections, began = connect(nodes, store), time.perf_counter()
    failed = prepare(connections, mix.jobs, lambda report: None, lambda: None)
    took_s = time.perf_counter() - began
    assert not failed, failed
    for connection in connections:
        connection.place(mix.jobs[0])
        connection.close()
    return took_s


def rows(quick: bool) -> Iterator[Row]:
    yield from measured(100 if quick else 1000)


def measured(mb: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder, running(Path(folder) / "lab", NODES) as lab:
        project, nodes = make_project(Path(folder) / "project", mb), read_nodes(lab.inventory)
        size = sum(path.stat().st_size for path in (project / "data").rglob("*") if path.is_file())
        counter = Counter(lab, size // 2)
        with counted(counter):
            took_s = send(project, nodes, Path(folder) / "runs", "first")
            first = counter.bytes
            (project / "train.py").write_text("print('two')\n")
            again_s = send(project, nodes, Path(folder) / "runs", "second")
        limit = NODES * size / 1e6
        case = f"{mb} MB to {NODES} nodes, {counter.cuts} cut at half"
        yield beside(case, "MB sent", [first / 1e6], "the data, once a node", [limit])
        yield beside(case, "s", [took_s], "as above, all kept, other code", [again_s])
        changed = (counter.bytes - first) / 1e6
        yield beside(f"{mb} MB kept, other code", "MB sent", [changed], "the data", [limit])


def main() -> None:
    usage = argparse.ArgumentParser(description=__doc__)
    usage.add_argument("--mb", type=int, default=1000)
    for row in measured(usage.parse_args().mb):
        print(line(row), flush=True)


if __name__ == "__main__":
    main()
