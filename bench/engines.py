"""What it costs to reach a node through Slurm, Ray or kubectl, beside SSH in the same run.

    python -m bench.engines [--repeats 5]
    python -m bench.engines --mix mixes/m1.yaml

One node of each engine on this computer, taking turns: a stream to a new part of hadar on the node,
a word and its answer, a file there and back, and an order to a process that waits for it, from its
start to its weights in the store. A Slurm and a Ray that are private to the bench, a stand-in for
kubectl. With a mix: five devices behind each engine train it, one engine after the other.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path

from bench.frame import Row, beside, line
from bench.transfer import digest_of, make, timed
from hadar_cli.assembly import connect
from hadar_cli.config.inventory import read_nodes
from hadar_cli.core.model import Job, Launch, Mix, Node
from hadar_cli.core.steps import StepSet
from hadar_cli.engine.ports import CopyOrder, HandedIn
from hadar_cli.nodes.executor import NodeExecutor
from hadar_cli.nodes.remote import RemoteAccess
from hadar_cli.nodes.transfer import TransferSession
from hadar_cli.runs.store import RunFacts, RunStore
from hadar_cli.transports import access_to
from tests.support.lab import python_with_torch, running
from tests.support.pipes import fake_kubectl
from tests.support.raylets import running_ray
from tests.support.slurm import running_slurm

ROOT = Path(__file__).parents[1]
SCRIPT = str(ROOT / "tests" / "support" / "waiting_script.py")
FILE_MB = 32
SSH = "ssh"


class Engine:
    """One node behind one engine, and what is timed there."""

    def __init__(self, name: str, node: Node, folder: Path, source: Path) -> None:
        self.name = name
        self.node = replace(
            node, name=name, workdir=str(folder / name), emulated_speed=None, gpus=()
        )
        job = Job(0, "j", 10**6, 8, launch=Launch(script=SCRIPT))
        self.job = job
        facts = RunFacts(f"bench-{name}", Mix("m", (job,)), (self.node,), "", "")
        self.store = RunStore.create(folder, facts)
        self.connections = connect([self.node], self.store)
        self.executor = NodeExecutor(self.connections, 1, 0.0)
        self._source, self._digest = source, digest_of(source)
        self._there, self._back = folder / name / "bench", folder / f"{name}.back"
        self._attempt = 0
        self.executor.adopt([])
        self.order()  # the first one starts the process, and by Slurm the allocation

    def close(self) -> None:
        self.executor.stop(0.0)
        for connection in self.connections:
            connection.give_back()

    def access(self) -> RemoteAccess:
        access = access_to(self.node, self.store)
        assert isinstance(access, RemoteAccess)
        return access

    def opened(self) -> float:
        with closing(self.access()) as access:
            return timed(access.open, "reception", 60.0)

    def echo(self) -> float:
        with closing(self.access()) as access:
            wire = access.open("reception", 60.0)
            began = time.perf_counter()
            for _ in range(20):
                wire.send({"do": "echo"})
                wire.answer()
            return 1000 * (time.perf_counter() - began) / 20

    def move(self, pull: bool) -> float:
        """MB/s."""
        with closing(self.access()) as access:
            files = TransferSession(access.open("transfer", 60.0))
            there = self._there / self._digest
            self._back.unlink(missing_ok=True)
            if not pull:
                there.unlink(missing_ok=True)
                return FILE_MB / timed(files.put, self._source, self._digest, str(self._there))
            return FILE_MB / timed(files.get, str(there), self._back)

    def order(self) -> float:
        """Of one step, which takes a hundredth of a second."""
        self._attempt += 1
        n = self._attempt
        steps = StepSet.of([(n, n + 1)])
        order = CopyOrder(f"a{n}", self.job, self.name, steps, 60.0, None, 1, 1, 1, n, 1, 2)
        began = time.perf_counter()
        self.executor.start(order)
        while True:
            for report in self.executor.wait(self.executor.now() + 60.0):
                if isinstance(report, HandedIn):
                    return time.perf_counter() - began


def rows(quick: bool) -> Iterator[Row]:
    yield from measured(3 if quick else 7)


def measured(repeats: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="hadar-bench-") as directory, ExitStack() as stack:
        folder = Path(directory)
        source = make(folder / "file", FILE_MB)
        ssh = stack.enter_context(running(folder / "lab", 1))
        slurm = stack.enter_context(running_slurm(folder / "slurm", 1))
        ray = stack.enter_context(running_ray(folder / "ray", 1))
        os.environ["PATH"] = f"{fake_kubectl(folder)}:{os.environ['PATH']}"
        pod = Node("pod", "kubectl:pod", python=python_with_torch())
        nodes = {SSH: read_nodes(ssh.inventory)[0], "slurm": read_nodes(slurm.inventory)[0]}
        nodes |= {"ray": read_nodes(ray.inventory)[0], "kubectl": pod}
        engines = [Engine(name, node, folder, source) for name, node in nodes.items()]
        for engine in engines:
            stack.callback(engine.close)
        cases: dict[str, tuple[str, Callable[[Engine], float]]] = {
            "a stream": ("s", Engine.opened),
            "a word and its answer": ("ms", Engine.echo),
            f"push {FILE_MB} MB by a small-file stream": ("MB/s", lambda e: e.move(pull=False)),
            f"pull {FILE_MB} MB by a small-file stream": ("MB/s", lambda e: e.move(pull=True)),
            "an order, to its weights in the store": ("s", Engine.order),
        }
        for case, (unit, measure) in cases.items():
            yield from race(case, unit, measure, engines, repeats)


def race(
    case: str, unit: str, measure: Callable[[Engine], float], engines: list[Engine], repeats: int
) -> Iterator[Row]:
    found: dict[str, list[float]] = {engine.name: [] for engine in engines}
    for _ in range(repeats):
        for engine in engines:
            found[engine.name].append(measure(engine))
    for name in found:
        if name != SSH:
            rates = (found[name], SSH, found[SSH])
            yield beside(f"{case}: {name}", unit, *rates, more_is_better=unit == "MB/s")


def trained(mix: Path) -> Iterator[str]:
    """A run of the mix on the lab of each engine."""
    labs = {SSH: running, "slurm": running_slurm, "ray": running_ray}
    with tempfile.TemporaryDirectory(prefix="hadar-bench-") as directory:
        for name, lab in labs.items():
            with lab(Path(directory) / name, 5) as up:
                words = [sys.executable, "-c", "from hadar_cli.cli.main import main; main()"]
                run = [*words, "run", str(mix), "-n", str(up.inventory), "--name", name]
                subprocess.run(run, cwd=directory, check=True, capture_output=True)
                told = subprocess.run(
                    [*words, "report", name, "--json"], cwd=directory, check=True, stdout=-1
                )
            report = json.loads(told.stdout)
            ttd, bound = report["ttd_s"], report["lower_bound_s"]
            done = ", ".join(f"{j['steps_done']}/{j['steps_target']}" for j in report["jobs"])
            yield (
                f"{name:>6}: TTD {ttd:.1f} s, {ttd / bound:.2f} x its bound, CRU "
                f"{report['cru']:.3f}, {report['rounds']} rounds, steps {done}"
            )


def main() -> None:
    usage = argparse.ArgumentParser(description=__doc__)
    usage.add_argument("--repeats", type=int, default=5)
    usage.add_argument("--mix", type=Path, help="train it on each, and show TTD and CRU")
    asked = usage.parse_args()
    rows = trained(asked.mix.resolve()) if asked.mix else map(line, measured(asked.repeats))
    for row in rows:
        print(row, flush=True)


if __name__ == "__main__":
    main()
