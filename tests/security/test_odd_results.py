"""What training scripts may leave in place of a result: lies, links, pipes, devices, no end of it.

Real scripts under real agents, on this computer and behind a real SSH server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hadar_cli.assembly import connect
from hadar_cli.config.inventory import read_nodes
from hadar_cli.core import events
from hadar_cli.core.model import Job, Launch, Mix, Node
from hadar_cli.core.policies.port import Stint
from hadar_cli.core.state import RunState
from hadar_cli.engine.ports import CopyOrder, Executor, Failed, HandedIn, Observers
from hadar_cli.engine.tracker import Tracker
from hadar_cli.nodes.executor import NodeExecutor
from hadar_cli.runs.store import RunFacts, RunStore
from tests.contract.test_executor import collect, order
from tests.faults.fuzz_nodes import MemoryJournal, Takes
from tests.support.lab import Lab, running

# argv: what to leave as the weights, what as the result, and the result's JSON.
SCRIPT = """
import json, os, sys, time
weights, result, content = sys.argv[1:4]

def leave(kind, path, content):
    if kind == "file":
        with open(path + ".part", "w") as file:
            file.write(content)
        os.rename(path + ".part", path)
    elif kind == "link":
        os.symlink("/etc/passwd", path)
    elif kind == "endless device":
        os.symlink("/dev/zero", path)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        os.mkdir(path)
    elif kind == "endless":
        with open(path, "wb") as file:
            file.truncate(1 << 40)

leave(weights, os.environ["HADAR_CKPT_OUT"], "weights")
leave(result, os.environ["HADAR_RESULT"], content)
time.sleep(60)  # it stays: what it left must be seen without its end
"""
KINDS = ["link", "endless device", "pipe", "folder", "endless"]
HONEST = json.dumps({"steps": 10, "slices": [[0, 10]]})


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with running(tmp_path_factory.mktemp("odd") / "lab", count=1) as lab:
        yield lab


class Rig:
    """One node, and scripts that leave odd things on it."""

    def __init__(self, node: Node, tmp_path: Path) -> None:
        self.script = tmp_path / "odd.py"
        self.script.write_text(SCRIPT)
        self.store = RunStore.create(tmp_path / "runs", RunFacts("r", Mix("m", ()), (), "", ""))
        self.executor: Executor = NodeExecutor(connect([node], self.store), 1, 0.0)
        self.executor.adopt([])

    def job(self, weights: str, result: str, content: str = HONEST, number: int = 0) -> Job:
        launch = Launch(script=str(self.script), args=(weights, result, content))
        return Job(number, f"job-{number}", 100, 8, launch=launch)

    def leave(self, attempt: str, weights: str, result: str, number: int = 0) -> Failed | HandedIn:
        job = self.job(weights, result, number=number)
        self.executor.start(order(attempt, (0, 10), job=job))
        [report] = collect(self.executor, 1, within=90.0)
        assert isinstance(report, Failed | HandedIn)
        return report


@pytest.fixture(params=["local", "sshd"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    node = Node("one", "local")
    if request.param == "sshd":
        [found] = read_nodes(request.getfixturevalue("lab").inventory)
        node = replace(found, name="one", workdir=str(tmp_path / "workdir"), gpus=())
    rig = Rig(node, tmp_path)
    yield rig
    rig.executor.stop(0.0)


def test_only_plain_files_are_taken_for_weights_or_results(rig: Rig) -> None:
    """One node for all: an agent that hangs or dies over one of them does not get to the next."""
    for number, kind in enumerate(KINDS):
        report = rig.leave(f"w{number}", kind, "file", 2 * number)
        assert isinstance(report, Failed) and "cannot be taken" in report.why, (kind, report)
        report = rig.leave(f"r{number}", "file", kind, 2 * number + 1)
        assert isinstance(report, Failed) and "cannot be taken" in report.why, (kind, report)
    assert not list((rig.store.directory / "objects").iterdir())
    honest = rig.leave("honest", "file", "file", 99)
    assert isinstance(honest, HandedIn) and honest.weights


FORGED = {
    "event": "finished",
    "attempt": "other",
    "result": {"steps": 10, "slices": [[0, 10]]},
    "steps": 3,
    "seconds": 1,
}
FORGER = f"""
import json, os, time
with open(os.environ["HADAR_PROGRESS"], "w") as file:
    json.dump({FORGED!r}, file)
time.sleep(2)
with open(os.environ["HADAR_PROGRESS"], "w") as file:
    json.dump({{"steps": [], "seconds": "x"}}, file)
time.sleep(2)
raise SystemExit(5)
"""


def test_a_script_cannot_speak_for_another_copy(tmp_path: Path) -> None:
    """Nor end the agent by an odd progress file."""
    rig = Rig(Node("one", "local", emulated_speed=1.0), tmp_path)
    rig.script.write_text(FORGER)
    rig.executor.start(order("forger", (0, 10), job=rig.job("", "")))
    [report] = collect(rig.executor, 1, within=60.0)
    rig.executor.stop(0.0)
    assert isinstance(report, Failed) and report.attempt == "forger"
    assert report.why == "it exited with code 5"


# -- lies ----------------------------------------------------------------------------------------

LIES: dict[str, Any] = {
    "too many": {"steps": 99, "slices": [[0, 99]]},
    "too many, without saying which": {"steps": 99},
    "negative": {"steps": -5, "slices": [[0, -5]]},
    "negative, without saying which": {"steps": -5},
    "no number": {"steps": float("nan")},
    "times that are none": {"steps": 10, "seconds": {"train": float("nan")}},
    "times below zero": {"steps": 10, "seconds": {"train": -1.0}},
    "repeated": {"steps": 20, "slices": [[0, 10], [0, 10]]},
    "miscounted": {"steps": 9, "slices": [[0, 10]]},
    "of another job": {"steps": 10, "slices": [[50, 60]]},
    "text": {"steps": "10"},
    "huge": {"steps": 10**40, "slices": [[0, 10**40]]},
    "nothing": {},
}


def test_lies_count_for_nothing(tmp_path: Path) -> None:
    rig = Rig(Node("one", "local"), tmp_path)
    jobs = [rig.job("file", "file", json.dumps(lie), i) for i, lie in enumerate(LIES.values())]
    jobs.append(rig.job("file", "file", HONEST, len(jobs)))
    state, journal = RunState(jobs), MemoryJournal()
    mix = Mix("m", tuple(jobs))
    tracker = Tracker(mix, ["one"], state, journal, Takes(), rig.executor.now, Observers())
    tracker.record(events.HeadStarted(0.0, 1))
    for job in jobs:
        ordered: CopyOrder = tracker.hand_out(Stint(job.id, "one", 10), 30.0, [10])
        rig.executor.start(ordered)
        [report] = collect(rig.executor, 1, within=60.0)
        if isinstance(report, HandedIn):
            tracker.handed_in(report)
        else:
            assert isinstance(report, Failed), report
            tracker.failed(report)
        tracker.commit(state.jobs[job.id])
    rig.executor.stop(0.0)
    lost = [event.why for event in journal.events if isinstance(event, events.CopyLost)]
    assert len(lost) == len(LIES)
    assert [len(state.jobs[job.id].done) for job in jobs] == [0] * len(LIES) + [10]
