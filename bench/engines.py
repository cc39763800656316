"""What it costs to reach a node through Slurm, Ray, AWS or kubectl, beside SSH in the same run.

    python -m bench.engines [--repeats 5]
    python -m bench.engines --mix mixes/m3.yaml
    python -m bench.engines --page docs/engines.md     # both, as a page
    python -m bench.engines --page docs/engines.md --part mix    # that part anew

One node of each engine on this computer, taking turns: a stream to a new part of hadar on the node,
a word and its answer, a file there and back, and an order to a process that waits for it, from its
start to its weights in the store. Slurm, Ray and EC2 (by moto) are private to the bench; kubectl is
a stand-in. With a mix: five devices behind each engine train it, one engine after the other; a
round's overhead is what passes from a copy's last step to the first of its process's next order.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from bench.frame import Row, beside, line
from bench.round_overhead import gaps
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
from tests.support.ec2 import running_ec2
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
        called = node.name if node.aws else name  # the lab's instances go by their nodes' names
        self.node = replace(
            node, name=called, workdir=str(folder / name), emulated_speed=None, gpus=()
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
            return timed(access.open, "visits", 60.0)

    def echo(self) -> float:
        with closing(self.access()) as access:
            wire = access.open("visits", 60.0)
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
        order = CopyOrder(f"a{n}", self.job, self.node.name, steps, 60.0, None, 1, 1, 1, n, 1, 2)
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
        aws = stack.enter_context(running_ec2(folder / "aws", 1))
        os.environ["PATH"] = f"{fake_kubectl(folder)}:{os.environ['PATH']}"
        pod = Node("pod", "kubectl:pod", python=python_with_torch())
        nodes = {SSH: read_nodes(ssh.inventory)[0], "slurm": read_nodes(slurm.inventory)[0]}
        nodes |= {"ray": read_nodes(ray.inventory)[0], "aws": read_nodes(aws.inventory)[0]}
        nodes |= {"kubectl": pod}
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


@dataclass(frozen=True)
class Trained:
    """A mix, on five devices behind one engine."""

    engine: str
    ttd_s: float
    bound_s: float
    cru: float
    rounds: int
    overhead_s: float  # the median
    steps: str  # done, and asked for

    def line(self) -> str:
        return (
            f"{self.engine:>6}: TTD {self.ttd_s:.1f} s, {self.ttd_s / self.bound_s:.2f} x its "
            f"bound, CRU {self.cru:.3f}, {self.rounds} rounds, overhead of a round "
            f"{self.overhead_s:.2f} s, steps {self.steps}"
        )

    def cells(self) -> tuple[str, ...]:
        bound = f"{self.ttd_s:.1f} s, {self.ttd_s / self.bound_s:.2f} x"
        overhead = f"{self.overhead_s:.2f} s"
        return self.engine, bound, f"{self.cru:.3f}", str(self.rounds), overhead, self.steps


def trained(mix: Path) -> Iterator[Trained]:
    """A run of the mix on the lab of each engine."""
    labs = {SSH: running, "slurm": running_slurm, "ray": running_ray, "aws": running_ec2}
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
            overheads = gaps(Path(directory) / "runs" / name / "journal.jsonl")
            yield Trained(
                name,
                report["ttd_s"],
                report["lower_bound_s"],
                report["cru"],
                report["rounds"],
                median(overheads),
                ", ".join(f"{j['steps_done']}/{j['steps_target']}" for j in report["jobs"]),
            )


PAGE = """# The engines, side by side

What it costs to reach machines through [Slurm](guide/slurm.md), [Ray](guide/ray.md),
[AWS](guide/aws.md) or [kubectl](guide/kubernetes.md), beside [SSH](guide/ssh.md), on one computer
({machine}), by `python -m bench.engines --page docs/engines.md`.
Slurm is one slurmctld with a slurmd for each machine, Ray a raylet for each, AWS moto's server with
SSH servers behind its instances, kubectl a stand-in: the links are loopback, so what is left is
the engines' own.
"""
MIX = """
## A mix on each

`{name}` on the same five unequal devices, one engine after the other in one run ({when}, at
{commit}). The overhead of a round is the
median of what passes from a copy's last step to the first of its process's next order: saving,
pulling, merging, pushing, loading. TTD stands beside the bound that no schedule can beat at the
speeds that the run measured: what an engine itself computes takes from the two cores that train.

{table}

Slurm's and AWS's TTD include waiting for the machines: an allocation, or an instance that boots.
"""
NODE = """
## One node of each

Medians of {repeats}, taking turns in one run on a nearly idle machine ({when}, at {commit}). AWS is
reached by SSH: what it adds is starting the machine.

{table}
"""


def table(*rows: Sequence[str]) -> str:
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, f"|{' --- |' * len(rows[0])}", *body])


KEPT = ROOT / "bench" / "results" / "engines.json"  # what the page was last written from
TEXTS = {"mix": MIX, "node": NODE}
PARTS = tuple(TEXTS)


def write_page(path: Path, mix: Path, repeats: int, parts: Sequence[str]) -> None:
    """What was not measured now stays as it is kept; what never was is left out."""
    kept = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    if "mix" in parts:
        heads = ("engine", "TTD", "CRU", "rounds", "overhead of a round", "steps")
        kept["mix"] = {**_origin(), "name": mix.name, "rows": [heads, *_mix_rows(mix)]}
    if "node" in parts:
        kept["node"] = {**_origin(), "repeats": repeats, "rows": _node_rows(repeats)}
    KEPT.write_text(json.dumps(kept, indent=1) + "\n")
    machine = next(iter(kept.values()))["machine"]
    told = [PAGE.format(machine=machine)]
    told += [
        TEXTS[part].format(table=table(*kept[part]["rows"]), **kept[part])
        for part in PARTS
        if part in kept
    ]
    path.write_text("".join(told))


def _origin() -> dict[str, str]:
    from bench.__main__ import commit, machine, now

    return {"machine": machine(), "commit": commit(), "when": now()}


def _mix_rows(mix: Path) -> list[tuple[str, ...]]:
    runs = []
    for one in trained(mix):
        print(one.line(), flush=True)
        runs.append(one.cells())
    return runs


def _node_rows(repeats: int) -> list[tuple[str, ...]]:
    """A row for each case, with the figures of all engines."""
    cases: dict[str, tuple[str, ...]] = {}
    names = [SSH]
    for row in measured(repeats):
        print(line(row), flush=True)
        case, _, name = row.case.partition(": ")
        if name not in names:
            names.append(name)
        begun = cases.get(case, (f"{case}, {row.unit}", f"{row.theirs:.3g}"))
        cases[case] = (*begun, f"{row.ours:.3g}")
    return [("", *names), *cases.values()]


def main() -> None:
    usage = argparse.ArgumentParser(description=__doc__)
    usage.add_argument("--repeats", type=int, default=5)
    usage.add_argument("--mix", type=Path, help="train it on each, and show TTD and CRU")
    usage.add_argument("--page", type=Path, help="measure both, and write them there")
    usage.add_argument("--part", choices=PARTS, help="of the page; the other is kept as it was")
    asked = usage.parse_args()
    if asked.page:
        mix = (asked.mix or ROOT / "mixes/m3.yaml").resolve()
        write_page(asked.page, mix, asked.repeats, [asked.part] if asked.part else PARTS)
        return
    if asked.mix:
        rows = (one.line() for one in trained(asked.mix.resolve()))
    else:
        rows = map(line, measured(asked.repeats))
    for row in rows:
        print(row, flush=True)


if __name__ == "__main__":
    main()
