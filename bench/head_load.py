"""What the head costs while five nodes of the lab train: processor time, memory, no torch.

    python -m bench --only head_load

The head is the ``hadar run`` process; it is watched from outside, through /proc, while it trains:
from its first copy's start to the end of the last. The limits are those that it must keep: 3 % of a
core and 300 MB, for five nodes. What it starts, OpenSSH processes that move weights, is counted
apart.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.frame import Row, beside
from tests.support.lab import running

NODES = 5
MOST_SHARE = 0.03
MOST_MB = 300.0
ROOT = Path(__file__).parents[1]
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Load:
    """Over the seconds from the first copy's start to the end of training."""

    seconds: float
    head_s: float  # of processor time
    children_s: float
    peak_mb: float
    loads_torch: bool


def _spent_s(pid: int) -> tuple[float, float]:
    """Processor time of a process, and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own, children = (sum(map(int, fields[i : i + 2])) / _TICKS for i in (11, 13))
    return own, children


def _status_mb(pid: int, name: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith(name))


def watch(head: subprocess.Popen[bytes], runs: Path) -> Load:
    """Looks at the head five times a second until it has ended."""
    looks: list[tuple[float, float, float]] = []  # while it trains
    peak_mb, loads_torch = 0.0, False
    while head.poll() is None:
        happened = "".join(path.read_text() for path in runs.glob("*/journal.jsonl"))
        try:
            if "CopyStarted" in happened and "RunFinished" not in happened:
                looks.append((time.monotonic(), *_spent_s(head.pid)))
            peak_mb = max(peak_mb, _status_mb(head.pid, "VmHWM"))
            loads_torch |= "libtorch" in Path(f"/proc/{head.pid}/maps").read_text()
        except (FileNotFoundError, StopIteration):  # it ended while being looked at
            break
        time.sleep(0.2)
    if head.wait() != 0 or len(looks) < 2:
        raise RuntimeError(f"the run under watch ended with {head.returncode}")
    seconds, own, children = (end - begin for begin, end in zip(looks[0], looks[-1], strict=True))
    return Load(seconds, own, children, peak_mb, loads_torch)


def measure(mix: Path) -> Load:
    with tempfile.TemporaryDirectory() as folder, running(Path(folder) / "lab", NODES) as lab:
        runs = Path(folder) / "runs"
        words = [sys.executable, "-m", "hadar_cli.cli.main", "run", str(mix), "--no-live"]
        words += ["-n", str(lab.inventory), "--runs-dir", str(runs)]
        head = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return watch(head, runs)


def rows(quick: bool) -> Iterator[Row]:
    for name in ("m1",) if quick else ("m1", "m5"):
        load = measure(ROOT / "mixes" / f"{name}.yaml")
        if load.loads_torch:
            raise RuntimeError("the head has loaded torch")
        share, of_children = load.head_s / load.seconds, load.children_s / load.seconds
        limit = [100 * MOST_SHARE]
        yield beside(f"{name}, 5 nodes: head", "% core", [100 * share], "limit", limit)
        yield beside(f"{name}, for each node", "% core", [100 * share / NODES], "limit", limit)
        both = [100 * (share + of_children)]
        yield beside(f"{name}, with its ssh", "% core", both, "limit", limit)
        yield beside(f"{name}, peak memory", "MB", [load.peak_mb], "limit", [MOST_MB])
