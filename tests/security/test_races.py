"""Races and mistaken identities on a node, each brought about on purpose."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import pytest

from hadar_cli.node.agent import agent, processes, transfer
from hadar_cli.node.agent.nursery import Nursery
from hadar_cli.node.agent.supervisor import order_path
from hadar_cli.node.agent.watch import AttemptWatch
from hadar_cli.node.contract import write_atomically
from hadar_cli.nodes.session.threads import SessionThreads
from tests.contract.test_executor import job, order
from tests.faults.fuzz_nodes import Pulls, make_inline

LEADERLESS = """
import os, sys, time
os.setsid()
if os.fork():
    os._exit(0)
print(os.getpgrp(), flush=True)
time.sleep(60)
"""


@pytest.fixture
def stranger() -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Somebody's daemon: a process group whose leader is gone, as daemons leave it."""
    daemon = subprocess.Popen(
        [sys.executable, "-I", "-c", LEADERLESS], stdout=subprocess.PIPE, text=True
    )
    assert daemon.stdout
    group = int(daemon.stdout.readline())
    daemon.wait()
    yield group, daemon
    with suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_pid_from_before_a_reboot_is_nobody_s(
    stranger: tuple[int, subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    group, _ = stranger
    me = os.getpid()
    now = processes.start_time(me)
    monkeypatch.setattr(processes, "boot", lambda: 12345)
    then = processes.start_time(me)
    assert now and then and now != then  # the same pid and the same tick, before a reboot
    monkeypatch.undo()
    assert not processes.is_alive(me, then)
    processes.kill_group(group, then)
    time.sleep(0.1)
    assert lives(group)
    processes.kill_group(group, now)  # within one boot, a group outlives its leader
    deadline = time.monotonic() + 10
    while lives(group):
        assert time.monotonic() < deadline
        time.sleep(0.01)


ORPHAN = """
import os, time
from hadar_cli.node.agent import processes
supervisor = os.getpid()
if os.fork():
    os._exit(0)  # it dies before its worker can ask the kernel to end them together
while os.getppid() == supervisor:
    time.sleep(0.01)
processes.die_with_parent(supervisor)
print("alive")
"""


def test_a_worker_born_as_its_supervisor_dies_does_not_live_on() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ORPHAN], capture_output=True, text=True, timeout=60, check=True
    )
    assert (done.stdout, done.stderr) == ("", "")


class Node:
    """The node's end of a transfer, its answers caught."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, incoming: bytes) -> None:
        self.said: list[dict[str, Any]] = []
        monkeypatch.setattr(transfer, "answer", self.said.append)
        monkeypatch.setattr(transfer, "_verified", set(), raising=False)
        ours, theirs = os.pipe()
        os.write(theirs, incoming)
        os.close(theirs)
        real = transfer._chunks
        monkeypatch.setattr(
            transfer, "_chunks", lambda fd, count: real(ours if fd == 0 else fd, count)
        )


def test_a_checkpoint_damaged_on_the_node_is_not_taken_for_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of power can leave a file of the right name and length that holds zeros."""
    content = b"weights" * 1000
    digest = hashlib.sha256(content).hexdigest()
    (tmp_path / digest).write_bytes(bytes(len(content)))
    node = Node(monkeypatch, content)
    transfer._put(tmp_path, digest, len(content), False)
    assert node.said[0] == {"offset": 0}
    assert node.said[1]["have"] and (tmp_path / digest).read_bytes() == content
    transfer._put(tmp_path, digest, len(content), False)
    assert node.said[2]["have"]


def test_an_order_that_never_reached_its_worker_is_sent_again(tmp_path: Path) -> None:
    """The agent was killed between noting an attempt and handing it over."""
    watcher = agent.Agent.__new__(agent.Agent)
    watcher._run, watcher._watched = tmp_path, AttemptWatch(tmp_path, cast(Nursery, None))
    for attempt, number in (("lost", 2), ("handed over", 1)):
        (tmp_path / "attempts" / attempt).mkdir(parents=True)
        note = {"worker": "w", "number": number}
        write_atomically(tmp_path / "attempts" / attempt / "order.json", note)
    order_path(tmp_path / "workers" / "w", 1).parent.mkdir(parents=True)
    write_atomically(order_path(tmp_path / "workers" / "w", 1), {})
    assert list(watcher._adopt(["lost", "handed over"])) == ["handed over"]


def test_the_end_of_an_old_process_is_not_taken_for_the_new_one_s() -> None:
    reports: list[Any] = []
    hand = SessionThreads(Pulls({"attempts": {}, "worker": "w", "number": 2}), 1, reports.append)
    make_inline(hand)
    first = job()
    hand.start(order("a", (0, 5), device="n", job=first))
    hand.start(order("ahead", (5, 9), device="n", job=first, follows="a"))
    other = type(first)(1, "other", 100, 8, launch=first.launch)
    hand.start(order("b", (0, 5), device="n", job=other))
    workers = hand._session.workers.by_device
    hired = workers["n"]
    assert hired.job == 1
    hand._on_event({"event": "exited", "attempt": "ahead", "end": "released", "code": 0})
    assert workers["n"] == hired
    hand._on_event({"event": "exited", "attempt": "b", "end": "exited", "code": 1})
    assert "n" not in workers
