"""How fairly runs of two people share five lab nodes, beside an equal share.

    python -m bench.turns [--mix mixes/m3.yaml] [--later 0] [--turn-s 120] [--times 1] [--runs DIR]

Two runs of the same mix, each from a directory of its own, on the same five private SSH servers at
once. All is told from the two journals: a copy that handed in had its device from its first step to
its hand-in. Shares are those of the time of all devices from when both runs have begun to train
until one of them has its last hand-in. Exits with 1 if a device ever trained copies of both, or a
run did not count every step. Copies that were called back before they trained are counted apart.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from hadar_cli.core import events
from hadar_cli.core.state import RunState
from hadar_cli.runs.store import find_run
from hadar_cli.runs.tail import JournalTail
from tests.support.lab import running

ROOT = Path(__file__).parents[1]
PEOPLE = ("ada", "bob")


@dataclass(frozen=True, slots=True)
class Stay:
    """A copy that trained on a device, on this machine's clock."""

    device: str
    who: str
    began: float
    ended: float


@dataclass(slots=True)
class Run:
    """One person's run, whose journal is read as it grows: so its clock is known by ours."""

    who: str
    folder: Path
    process: subprocess.Popen[bytes]
    tail: JournalTail
    ahead_s: float = float("inf")  # of our clock before the run's
    happened: list[events.Event] = field(default_factory=list)

    @classmethod
    def start(cls, who: str, folder: Path, mix: Path, inventory: Path) -> Run:
        folder.mkdir(parents=True)
        words = ["run", str(mix), "--name", f"of-{who}", "--no-live", "-n", str(inventory)]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "hadar_cli.cli.main", *words],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        tail = JournalTail(folder / "runs" / f"of-{who}" / "journal.jsonl")
        return cls(who, folder, process, tail)

    def look(self) -> bool:
        """Whether it goes on."""
        goes_on = self.process.poll() is None
        for event in self.tail.news():
            self.happened.append(event)
            self.ahead_s = min(self.ahead_s, time.monotonic() - event.t)
        return goes_on

    def stays(self) -> list[Stay]:
        ordered = {e.attempt: e for e in self.happened if isinstance(e, events.CopyStarted)}
        found = []
        for event in self.happened:
            if isinstance(event, events.CopyFinished) and event.steps:
                copy = ordered[event.attempt]
                trained_s = event.train_s + event.save_s
                began = event.t - trained_s if copy.follows else copy.t + event.start_s
                times = (began + self.ahead_s, event.t + self.ahead_s)
                found += [Stay(device, self.who, *times) for device in copy.devices]
        return found

    @property
    def called_back(self) -> int:
        """Copies that brought nothing."""
        return sum(isinstance(event, events.CopyLost) for event in self.happened)

    def problem(self) -> str:
        """Why not all that was to be trained is, if so."""
        state = RunState(find_run(self.folder / "runs", f"of-{self.who}").facts.mix.jobs)
        for event in self.happened:
            state.apply(event)
        counted = {job.job.name: len(job.done) for job in state.jobs.values()}
        wanted = {job.job.name: job.job.target_steps for job in state.jobs.values()}
        return "" if counted == wanted else f"{self.who}: {counted} of {wanted}"


def together(stays: list[Stay]) -> tuple[float, float]:
    """From when to when both runs had use for devices."""
    times = [[stay for stay in stays if stay.who == who] for who in PEOPLE]
    begins = max(min(stay.began for stay in mine) for mine in times)
    return begins, min(max(stay.ended for stay in mine) for mine in times)


def held(stays: list[Stay], begins: float, ends: float) -> dict[str, float]:
    """Device seconds of each within that time; of orders that follow each other, once."""
    had = dict.fromkeys(PEOPLE, 0.0)
    for who, device in {(stay.who, stay.device) for stay in stays}:
        until = begins
        for stay in sorted(stays, key=lambda stay: stay.began):
            if (stay.who, stay.device) == (who, device):
                had[who] += max(0.0, min(ends, stay.ended) - max(until, stay.began))
                until = max(until, stay.ended)
    return had


def overlaps(stays: list[Stay]) -> list[tuple[Stay, Stay]]:
    """Pairs of both runs that had one device at once."""
    found = []
    for device in {stay.device for stay in stays}:
        there = sorted((s for s in stays if s.device == device), key=lambda stay: stay.began)
        for one, other in pairwise(there):
            if one.who != other.who and other.began < one.ended:
                found.append((one, other))
    return found


def share(mix: Path, inventory: Path, folder: Path, later_s: float) -> list[Run]:
    runs: list[Run] = []
    try:
        for who in PEOPLE:
            runs.append(Run.start(who, folder / who, mix, inventory))
            until = time.monotonic() + (later_s if who == PEOPLE[0] else 0.0)
            while time.monotonic() < until:
                runs[0].look()
                time.sleep(0.01)
        while any([run.look() for run in runs]):
            time.sleep(0.01)
    finally:
        for run in runs:
            run.process.terminate()
            run.process.wait()
    return runs


def report(runs: list[Run]) -> bool:
    """Prints one line of figures and what is wrong; whether anything is."""
    stays = [stay for run in runs for stay in run.stays()]
    begins, ends = together(stays)
    had = held(stays, begins, ends)
    first = min(stay.began for stay in stays)
    over = {who: max(s.ended for s in stays if s.who == who) - first for who in PEOPLE}
    both = sum(had.values())
    print(
        f"together {ends - begins:.1f} s; shares "
        + ", ".join(f"{who} {had[who] / both:.3f}" for who in PEOPLE)
        + f" of {both:.0f} device seconds; ends after "
        + ", ".join(f"{who} {over[who]:.1f} s" for who in PEOPLE)
        + f"; changes of hands {changes(stays)}, copies called back in vain "
        + ", ".join(f"{run.who} {run.called_back}" for run in runs),
        flush=True,
    )
    wrong = [problem for run in runs if (problem := run.problem())]
    wrong += [f"two at once: {one} {other}" for one, other in overlaps(stays)]
    for problem in wrong:
        print(f"  WRONG: {problem}")
    return bool(wrong)


def changes(stays: list[Stay]) -> int:
    """How often a device went from one run to the other."""
    count = 0
    for device in {stay.device for stay in stays}:
        there = sorted((s for s in stays if s.device == device), key=lambda stay: stay.began)
        count += sum(one.who != other.who for one, other in pairwise(there))
    return count


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.turns", description=__doc__)
    parser.add_argument("--mix", type=Path, default=ROOT / "mixes" / "m3.yaml")
    parser.add_argument("--later", type=float, default=0.0, help="seconds that bob comes later")
    parser.add_argument("--turn-s", type=float, default=120.0)
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--runs", type=Path, help="where the runs are kept, to be looked at")
    asked = parser.parse_args()
    is_wrong = False
    with tempfile.TemporaryDirectory() as folder, running(Path(folder) / "lab", 5) as lab:
        text = lab.inventory.read_text()
        text = text.replace("[defaults]", f"[defaults]\nturn_s = {asked.turn_s:g}")
        lab.inventory.write_text(text)
        for time_number in range(asked.times):
            where = (asked.runs or Path(folder)) / f"time{time_number}"
            is_wrong |= report(share(asked.mix.resolve(), lab.inventory, where, asked.later))
    sys.exit(is_wrong)


if __name__ == "__main__":
    main()
