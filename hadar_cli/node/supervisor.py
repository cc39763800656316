"""Watches one worker: its orders' deadlines, the head's lease, its whole process group.

A supervisor outlives the connection that started it and is outlived by nothing it started.
Its worker's directory holds all it knows:

    orders/1.json …   the orders; the worker waits for the next number
    worker.json       pid and start time of supervisor and worker
    stop              appears when the worker is to leave
    exit.json         written last: exit code and why
    log               the worker's output
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from hadar_cli.node import processes
from hadar_cli.node.order import write_atomically

_LOOK_EVERY_S = 0.05
_TERM_GRACE_S = 10.0  # between SIGTERM and SIGKILL
_GRACE_S = 5.0  # past an order's deadline, for saving
_NO_LEASE = "the head's lease ran out"
_START_GRACE_S = 120.0  # past the first one's, for importing and reading data


@dataclass(frozen=True, slots=True)
class WorkerSpec:
    """How to start a worker. ``lease`` is the file whose content the head's agent renews."""

    argv: list[str]
    env: dict[str, str]
    cwd: str
    lease: str
    lease_s: float
    tag: str
    setup: str  # the job's setup command, if it has one
    setup_stamp: str  # the file that says that it is done


BecomeWorker: TypeAlias = Callable[[WorkerSpec, dict[str, str]], None]


def order_path(directory: Path, number: int) -> Path:
    return directory / "orders" / f"{number}.json"


def supervise(directory: Path, spec: WorkerSpec, become_worker: BecomeWorker) -> None:
    """Forks the worker and stays with it until neither it nor anything it started is left."""
    processes.adopt_orphans()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    first: dict[str, str] = json.loads(order_path(directory, 1).read_text())
    me = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        processes.die_with_parent(me)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        become_worker(spec, {**first, "HADAR_WORKER": spec.tag})
    started = processes.start_time(pid) or 0
    write_atomically(
        directory / "worker.json",
        {"supervisor": [me, processes.start_time(me) or 0], "worker": [pid, started]},
    )
    worker = _Worker(pid)
    why = _watch(directory, spec, worker)
    processes.kill_group(pid, started)
    code = worker.wait()
    processes.kill_children()
    ended = {"code": code, "why": why, "node_fault": why == _NO_LEASE}
    write_atomically(directory / "exit.json", ended)


class _Worker:
    """The forked worker's life, as its parent sees it."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it lives."""
        if self._code is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def wait(self, timeout_s: float = float("inf")) -> int | None:
        deadline = time.monotonic() + timeout_s
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return self._code

    def ask_to_leave(self) -> None:
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGTERM)
        self.wait(_TERM_GRACE_S)  # the caller kills what is left then


def _watch(directory: Path, spec: WorkerSpec, worker: _Worker) -> str:
    """Returns when the worker is gone or must go, with the reason in words."""
    number, limits = 1, _limits(order_path(directory, 1))
    while worker.poll() is None:
        following = order_path(directory, number + 1)
        if following.exists():
            number, limits = number + 1, _limits(following)
        why = _reason_to_stop(directory, spec, limits)
        if why:
            worker.ask_to_leave()
            return why
        time.sleep(_LOOK_EVERY_S)
    return "exited"


@dataclass(slots=True)
class _Limits:
    """By when an order has to be done. A first one may start late, and has its time from then."""

    issued_at: float
    seconds: float  # with some for saving
    start_grace_s: float
    result: Path
    progress: Path
    began_at: float | None = None  # when it was first seen to train

    def are_passed(self, now: float) -> bool:
        if now <= self.issued_at + self.seconds:
            return False
        if self.result.exists() or not self.result.parent.exists():
            return False  # what was collected is gone, directory and all
        if self.began_at is None and self.progress.exists():
            self.began_at = now
        if self.start_grace_s and self.began_at is not None:
            return now > self.began_at + self.seconds
        return now > self.issued_at + self.seconds + self.start_grace_s


def _limits(order: Path) -> _Limits:
    variables: dict[str, Any] = json.loads(order.read_text())
    seconds = float(variables["HADAR_SECONDS_LEFT"])
    return _Limits(
        float(variables["HADAR_ISSUED_AT"]),
        seconds + max(_GRACE_S, 0.2 * seconds),
        _START_GRACE_S if order.stem == "1" else 0.0,
        Path(variables["HADAR_RESULT"]),
        Path(variables["HADAR_PROGRESS"]),
    )


def _reason_to_stop(directory: Path, spec: WorkerSpec, limits: _Limits) -> str | None:
    now = time.monotonic()
    if (directory / "stop").exists():
        return "released"
    if now > leased_at(Path(spec.lease)) + spec.lease_s:
        return _NO_LEASE
    return "did not stop at its deadline" if limits.are_passed(now) else None


def leased_at(lease: Path) -> float:
    """When the head's lease was last renewed, on the node's monotonic clock."""
    try:
        return float(lease.read_text())
    except (OSError, ValueError):
        return 0.0
