"""The process that workers are forked from, as its agent holds it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hadar_cli.node.agent import leftovers, processes
from hadar_cli.node.agent.nursery import Nursery, SharedNursery
from hadar_cli.node.agent.supervisor import WorkerSpec
from hadar_cli.node.log_phrases import NO_GPU

# A worker of a nursery whose torch, by its words, sees these kinds of GPUs.
WORKER = f"""
import sys
from types import SimpleNamespace
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from hadar_cli.node.agent import nursery
from hadar_cli.node.agent.supervisor import WorkerSpec
card, has_cuda, has_mps = sys.argv[1], "cuda" in sys.argv[2:], "mps" in sys.argv[2:]
torch = sys.modules["torch"] = SimpleNamespace(
    __version__="2.5+cpu",
    cuda=SimpleNamespace(is_available=lambda: has_cuda),
    backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: has_mps)),
    set_num_threads=lambda count: print(count, "threads", flush=True),
)
words, env = [sys.executable, "train.py"], {{"OMP_NUM_THREADS": "3"}}
nursery.become_worker(WorkerSpec(words, env, ".", "lease", 1.0, "tag", "", "", card=card), {{}})
"""


def test_a_nursery_that_has_ceased_to_read_is_replaced_and_never_waited_for(tmp_path):
    spec = WorkerSpec(["python", "x.py"], {}, str(tmp_path), "lease", 1.0, "tag", "", "")
    directory = tmp_path / ("worker" * 40)
    directory.mkdir()
    nursery = Nursery(tmp_path / "log", [])
    first = nursery.pid
    os.kill(first, signal.SIGSTOP)
    try:
        told = 0
        while nursery.pid == first:
            nursery.start(directory, spec)
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
        second.start(tmp_path / "worker", spec)
        assert second.pid == third.pid, "it comes to that one, too"
        third.end()
        second.end()
        assert not second.is_alive
    finally:
        unlike.end()


def test_one_that_all_agents_have_left_still_does_what_it_was_told(tmp_path):
    """A head that is put together anew leaves its agents while workers are still being started."""

    def join(name: str) -> SharedNursery:
        return SharedNursery(tmp_path / "nursery", tmp_path / f"{name}.json", [], {})

    first = join("a")
    os.kill(first.pid, signal.SIGSTOP)  # as one that is still importing torch
    spec = WorkerSpec(["python", "x.py"], {}, str(tmp_path), "lease", 1.0, "tag", "", "")
    (tmp_path / "worker").mkdir()
    first.start(tmp_path / "worker", spec)
    os.close(first._lines)  # as its agent's end does
    first._users.close()
    second = join("b")
    try:
        assert second.pid != first.pid, "which may have read its end of file already"
        assert second.may_start(tmp_path / "worker"), "the one that was asked lives"
        os.kill(first.pid, signal.SIGCONT)
        assert first._mine and first._mine.wait(30.0) == 0
        assert not (tmp_path / "worker" / "spec.json").exists(), "a supervisor has it"
    finally:
        second.end()


def living(directory: Path, note: Path) -> list[int]:
    """As ``hadar clean`` finds them for the node whose agent holds this note."""
    directory.mkdir(parents=True)
    (directory / "nursery.json").write_bytes(note.read_bytes())
    return [pid for pid, _ in leftovers.living(directory)]


@pytest.mark.parametrize(
    ("card", "sees", "trains"),
    [("", (), True), ("0", ("cuda",), True), ("0", ("mps",), True), ("0", (), False)],
)
def test_a_worker_has_its_threads_and_does_not_train_on_the_processor_in_place_of_a_gpu(
    tmp_path, card, sees, trains
):
    (tmp_path / "train.py").write_text("print('trained')")
    words = [sys.executable, "-c", WORKER, card, *sees]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.split("\n")[:2] == ["3 threads", "trained" if trains else ""], done.stderr
    assert (done.returncode == 0) is trains
    assert (NO_GPU in done.stderr) is not trains
