"""Real machines' sizes over SSH: a node with eight devices, and checkpoints of gigabytes.

    python -m bench.machines [--devices 8] [--mb 200] [--link-mb 0 110]
    python -m bench.machines --large-mb 10000 --link-mb 100
    python -m bench.machines --slow-link 57 --link-mb 4 --steps 1500

The first hands in the weights of all devices of one node at once, by the executor of real runs,
beside the same bytes at the rate of one scp over the same link: ``--link-mb`` is its rate in MB/s,
0 is loopback as it is. The second is a run of one job on a node with two devices: its head is
killed while it fetches, and resumed; merged weights, what travelled and the head's memory are told.
The third trains on a device nearby and one behind a slow link, and on the first alone.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from bench.frame import Row, beside, line
from hadar_cli.assembly import connect
from hadar_cli.config.inventory import read_nodes
from hadar_cli.core import events
from hadar_cli.core.model import Job, Launch, Mix, Node
from hadar_cli.core.steps import StepSet
from hadar_cli.engine.ports import CopyOrder, Failed, HandedIn
from hadar_cli.nodes.executor import NodeExecutor
from hadar_cli.runs.store import RunFacts, RunStore, read_journal
from tests.faults.proxy import Proxy
from tests.support.lab import Lab, running
from tests.support.sshd import free_ports

ROOT = Path(__file__).parents[1]
SLOT_S, STEPS = 10.0, 80  # of the large job: a slot's work for two devices
LONG_MB = 5000  # from here on, one merge has to do
_NEWEST_BYTES = 1 << 28  # of a file that arrives: nobody else may touch what is being written
LARGE = ROOT / "tests" / "support" / "large_script.py"
# Leaves a checkpoint, and its result when it is told to: only the way home is measured.
HANDS_IN = """
import json, os, shutil, time
shutil.copyfile({made!r}, os.environ["HADAR_CKPT_OUT"])
open(os.path.join({ready!r}, os.environ["HADAR_ATTEMPT"]), "w").close()
while not os.path.exists({go!r}):
    time.sleep(0.01)
with open(os.environ["HADAR_RESULT"] + ".part", "w") as file:
    json.dump({{"steps": 1, "seconds": {{"train": 1.0}}}}, file)
