"""Watches one worker: its orders' deadlines, the head's lease, its whole process group.

A supervisor outlives the connection that started it and is outlived by nothing it started.
Its worker's directory holds all it knows:

    spec.json         how the worker is started; gone once it is read
    nursery.json      pid and start time of the nursery that was asked to fork it
    orders/1.json …   the orders; the worker waits for the next number
    worker.json       pid and start time of supervisor and worker
    stop              appears when the worker is to leave
    exit.json         written last: exit code and why (a WorkerEnd)
    log               the worker's output
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias

from hadar_cli.node.agent import processes
from hadar_cli.node.agent.plain_files import read_json
from hadar_cli.node.agent_events import WorkerEnd
from hadar_cli.node.contract import WORKER, Order, Result, write_atomically
from hadar_cli.node.gpus.cards import CardLock, identity
from hadar_cli.node.lease import Lease
from hadar_cli.node.phases import UNMEASURED_S, allowance_s

_LOOK_EVERY_S = 0.05
_TERM_GRACE_S = 10.0  # between SIGTERM and SIGKILL
_LEAVES_S = 2.0  # after its last result, for what a script does at its end, before SIGTERM
_SAVE_GRACE_S = 60.0  # the same for one that is to hand in, and does not say what it is about
_GRACE_S = 5.0  # past an order's deadline, for saving
_OTHERS_LEAVE_S = 5.0  # as long a device is waited for that its last worker has not left
#: beside a worker's ``stop``: it has handed in its last, and may have more to do before it ends
LEAVING = "leaving"
#: the same: nobody wants what it has, as of a gang that has lost a member
ABANDONED = "abandoned"
_ABANDONED_GRACE_S = 1.0  # instead: it may wait for a lost member, and hear no signal
_START_GRACE_S = UNMEASURED_S  # past the first one's, for importing, building and reading data


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
    device: int = 0  # its number among the node's
    card: str = ""  # its GPU as the worker is shown it; empty: it trains on the processor
    lock: str = ""  # then: the name by which all runs lock the device; empty: only this run does


BecomeWorker: TypeAlias = Callable[[WorkerSpec, dict[str, str]], None]


def order_path(directory: Path, number: int) -> Path:
    return directory / "orders" / f"{number}.json"


def read_order(path: Path) -> Order:
    return Order.from_variables(json.loads(path.read_text()))


def supervise(directory: Path, spec: WorkerSpec, become_worker: BecomeWorker) -> None:
    """Forks the worker and stays with it until neither it nor anything it started is left."""
    processes.adopt_orphans()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    first = read_order(order_path(directory, 1))
    me = os.getpid()
    myself = [me, processes.start_time(me) or 0]
    lease = Lease(Path(spec.lease))
    lock, end = _hold_device(directory, spec, lease, {"supervisor": myself, "worker": myself})
    if end:
        write_atomically(directory / "exit.json", {"code": -1, "end": end, "detail": lock.holder()})
        return
    killed_before = processes.killed_for_memory()
    # Held back over the fork: a worker that is asked to leave at once must not miss it.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    pid = os.fork()
    if pid == 0:
        os.setsid()
        processes.die_with_parent(me)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        become_worker(spec, {**first.variables(), WORKER: spec.tag})
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    started = processes.start_time(pid) or 0
    write_atomically(directory / "worker.json", {"supervisor": myself, "worker": [pid, started]})
    worker = _Worker(pid)
    end = _watch(directory, spec, lease, worker)
    processes.kill_group(pid, started)
    code = worker.wait()
    processes.kill_children()
    lock.give_back()
    if end is WorkerEnd.EXITED and code == 0:
        _stand_in_for_result(directory)
    was_killed = end is WorkerEnd.EXITED and code == -signal.SIGKILL
    if was_killed and processes.killed_for_memory() > killed_before:
        end = WorkerEnd.OUT_OF_MEMORY
    write_atomically(directory / "exit.json", {"code": code, "end": end})


def _stand_in_for_result(directory: Path) -> None:
    """A script that shares steps by itself leaves all to rank 0: its others ended well, too."""
    number = max(int(path.stem) for path in (directory / "orders").glob("*.json"))
    order = read_order(order_path(directory, number))
    if order.is_first_of_gang or order.result is None or order.result.exists():
        return
    if order.result.parent.is_dir():
        Result(steps=0).write(order.result)


def _hold_device(
    directory: Path, spec: WorkerSpec, lease: Lease, who_waits: dict[str, list[int]]
) -> tuple[CardLock, WorkerEnd | None]:
    """Waits until the worker before has left the device; another run's is not waited for long."""
    run = Path(spec.lease).parent
    shared = identity(spec.card) if spec.card else spec.lock
    lock = CardLock(shared) if shared else CardLock(f"device-{spec.device}", run)
    note = {"run": run_name(run), "at": str(run), "worker": directory.name}
    told_at = time.monotonic()
    patient_until = told_at + _OTHERS_LEAVE_S
    while not lock.take(note):
        write_atomically(directory / "worker.json", who_waits)
        if end := _reason_to_stop(directory, spec, lease):
            return lock, end
        now, holder = time.monotonic(), lock.note()
        if "at" in holder:
            told_at = now
        is_told = told_at == now or now > told_at + _OTHERS_LEAVE_S  # or it has come, or left
        if now > patient_until and is_told:
            if holder.get("at") != note["at"]:
                return lock, WorkerEnd.CARD_TAKEN
            _ask_to_leave(run / "workers", str(holder.get("worker")))
        time.sleep(_LOOK_EVERY_S)
    return lock, None


