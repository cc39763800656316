"""Files to and from a node over loopback sshd, beside scp in the same run.

    python -m bench.transfer [--mb 100 1000] [--repeats 3]

Ours hashes every byte on both ends, scp does not; both are given the fastest cipher. ``process``
is what hadar takes for files from 8 MB on, ``channel`` what it takes for small ones and behind
jump hosts.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from pathlib import Path

from bench.frame import Row, beside, line
from hadar_cli.config.inventory import read_nodes
from hadar_cli.core.model import Node
from hadar_cli.nodes.remote import RemoteAccess
from hadar_cli.nodes.transfer import TransferSession
from hadar_cli.ssh.transport import SshTransport
from tests.support.lab import Lab, running

NODES = 5


@contextmanager
def session(node: Node, way: str) -> Iterator[TransferSession]:
    with closing(RemoteAccess(node, SshTransport(node))) as access:
        wire = access.open_bulk("transfer") if way == "process" else access.open("transfer", 60.0)
        assert wire
        yield TransferSession(wire)


class Course:
    """One node with a file on either side, and a stopwatch."""

    def __init__(self, lab: Lab, node: Node, source: Path, digest: str) -> None:
        self.lab, self.node, self.source, self.digest = lab, node, source, digest
        self.there = lab[node.name].home / "bench"
        self.back = source.with_name(f"back-{node.name}")

    def scp(self, pull: bool) -> None:
        words = ["scp", "-q", "-c", "aes128-gcm@openssh.com", *self.lab.ssh(self.node.name)[1:-1]]
        words[words.index("-p")] = "-P"
        far = f"127.0.0.1:{self.there}/scp"
        self.there.mkdir(exist_ok=True)
        ends = [far, str(self.back)] if pull else [str(self.source), far]
        subprocess.run([*words, *ends], check=True)

    def ours(self, files: TransferSession, pull: bool) -> None:
        if pull:
            assert files.get(str(self.there / self.digest), self.back) == self.digest
        else:
            assert files.put(self.source, self.digest, str(self.there))[1]

    def clear(self, pull: bool, way: str = "") -> None:
        there = self.there / ("scp" if way == "scp" else self.digest)
        (self.back if pull else there).unlink(missing_ok=True)


def timed(action: Callable[..., object], *arguments: object) -> float:
    began = time.perf_counter()
    action(*arguments)
    return time.perf_counter() - began


def race(course: Course, repeats: int) -> Iterator[Row]:
    """All ways take turns, so that what else the machine does hits them alike."""
    size = course.source.stat().st_size / 1e6
    with session(course.node, "process") as process, session(course.node, "channel") as channel:
        ways: dict[str, Callable[[bool], None]] = {
            "scp": course.scp,
            "channel": lambda pull: course.ours(channel, pull),
            "process": lambda pull: course.ours(process, pull),
        }
        for pull in (False, True):
            rates: dict[str, list[float]] = {way: [] for way in ways}
            for _ in range(repeats):
                for way, move in ways.items():
                    course.clear(pull, way)
                    rates[way].append(size / timed(move, pull))
            for way in ("process", "channel"):
                case = f"{'pull' if pull else 'push'} {size:.0f} MB by {way}"
                yield beside(case, "MB/s", rates[way], "scp", rates["scp"], more_is_better=True)


def race_at_once(courses: list[Course], repeats: int) -> Iterator[Row]:
    """Pulls from all nodes together; every way as one and as five."""
    size = courses[0].source.stat().st_size / 1e6
    rates: dict[str, list[float]] = {}
    with ThreadPoolExecutor(len(courses)) as pool:

        def measure(name: str, moves: list[Callable[[bool], None]]) -> None:
            for _ in range(repeats):
                for course in courses:
                    course.clear(pull=True)
                took_s = timed(lambda: list(pool.map(lambda move: move(True), moves)))
                rates.setdefault(name, []).append(len(moves) * size / took_s)

        for course in courses:
            course.scp(False)
        measure("five scp", [course.scp for course in courses])
        for way in ("channel", "process"):
            with ExitStack() as stack:
                moves = []
                for course in courses:
                    course.clear(pull=False)
                    files = stack.enter_context(session(course.node, way))
                    course.ours(files, False)
                    moves.append(partial(course.ours, files))
                measure(f"one {way}", moves[:1])
                measure(f"five {way}", moves)
    five = rates["five process"]
    for rival in ("five scp", "one channel", "one process"):
        case = f"five pulls of {size:.0f} MB, beside {rival}"
        yield beside(case, "MB/s", five, rival, rates[rival], more_is_better=True)


def peak_memory(inventory: Path, source: Path) -> float:
    """Of a fresh process that pushes and pulls the file, in MB."""
    words = [sys.executable, "-m", "bench.transfer", "--worker", str(inventory), str(source)]
    done = subprocess.run(words, check=True, capture_output=True, text=True)
    return float(done.stdout)


def work(inventory: Path, source: Path) -> None:
    node = read_nodes(inventory)[0]
    there, back = inventory.parent / node.name / "home" / "memory", source.with_name("memory")
    for way in ("process", "channel"):
        with session(node, way) as files:
            path, _ = files.put(source, digest_of(source), str(there / way))
            files.get(path, back)
        back.unlink()
        Path(path).unlink()
    print(own_peak_mb())


def own_peak_mb() -> float:
    """This process's own: ``ru_maxrss`` begins with what the one that started it had used."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM:"))


def digest_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def make(path: Path, mb: int) -> Path:
    with path.open("wb") as file:
        for _ in range(mb):
            file.write(os.urandom(1_000_000))
    return path


def rows(quick: bool) -> Iterator[Row]:
    yield from measured([100] if quick else [100, 1000], 2 if quick else 3)


def measured(sizes: list[int], repeats: int) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder, running(Path(folder) / "lab", NODES) as lab:
        nodes = read_nodes(lab.inventory)
        for mb in sizes:
            source = make(Path(folder) / f"{mb}", mb)
            yield from race(Course(lab, nodes[0], source, digest_of(source)), repeats)
        source = Path(folder) / str(min(sizes))
        digest = digest_of(source)
        yield from race_at_once([Course(lab, node, source, digest) for node in nodes], repeats)
        for mb in sizes:
            peak = peak_memory(lab.inventory, Path(folder) / f"{mb}")
            yield beside(f"the head's peak memory, {mb} MB", "MB", [peak], "the file", [mb])


def main() -> None:
    usage = argparse.ArgumentParser(description=__doc__)
    usage.add_argument("--mb", type=int, nargs="+", default=[100, 1000])
    usage.add_argument("--repeats", type=int, default=3)
    usage.add_argument("--worker", type=Path, nargs=2, help=argparse.SUPPRESS)
    asked = usage.parse_args()
    if asked.worker:
        work(*asked.worker)
        return
    for row in measured(asked.mb, asked.repeats):
        print(line(row), flush=True)


if __name__ == "__main__":
    main()
