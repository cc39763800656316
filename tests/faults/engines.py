"""The same faults behind every engine: worker, agents, streams and head are killed in one run.

    python -m tests.faults --engine slurm
    python -m tests.faults --engine slurm --mix mixes/m3.yaml

Two nodes, a real private Slurm, Ray or EC2 (by moto), SSH servers, or pods by a stand-in for
kubectl. With a mix: five nodes train it, its head is killed, and the engine does what engines do
of their own accord. Afterwards all steps count once, and ``hadar clean`` has left nothing.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hadar_cli.core import events
from hadar_cli.core.state import RunState
from hadar_cli.node.agent import processes
from hadar_cli.runs.store import RunStore, read_journal
from tests.faults.sections import Findings, Size, section
from tests.support.ec2 import running_ec2
from tests.support.lab import running
from tests.support.pipes import fake_kubectl
from tests.support.raylets import running_ray
from tests.support.slurm import running_slurm
from tests.support.sshd import descendants

ROOT = Path(__file__).parents[2]
STEPS = 400
MIX = """
slot_s: 2
merge: paper
jobs:
  - {{script: {root}/tests/support/gated_script.py, args: ["{gate}"], steps: {steps},
     batch_size: 8, count: 3}}
"""
_WAIT_S = 180.0


@dataclass
class Place:
    """Some nodes behind an engine; all of it lives below one folder."""

    inventory: Path
    streams: Callable[[int], Iterable[int]]  # pids that carry the streams of this head
    left: Callable[[], object]  # what is still allotted
    env: dict[str, str] = field(default_factory=dict)
    keeps_files: bool = True  # or they are gone with the machine, whose disk the lab plays
    lab: Any = None


def _of_ssh(folder: Path, stack: ExitStack, count: int = 2) -> Place:
    lab = stack.enter_context(running(folder / "lab", count))
    return Place(lab.inventory, lambda head: _sessions(n.pid for n in lab.nodes), lambda: ())


def _of_slurm(folder: Path, stack: ExitStack, count: int = 2) -> Place:
    lab = stack.enter_context(running_slurm(folder / "lab", count))
    streams = lambda head: _called(b"srun\0", descendants(head))  # noqa: E731
    return Place(lab.inventory, streams, lab.jobs, lab=lab)


def _of_ray(folder: Path, stack: ExitStack, count: int = 2) -> Place:
    lab = stack.enter_context(running_ray(folder / "lab", count, has_client=True))

    def bridges(head: int) -> list[int]:
        return [pid for pid in descendants(head) if b"ray_cluster.bridge" in _words(pid)]

    return Place(lab.inventory, bridges, lab.keepers, lab=lab)


def _of_aws(folder: Path, stack: ExitStack, count: int = 2) -> Place:
    lab = stack.enter_context(running_ec2(folder / "lab", count))
    ways = lambda head: _sessions(n.pid for n in lab.nodes)  # noqa: E731
    return Place(lab.inventory, ways, lab.running, keeps_files=False, lab=lab)


def _of_kubectl(folder: Path, stack: ExitStack, count: int = 2) -> Place:
    tools, inventory = fake_kubectl(folder), folder / "nodes.toml"
    names = (f"pod-{number}" for number in range(1, count + 1))
    pods = (f'[[node]]\nname = "{pod}"\nhost = "kubectl:{pod}"\n' for pod in names)
    inventory.write_text(f'[defaults]\npython = "{sys.executable}"\n' + "".join(pods))
    path = {"PATH": f"{tools}:{os.environ['PATH']}"}
    return Place(inventory, lambda head: _agents(folder), lambda: (), path)


PLACES = {
    "ssh": _of_ssh,
    "slurm": _of_slurm,
    "ray": _of_ray,
    "aws": _of_aws,
    "kubectl": _of_kubectl,
}


class Run:
    """One run, watched by its journal."""

    def __init__(self, folder: Path, place: Place, mix: str = "") -> None:
        """``mix`` is the text of one, which ends by itself; else one that waits for its gate."""
        self.folder, self.place = folder, place
        self.gate, self.store = folder / "gate", RunStore(folder / "runs" / "r")
        text = mix or MIX.format(root=ROOT, gate=self.gate, steps=STEPS)
        (folder / "mix.yaml").write_text(text)
        self.start("run", "mix.yaml", "-n", str(place.inventory), "--name", "r")

    def start(self, *words: str) -> None:
        with (self.folder / "stderr").open("ab") as errors:
            self.head = subprocess.Popen(
                [sys.executable, "-c", "from hadar_cli.cli.main import main; main()", *words],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), **self.place.env},
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )

    def events(self) -> list[events.Event]:
        with suppress(OSError):
            return read_journal(self.store.journal_path)
        return []

    def merges(self) -> int:
        return sum(isinstance(event, events.WeightsMerged) for event in self.events())

    def await_merges(self, count: int, what: str) -> None:
        self.await_that(lambda: self.merges() >= count, what)

    def await_that(self, holds: Callable[[], object], what: str) -> None:
        deadline = time.monotonic() + _WAIT_S
        while not holds():
            if time.monotonic() > deadline:
                said = (self.folder / "stderr").read_text(errors="replace")[-400:]
                raise AssertionError(f"{what}, not within {_WAIT_S:.0f} s; head said: {said}")
            time.sleep(0.1)

    def end(self) -> None:
        assert self.head.wait(_WAIT_S) == 0, (self.folder / "stderr").read_text()[-400:]


def strike_all(engine: str) -> Findings:
    """All faults in one run; what does not hold is a violation."""
    findings = Findings(trials=1)
    with tempfile.TemporaryDirectory(prefix="hadar-faults-") as name, ExitStack() as stack:
        folder = Path(name)
        try:
            place = PLACES[engine](folder, stack)
            run = Run(folder, place)
            stack.callback(run.head.kill)
            _strike(run, engine, findings)
            check(run, findings)
        except Exception as error:
            findings.violations.append(f"{engine}: {error}")
        findings.steps = 3 * STEPS
    return findings


def _strike(run: Run, engine: str, findings: Findings) -> None:
    faults: dict[str, Callable[[], Iterable[int]]] = {
        "a worker killed": lambda: sorted(_living(run.folder, "worker"))[:1],
        "agents killed": lambda: _agents(run.folder),
        "streams cut": lambda: run.place.streams(run.head.pid),
        "head killed": lambda: [run.head.pid],
    }
    run.await_merges(1, "the first merge")
    for fault, victims in faults.items():
        run.await_that(victims, f"somebody to strike: {fault}")
        began, before = time.monotonic(), run.merges()
        for pid in list(victims()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if fault == "head killed":
            run.head.wait()
            run.start("resume", "r")
        run.await_merges(before + 2, f"merges after: {fault}")
        assert run.head.poll() is None, f"{fault}: the head ended"
        findings.fired[f"{engine}: {fault}"] += 1
        findings.recoveries_s.append(time.monotonic() - began)


def check(run: Run, findings: Findings) -> None:
    """Once all is struck: the run ends, all steps count, and nothing is left."""
    run.gate.touch()
    run.end()
    state = RunState(run.store.facts.mix.jobs)
    for event in run.events():
        state.apply(event)
    state.validate()
    jobs = state.jobs.values()
    missing = [job.job.name for job in jobs if len(job.done) != job.job.target_steps]
    assert not missing, f"steps are missing: {missing}"
    assert not run.place.left(), f"still allotted: {run.place.left()}"
    run.start("clean", "r", "--yes")
    run.end()
    run.await_that(lambda: not _living(run.folder), "all processes gone")
    left = [path for path in run.folder.rglob("workers") if path.is_dir()]
    assert not left or not run.place.keeps_files, f"files are left: {left}"
    findings.checked += 5


def _words(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _called(start: bytes, pids: Iterable[int]) -> list[int]:
    return [pid for pid in pids if _words(pid).startswith(start)]


def _sessions(servers: Iterable[int]) -> list[int]:
    """Of SSH servers: the processes behind each connection."""
    return _called(b"sshd", (pid for server in servers for pid in descendants(server)))


def _living(folder: Path, *who: str) -> set[int]:
    """Workers and supervisors, or one kind of them, by their notes; files come and go meanwhile."""
    found = set()
    for place, _, files in os.walk(folder):
        if "worker.json" in files:
            with suppress(OSError, ValueError):
                known = json.loads((Path(place) / "worker.json").read_text())
                marks = [known[one] for one in who or known if one in known]
                found |= {pid for pid, started in marks if processes.is_alive(pid, started)}
    return found


def _environments() -> Iterator[tuple[int, bytes]]:
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            yield int(path.parent.name), path.read_bytes()


def _agents(folder: Path) -> list[int]:
    """Agents and transfers of nodes below the folder, which all their environments name."""
    mine = (pid for pid, told in _environments() if bytes(folder) in told)
    return [pid for pid in mine if b"import io,json" in _words(pid)]


def add(into: Findings, found: Findings) -> None:
    into.trials += found.trials
    into.fired += found.fired
    into.checked += found.checked
    into.violations += found.violations
    into.recoveries_s += found.recoveries_s
    into.steps += found.steps


@section("engines", waits=True)
def run_engines(size: Size) -> Findings:
    """Only in ``--full``: each takes a minute and more."""
    whole = Findings()
    for engine in PLACES:
        add(whole, strike_all(engine))
    return whole