def run_name(run: Path) -> str:
    """Of the run's directory on a node: runs/NAME/NODE, here or elsewhere."""
    return [part for part in run.parts if part != "nodes"][-2]


def _ask_to_leave(workers: Path, name: str) -> None:
    """One that has handed in, and does not end: its device is wanted for another job."""
    if (workers / name).is_dir() and (workers / name).parent == workers:
        (workers / name / "stop").touch()


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
        """The caller waits, and kills what is left then."""
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGTERM)


def _watch(directory: Path, spec: WorkerSpec, lease: Lease, worker: _Worker) -> WorkerEnd:
    """Returns when the worker is gone or must go."""
    number, limits = 1, _limits(order_path(directory, 1))
    while worker.poll() is None:
        following = order_path(directory, number + 1)
        if following.exists():
            number, limits = number + 1, _limits(following, limits)
        if end := _reason_to_stop(directory, spec, lease, limits):
            if end is WorkerEnd.RELEASED and (directory / LEAVING).exists():
                worker.wait(_LEAVES_S)
            worker.ask_to_leave()
            is_abandoned = (directory / ABANDONED).exists()
            worker.wait(_ABANDONED_GRACE_S if is_abandoned else _TERM_GRACE_S)
            while end is WorkerEnd.RELEASED and worker.poll() is None and limits.may_hand_in():
                time.sleep(_LOOK_EVERY_S)
            return end
        time.sleep(_LOOK_EVERY_S)
    return WorkerEnd.EXITED


@dataclass(slots=True)
class _Limits:
    """By when an order has to be done. A first one may start late, and has its time from then. A
    step, a save or an evaluation that is under way is let finish."""

    issued_at: float
    seconds: float  # with some for saving
    start_grace_s: float
    result: Path
    progress: Path
    before: _Limits | None = None  # of the order before, if this one was sent ahead
    began_at: float | None = None  # when it was first seen to train
    since: dict[str, float] = field(default_factory=dict)  # by phase: first seen out of time

    def are_passed(self, now: float) -> bool:
        if now <= self.issued_at + self.seconds:
            return False
        if self.result.exists() or not self.result.parent.exists():
            return False  # what was collected is gone, directory and all
        return self._is_over(now) and not self._finishes(now)

    def may_hand_in(self) -> bool:
        """Whether a worker that was asked to is about it, or may be."""
        if self.before and self.before.may_hand_in():
            return True
        if self.result.exists() or not self.result.parent.exists():
            return False
        now = time.monotonic()
        is_silent = not self._phase()[0]
        first = self.since.setdefault("asked", now)
        return now < first + _SAVE_GRACE_S if is_silent else self._finishes(now)

    def _is_over(self, now: float) -> bool:
        if self.began_at is None and self.progress.exists():
            self.began_at = now
        if self.start_grace_s and self.began_at is not None:
            return now > self.began_at + self.seconds
        return now > self.issued_at + self.seconds + self.start_grace_s

    def _finishes(self, now: float) -> bool:
        """Whether the worker is in a phase that takes no longer than such phases do."""
        if self.before and not self.progress.exists() and not self.before.result.exists():
            return self.before._finishes(now)
        phase, longest_s = self._phase()
        return now < self.since.setdefault(phase, now) + allowance_s(phase, longest_s)

    def _phase(self) -> tuple[str, object]:
        try:
            told = read_json(self.progress)
        except (OSError, ValueError):
            return "", 0.0
        return str(told.get("phase", "")), told.get("longest_s")


def _limits(path: Path, before: _Limits | None = None) -> _Limits:
    order = read_order(path)
    assert order.result and order.progress, "the agent has placed it"
    return _Limits(
        order.issued_at,
        order.seconds + max(_GRACE_S, 0.2 * order.seconds),
        _START_GRACE_S if path.stem == "1" else 0.0,
        order.result,
        order.progress,
        replace(before, before=None) if before else None,
    )


def _reason_to_stop(
    directory: Path, spec: WorkerSpec, lease: Lease, limits: _Limits | None = None
) -> WorkerEnd | None:
    now = time.monotonic()
    if (directory / "stop").exists():
        return WorkerEnd.RELEASED
    if now > lease.renewed_at() + spec.lease_s:
        lease.forget()
        return WorkerEnd.NO_LEASE
    return WorkerEnd.DEADLINE if limits and limits.are_passed(now) else None