os.rename(os.environ["HADAR_RESULT"] + ".part", os.environ["HADAR_RESULT"])
"""


@contextmanager
def linked(directory: Path, mb_per_s: float) -> Iterator[tuple[Lab, Node, Proxy]]:
    """A node behind a link of that rate."""
    with running(directory / "lab", count=1) as lab:
        [port] = free_ports(1)
        link = Proxy(port, lab.nodes[0].port)
        link.bytes_per_s = mb_per_s * 1e6 if mb_per_s else float("inf")
        link.buffer_bytes = 1 << 18
        with lab.known_hosts.open("a") as file:
            file.write(f"[127.0.0.1]:{port} {lab.nodes[0].host_key()}\n")
        try:
            port = port if mb_per_s else lab.nodes[0].port
            yield lab, replace(read_nodes(lab.inventory)[0], port=port), link
        finally:
            link.end()


# -- eight devices -----------------------------------------------------------------------------


def hand_in_all(directory: Path, node: Node, made: Path, go: Path) -> float:
    """Seconds from the moment when all copies are done until all their weights are in the store."""
    shutil.rmtree(directory, ignore_errors=True)
    ready = directory / "ready"
    ready.mkdir(parents=True)
    go.unlink(missing_ok=True)
    script = directory / "script.py"
    script.write_text(HANDS_IN.format(made=str(made), go=str(go), ready=str(ready)))
    job = Job(0, "large", 1000, 8, launch=Launch(script=str(script)))
    node = replace(node, workdir=str(directory / "workdir"))
    store = RunStore.create(directory, RunFacts("r", Mix("m", ()), (node,), "", ""))
    executor = NodeExecutor(connect([node], store), 1, 0.0)
    executor.adopt([])
    names = [device.name for device in node.devices]
    try:
        for number, device in enumerate(names):
            executor.start(_order(f"a{number}", job, device, number))
        while len(list(ready.iterdir())) < len(names):
            executor.wait(executor.now() + 0.1)
        began, arrived = time.perf_counter(), 0
        go.touch()
        while arrived < len(names):
            for report in executor.wait(executor.now() + 1.0):
                assert not isinstance(report, Failed), report
                arrived += isinstance(report, HandedIn)
        return time.perf_counter() - began
    finally:
        executor.stop(0.0)


def _order(attempt: str, job: Job, device: str, step: int) -> CopyOrder:
    steps = StepSet.of([(step, step + 1)])
    return CopyOrder(attempt, job, device, steps, 600.0, None, 1, 1, 1, 0, 1, 1)


def scp(lab: Lab, node: Node, source: Path, target: Path) -> float:
    words = ["scp", "-q", "-c", "aes128-gcm@openssh.com", *lab.ssh(node.name)[1:-1]]
    place = words.index("-p")
    words[place : place + 2] = ["-P", str(node.port)]
    began = time.perf_counter()
    subprocess.run([*words, f"127.0.0.1:{source}", str(target)], check=True)
    return time.perf_counter() - began


def devices_at_once(devices: int, mb: int, mb_per_s: float, repeats: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with linked(directory, mb_per_s) as (lab, one, _):
            made = directory / "made"
            made.write_bytes(os.urandom(1_000_000) * mb)
            node = replace(one, gpus=one.gpus * devices, emulated_speed=0.1)
            ours, theirs = [], []
            for _ in range(repeats):
                theirs.append(devices * scp(lab, one, made, directory / "scp"))
                (directory / "scp").unlink()
                ours.append(hand_in_all(directory / "run", node, made, directory / "go"))
            link = f"over {mb_per_s:g} MB/s" if mb_per_s else "loopback"
            case = f"{devices} devices hand in {mb} MB each, {link}"
            yield beside(case, "s", ours, "the bytes at one scp's rate", theirs)


# -- gigabytes ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Large:
    """What became of a run with large weights whose head was killed while it fetched."""

    seconds: float
    weights_mb: float
    carried_mb: float  # by the link, both ways
    moved_mb: float  # what had to travel: each hand-in once, each merge once to the node
    first_mb: float  # carried for the first hand-in, within which the head was killed
    peak_mb: float  # the head's memory
    merged: int  # checkpoints, of several copies each
    steps: int


def run_large(directory: Path, mb: int, mb_per_s: float, to_end: bool = True) -> Large:
    """A job on two devices of one node; the journal says whether all went as it should. Not to its
    end, but to its first merge of several copies, where every further one would take long."""
    with linked(directory, mb_per_s) as (_, node, link):
        project = directory / "project"
        project.mkdir()
        shutil.copyfile(LARGE, project / "large.py")
        (project / "mix.yaml").write_text(
            f"name: large\nslot_s: {SLOT_S}\nmerge: {{solo: 0.0, every_s: slot}}\njobs:\n"
            f"  - {{script: large.py, steps: {STEPS}, batch_size: 4, fork: 2, args: '{mb} 0.2'}}\n"
        )
        two = '[{ model = "RTX 3090" }, { model = "RTX 3090" }]'
        inventory = f"{inventory_of(node)}gpus = {two}\nemulate = {{ speed = 0.1 }}\n"
        (project / "nodes.toml").write_text(inventory)
        head = Head(project)
        began = time.monotonic()
        head.start("run", "mix.yaml", "-n", "nodes.toml", "--name", "large", "--no-live")
        run = project / "runs" / "large"
        objects, journal_path = run / "objects", run / "journal.jsonl"
        head.kill_when(lambda: any(p.stat().st_size > mb * 4e5 for p in objects.glob("from-*")))
        head.start("resume", "--no-live")
        head.watch_until(lambda: merges_of(journal_path))
        first_mb = link.passed / 1e6
        if to_end:
            head.end()
        else:
            head.kill_when(lambda: any(len(m.accepted) > 1 for m in merges_of(journal_path)))
        seconds = time.monotonic() - began
        journal = read_journal(journal_path)
        merges = merges_of(journal_path)
        counted = {attempt for merge in merges for attempt in merge.accepted}
        done = [e for e in journal if isinstance(e, events.CopyFinished) and e.attempt in counted]
        return Large(
            seconds,
            mb,
            link.passed / 1e6,
            mb * (len(counted) + len(merges) - 1),
            first_mb,
            head.peak_mb,
            sum(len(merge.accepted) > 1 for merge in merges),
            sum(copy.steps for copy in done),
        )


@contextmanager
def dug(directory: Path) -> Iterator[None]:
    """Zeros that have arrived below it take no room on the disk, but for each file's newest ones:
    a few checkpoints of 10 GB are more than most have to spare."""
    ends = threading.Event()

    def dig() -> None:
        while not ends.wait(2.0):
            for path in [*directory.glob("**/objects/*")]:
                with suppress(OSError):
                    found = path.stat()
                    safe = found.st_size - _NEWEST_BYTES
                    if safe > 0 and found.st_blocks * 512 > _NEWEST_BYTES:
                        words = ["fallocate", "--dig-holes", "--length", str(safe), str(path)]
                        subprocess.run(words, check=False, capture_output=True)

    digger = threading.Thread(target=dig)
    digger.start()
    try:
        yield
    finally:
        ends.set()
        digger.join()


def merges_of(journal: Path) -> list[events.WeightsMerged]:
    return [e for e in read_journal(journal) if isinstance(e, events.WeightsMerged)]


class Head:
    """The head's process, its memory looked at all the while."""

    def __init__(self, directory: Path) -> None:
        self._directory, self.peak_mb, self.told = directory, 0.0, ""

    def start(self, *words: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "hadar_cli.cli.main", *words],
            cwd=self._directory,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _look(self) -> None:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        lines = (line for line in status.splitlines() if line.startswith("VmRSS"))
        self.peak_mb = max([self.peak_mb, *(int(line.split()[1]) / 1000 for line in lines)])

    def watch_until(self, holds: Callable[[], object]) -> None:
        while not holds():
            assert self._process.poll() is None, self._process.communicate()[1]
            self._look()
            time.sleep(0.05)

    def kill_when(self, holds: Callable[[], object]) -> None:
        self.watch_until(holds)
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def end(self) -> None:
        while self._process.poll() is None:
            self._look()
            time.sleep(0.1)
        self.told = self._process.communicate()[1]
        assert self._process.returncode == 0, self.told


