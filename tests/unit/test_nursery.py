"""The process that workers are forked from, as its agent holds it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from hadar_cli.node.agent import leftovers, processes
from hadar_cli.node.agent.nursery import Nursery, SharedNursery
from hadar_cli.node.agent.supervisor import WorkerSpec


def test_a_nursery_that_has_ceased_to_read_is_replaced_and_never_waited_for(tmp_path):
    spec = WorkerSpec(["python", "x.py"], {}, str(tmp_path), "lease", 1.0, "tag", "", "")
    directory = tmp_path / ("worker" * 40)
    directory.mkdir()
    nursery = Nursery(tmp_path / "log", [])
    first = nursery.pid
    os.kill(first, signal.SIGSTOP)
    try:
        told = 0
        while nursery.start(directory, spec) == first:
            told += 1
            assert told < 1000, "no pipe holds so much"
        assert told > 1
    finally:
        nursery.end()


def test_nodes_of_one_computer_share_one_that_ends_with_the_last_of_them(tmp_path):
    def join(name: str, **needs: str) -> SharedNursery:
        return SharedNursery(tmp_path / "nursery", tmp_path / f"{name}.json", [], needs)

    first, second, unlike = join("a"), join("b"), join("c", LD_PRELOAD="other")
    try:
        assert first.pid == second.pid != unlike.pid
        assert first.pid in living(tmp_path / "nodes" / "b", tmp_path / "b.json")
        first.end()
        assert second.is_alive
        before, started = second.pid, processes.start_time(second.pid)
        os.kill(before, signal.SIGKILL)
        assert processes.wait_gone([(before, started)], 30.0)
        third = join("d")  # finds it dead, and begins another
        assert third.pid != before
        spec = WorkerSpec(["python", "x.py"], {}, str(tmp_path), "lease", 1.0, "tag", "", "")
        (tmp_path / "worker").mkdir()
        assert second.start(tmp_path / "worker", spec) == third.pid, "it comes to that one, too"
        third.end()
        second.end()
        assert not second.is_alive
    finally:
        unlike.end()


def living(directory: Path, note: Path) -> list[int]:
    """As ``hadar clean`` finds them for the node whose agent holds this note."""
    directory.mkdir(parents=True)
    (directory / "nursery.json").write_bytes(note.read_bytes())
    return [pid for pid, _ in leftovers.living(directory)]
