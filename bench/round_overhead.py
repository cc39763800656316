"""What a round costs beside training: from a copy's last step to its next first one, over SSH.

    python -m bench.round_overhead [--mb 45] [--nodes 5]

Five copies of one job with ResNet-18-sized weights train on the lab and stay on their devices.
Each gap between two rounds holds: save, pull, merge, push, load. Beside it stands the physical
limit in the same run: the same bytes, up and down, for all nodes at once, by scp.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from bench.frame import Row, beside
from hadar_cli.core import events
from hadar_cli.runs.store import read_journal
from tests.support.lab import Lab, running

SCRIPT = """
import time
import torch
from hadar_cli import training

torch.set_num_threads(1)
model = torch.nn.Linear({width}, {width}, bias=False)
data = torch.utils.data.TensorDataset(torch.randn(64, {width}))
with training(model, torch.optim.SGD(model.parameters(), 1e-6)) as t:
    for (x,) in t.loader(data, batch_size=1):
        t.step(model(x).square().mean())
        time.sleep(0.1)
"""
MIX = """
name: overhead
slot_s: 10
merge: paper
jobs:
  - {{script: train.py, name: wide, steps: {steps}, batch_size: 1, mode: merge}}
"""


def gaps(journal: Path) -> list[float]:
    """Seconds between a copy's last step and the first of the same process's next order."""
    started: dict[str, events.CopyStarted] = {}
    ended: dict[str, float] = {}
    found = []
    for event in read_journal(journal):
        if isinstance(event, events.CopyStarted):
            started[event.attempt] = event
        elif isinstance(event, events.CopyFinished) and event.steps:
            began = started[event.attempt]
            loop_began = began.t + event.start_s
            if event.warm and began.device in ended:
                found.append(loop_began - ended[began.device])
            ended[began.device] = loop_began + event.train_s
    return found


def scp_there_and_back(lab: Lab, size: int) -> float:
    """Seconds for every node to send and receive the bytes once, all at the same time."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"x" * size)
        file.flush()

        def both_ways(name: str) -> None:
            node = lab[name]
            options = ["-q", "-i", str(lab.identity_file), "-P", str(node.port)]
            options += ["-o", f"UserKnownHostsFile={lab.known_hosts}"]
            there = f"127.0.0.1:{node.home}/probe"
            subprocess.run(["scp", *options, file.name, there], check=True)
            subprocess.run(["scp", *options, there, f"{file.name}-{name}"], check=True)
            Path(f"{file.name}-{name}").unlink()

        began = time.monotonic()
        with ThreadPoolExecutor() as pool:
            list(pool.map(both_ways, lab.names))
        return time.monotonic() - began


def measure(mb: int, nodes: int, steps: int) -> tuple[list[float], list[float]]:
    """Seconds of each gap, and of the same bytes by scp."""
    width = round((mb * 1e6 / 4) ** 0.5)
    with (
        tempfile.TemporaryDirectory() as folder,
        running(Path(folder) / "lab", nodes) as lab,
    ):
        work = Path(folder)
        alike = re.sub(r"speed = [0-9.]+", "speed = 1.0", lab.inventory.read_text())
        (work / "nodes.toml").write_text(alike)
        (work / "train.py").write_text(SCRIPT.format(width=width))
        (work / "mix.yaml").write_text(MIX.format(steps=steps))
        run = [sys.executable, "-m", "hadar_cli.cli.main", "run", "mix.yaml", "--no-live"]
        subprocess.run(run, cwd=work, check=True, capture_output=True)
        found = gaps(next(work.glob("runs/*/journal.jsonl")))
        return found, [scp_there_and_back(lab, width * width * 4) for _ in range(3)]


def rows(quick: bool) -> Iterator[Row]:
    found, limit = measure(mb=45, nodes=5, steps=600 if quick else 1500)
    yield beside("gap, 5 nodes, 45 MB", "s", found, "the bytes by scp", [min(limit)])


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--mb", type=int, default=45)
    options.add_argument("--nodes", type=int, default=5)
    options.add_argument("--steps", type=int, default=1500)
    chosen = options.parse_args()
    found, limits = measure(chosen.mb, chosen.nodes, chosen.steps)
    median, worst, limit = statistics.median(found), max(found), min(limits)
    print(f"{chosen.nodes} nodes, {chosen.mb} MB, {len(found)} gaps")
    print(f"round overhead   median {median:.2f} s   worst {worst:.2f} s")
    print(f"the bytes by scp        {limit:.2f} s")
    print(f"beyond the bytes        {median - limit:.2f} s median, {worst - limit:.2f} s worst")


if __name__ == "__main__":
    main()