def gigabytes(mb: int, mb_per_s: float) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        with dug(Path(name)):
            large = run_large(Path(name), mb, mb_per_s, to_end=mb < LONG_MB)
        assert large.merged, large
        case = f"{mb / 1000:g} GB over {mb_per_s:g} MB/s, head killed"
        least = large.moved_mb / mb_per_s
        yield beside(f"{case}: in all", "s", [large.seconds], "its bytes at that rate", [least])
        first = [large.first_mb]
        yield beside(f"{case}: first hand-in", "MB", first, "the checkpoint", [mb])
        yield beside(f"{case}: memory", "MB", [large.peak_mb], "the checkpoint", [mb])


# -- a slow link -------------------------------------------------------------------------------


def run_beside(
    directory: Path, mb: int, mb_per_s: float, steps: int, slot_s: float, with_far: bool = True
) -> tuple[list[events.Event], str]:
    """A job on a device nearby and, as the first of the inventory, one behind a link of that rate:
    the journal, and what ``hadar report`` says of it."""
    with running(directory / "lab", count=2) as lab:
        far, near = lab.nodes
        [port] = free_ports(1)
        link = Proxy(port, far.port)
        link.bytes_per_s = mb_per_s * 1e6
        with lab.known_hosts.open("a") as file:
            file.write(f"[127.0.0.1]:{port} {far.host_key()}\n")
        nodes = {node.name: node for node in read_nodes(lab.inventory)}
        inventory = inventory_of(replace(nodes[far.name], name="far", port=port)) * with_far
        inventory += inventory_of(replace(nodes[near.name], name="near"))
        project = directory / "project"
        project.mkdir()
        shutil.copyfile(LARGE, project / "large.py")
        (project / "nodes.toml").write_text(inventory)
        (project / "mix.yaml").write_text(
            f"name: beside\nslot_s: {slot_s}\njobs:\n"
            f"  - {{script: large.py, steps: {steps}, batch_size: 4, args: '{mb} 0.1'}}\n"
        )
        head = Head(project)
        try:
            head.start("run", "mix.yaml", "-n", "nodes.toml", "--name", "beside", "--no-live")
            head.end()
        finally:
            link.end()
        words = [sys.executable, "-m", "hadar_cli.cli.main", "report"]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        told = subprocess.run(words, cwd=project, env=env, capture_output=True, text=True)
        return read_journal(project / "runs" / "beside" / "journal.jsonl"), told.stdout


def slow_link(mb: int, mb_per_s: float, steps: int) -> Iterator[Row]:
    """The same job with the device behind the link and without it."""
    times = []
    for with_far in (True, False):
        with tempfile.TemporaryDirectory() as name:
            journal, _ = run_beside(Path(name), mb, mb_per_s, steps, 15.0, with_far)
            times.append([journal[-1].t])
    case = f"{mb} MB, a second device over {mb_per_s:g} MB/s, {steps} steps"
    yield beside(case, "s", times[0], "without it", times[1])


def inventory_of(node: Node) -> str:
    return (
        f'[[node]]\nname = "{node.name}"\nhost = "{node.host}"\nport = {node.port}\n'
        f'user = "{node.user}"\nidentity_file = "{node.identity_file}"\n'
        f'known_hosts = "{node.known_hosts}"\npython = "{node.python}"\n'
    )


def rows(quick: bool) -> Iterator[Row]:
    for mb_per_s in (110.0,) if quick else (110.0, 0.0):
        yield from devices_at_once(8, 50 if quick else 200, mb_per_s, 1 if quick else 2)
    yield from gigabytes(400 if quick else 2000, 100.0)
    yield from slow_link(57, 4.0, 300 if quick else 1500)


def main() -> None:
    usage = argparse.ArgumentParser(description=__doc__)
    usage.add_argument("--devices", type=int, default=8)
    usage.add_argument("--mb", type=int, default=200)
    usage.add_argument("--link-mb", type=float, nargs="+", default=[110.0, 0.0])
    usage.add_argument("--large-mb", type=int)
    usage.add_argument("--slow-link", type=int, metavar="MB")
    usage.add_argument("--steps", type=int, default=1500)
    usage.add_argument("--repeats", type=int, default=2)
    asked = usage.parse_args()
    for mb_per_s in asked.link_mb:
        if asked.slow_link:
            found = slow_link(asked.slow_link, mb_per_s, asked.steps)
        elif asked.large_mb:
            found = gigabytes(asked.large_mb, mb_per_s)
        else:
            found = devices_at_once(asked.devices, asked.mb, mb_per_s, asked.repeats)
        for row in found:
            print(line(row), flush=True)


if __name__ == "__main__":
    main()
