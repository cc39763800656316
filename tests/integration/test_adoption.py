"""The head is killed in mid-round; the next one takes over the copies that train on."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hadar_cli import assembly
from hadar_cli.core import events
from hadar_cli.core.state import RunState
from hadar_cli.engine.ports import Observers
from hadar_cli.errors import StorageError
from hadar_cli.nodes.executor import NodeExecutor
from hadar_cli.runs.request_handler import RunChanged
from hadar_cli.runs.store import RunStore, find_run, read_journal
from tests.support.lab import running
from tests.support.runs import stored, trained_world

MIX = """
slot_s: 12
merge: paper
jobs:
  - {workload: weather, steps: 300}
  - {workload: recommender, steps: 400}
"""
LOCAL = """
[[node]]
name = "one"
host = "local"
emulate = { speed = 0.3 }
[[node]]
name = "two"
host = "local"
emulate = { speed = 0.2 }
"""


@pytest.fixture(params=["local", "sshd"])
def inventory(request, tmp_path) -> Iterator[Path]:
    if request.param == "local":
        path = tmp_path / "nodes.toml"
        path.write_text(LOCAL)
        yield path
    else:
        with running(tmp_path / "lab", count=2) as lab:
            yield lab.inventory


def hadar(*words: str, cwd: Path) -> subprocess.Popen[bytes]:
    code = "from hadar_cli.cli.main import main; main()"
    return subprocess.Popen([sys.executable, "-c", code, *words], cwd=cwd)


def wait_until(condition: Callable[[], bool], within_s: float = 90.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_killed_heads_copies_are_taken_over_and_count_once(inventory, tmp_path):
    (tmp_path / "mix.yaml").write_text(MIX)
    head = hadar("run", "mix.yaml", "-n", str(inventory), "--no-live", "--name", "r", cwd=tmp_path)
    # Two copies make progress: the head dies while both are in the middle of their work.
    wait_until(lambda: len(list(tmp_path.rglob("attempts/*/progress.json"))) >= 2)
    os.kill(head.pid, signal.SIGKILL)
    head.wait()
    store = find_run(tmp_path / "runs", "r")
    orphans = under_way(read_journal(store.journal_path))
    assert len(orphans) >= 2
    assert hadar("resume", "r", "--no-live", cwd=tmp_path).wait(200) == 0
    journal = read_journal(store.journal_path)
    resumed = next(
        i for i, e in enumerate(journal) if isinstance(e, events.HeadStarted) and e.epoch == 2
    )
    taken_over = {
        e.attempt for e in journal[resumed:] if isinstance(e, events.CopyFinished) and e.steps
    } & orphans
    assert taken_over == orphans
    merged = [a for e in journal if isinstance(e, events.WeightsMerged) for a in e.accepted]
    assert len(merged) == len(set(merged)) and taken_over <= set(merged)
    state = RunState(store.facts.mix.jobs)
    for event in journal:
        state.apply(event)
    assert state.finished
    assert {j.job.name: len(j.done) for j in state.jobs.values()} == {
        "weather": 300,
        "recommender": 400,
    }


def under_way(journal: list[events.Event]) -> set[str]:
    open_ = {e.attempt for e in journal if isinstance(e, events.CopyStarted) and e.slices}
    ended = {e.attempt for e in journal if isinstance(e, events.CopyFinished | events.CopyLost)}
    return open_ - ended


def test_copies_are_held_before_what_was_committed_is_read_again(tmp_path, monkeypatch):
    """Hashing 10 GB takes longer than a lease lasts. What this head has read, it reads once."""
    world, done = trained_world(), []
    del world.journal.events[-10:]
    monkeypatch.setattr(NodeExecutor, "adopt", lambda *_: done.append("held"))
    monkeypatch.setattr(RunStore, "verify", lambda _, digest: done.append(digest))
    ends = iter((RunChanged(), StorageError("enough")))

    def train(_: object) -> None:
        raise next(ends)

    monkeypatch.setattr(assembly._Head, "train", train)
    with pytest.raises(StorageError, match="enough"):
        assembly.drive(stored(world, tmp_path), lambda *_: Observers())
    read = [one for one in done if one != "held"]
    assert read and len(read) == len(set(read))
    assert done == ["held", *read, "held"]
