"""Streams into an allocation: asked for when first needed, found again by its name, renewed."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from hadar_cli.core.model import Node
from hadar_cli.errors import HadarError
from hadar_cli.nodes.connection import CommandStream, Transport
from hadar_cli.nodes.wire import LinkLostError, NoMoreError, NotYetError, Wire, said
from hadar_cli.slurm import relay
from hadar_cli.slurm.queue import Allocation, Login
from hadar_cli.slurm.request import command_line, job_name, renew_after_s, srun

_PROMPT_S, _LOOK_EVERY_S = 8.0, 0.3
_REQUEUE_S = 15.0
_MOST_STILLBORN = 3  # allocations in a row that ended before anything could be started there
_STILLBORN_PAUSE_S = 300.0  # before another one is asked for then


class SlurmTransport:
    """One node of a run. ``login`` opens streams on the login node, or is this computer."""

    def __init__(self, node: Node, run: str, directory: str, login: Transport) -> None:
        self._login, self._transport = Login(node, login), login
        self._run, self._directory = run, directory
        self._name = job_name(run, node.name)
        self._request = self._login.request
        self._job: Allocation | None = None  # that streams go to
        self._ran: set[str] = set()  # jobs that were seen to run
        self._spent: set[str] = set()  # of these, the ones that we have left
        self._ending: dict[str, float] = {}  # jobs that end by themselves, and since when
        self._asked: list[str] = []  # jobs since the last that could be used
        self._asked_at = 0.0
        self._aborted = threading.Event()

    def open(self, command: str) -> CommandStream:
        self._aborted.clear()
        job = self._job = self._await_start()
        line = command_line(self._request, srun(job.id))
        stream = self._transport.open(f"{line} {command}")
        try:
            stream.write(json.dumps(Path(relay.__file__).read_text()).encode() + b"\n")
            Wire(stream).answer()  # nothing follows before it is asked for
        except LinkLostError as error:
            complaint = said(stream.complaint() or str(error))
            stream.close()
            self._login.queue.changed()
            self._find()  # NotYetError, if the allocation has ended
            raise LinkLostError(f"job {job.id}: {complaint}", fix=self._see(job.id)) from error
        self._asked.clear()
        return stream

    def open_bulk(self, command: str) -> CommandStream | None:
        return None

    def heard_at(self) -> float:
        return 0.0

    def abort(self) -> None:
        self._aborted.set()
        self._transport.abort()

    def close(self) -> None:
        self._transport.close()

    def recalled(self, idle_s: float) -> str:
        return ""  # Slurm tells the allocation itself

    def move_on(self) -> None:
        if self._job:
            self._spent.add(self._job.id)
            self._login.cancel([self._job])

    def give_back(self) -> None:
        self._login.queue.changed()
        self._login.cancel(self._login.named(self._name))

    # -- allocations -----------------------------------------------------------------------------

    def _await_start(self) -> Allocation:
        """Where there is room, an allocation starts within seconds: nothing need be lost for it."""
        deadline = time.monotonic() + _PROMPT_S
        while True:
            try:
                return self._find()
            except NotYetError:
                if time.monotonic() > min(deadline, self._asked_at + _PROMPT_S):
                    raise
                if self._aborted.wait(_LOOK_EVERY_S):
                    raise

    def _find(self) -> Allocation:
        """An allocation that runs; NotYetError while there is none."""
        with self._login.queue.asking:  # nobody else may ask for the same meanwhile
            return self._find_or_ask()

    def _find_or_ask(self) -> Allocation:
        jobs = [job for job in self._login.named(self._name) if self._is_of_use(job)]
        running = [job for job in jobs if job.is_running]
        self._ran.update(job.id for job in running)
        if running:
            # The one in use until it is left: its successor may run already.
            used = [job for job in running if self._job and job.id == self._job.id]
            job = max(used or running, key=_time_left)
            if len(jobs) == 1 and self._request.renew and job.left_s is not None:
                self._ask(renew_after_s(job.left_s))
            return job
        if waiting := self._without_hopeless(jobs):
            if all(job.is_deferred for job in waiting):
                self._let_one_start(waiting)
            raise NotYetError(waiting[-1].in_words())
        if self._job and not self._request.renew:
            raise NoMoreError("its allocation has ended, and renew = false")
        self._give_up_if_stillborn()
        raise NotYetError(f"job {self._ask()} waits in Slurm's queue")

    def _without_hopeless(self, jobs: list[Allocation]) -> list[Allocation]:
        """Those that wait for something."""
        if endless := [job for job in jobs if job.is_endless]:
            self._login.cancel(endless)
            last = endless[-1]
            raise NoMoreError(f"Slurm would never start job {last.id}: {last.waits_for}")
        held = [job for job in jobs if job.is_held]
        self._login.cancel(held)
        return [job for job in jobs if job not in held]

    def _let_one_start(self, jobs: list[Allocation]) -> None:
        """One was to follow another that has ended before its time. What is requeued, Slurm makes
        wait for minutes: until its node is clean."""
        if fresh := [job for job in jobs if job.id not in self._ran]:
            self._login.cancel([job for job in jobs if job not in fresh])
            self._login.hasten(fresh[-1])

    def _is_of_use(self, job: Allocation) -> bool:
        """One that ends may be about to be requeued, and is waited for a while."""
        if job.is_over:
            since = self._ending.setdefault(job.id, time.monotonic())
            return job.id not in self._spent and time.monotonic() < since + _REQUEUE_S
        self._ending.pop(job.id, None)
        return job.id not in self._spent

    def _ask(self, begins_in_s: float = 0.0) -> str:
        job = self._login.submit(self._run, self._directory, begins_in_s)
        self._asked_at = time.monotonic()
        if not begins_in_s:
            self._asked.append(job)
        return job

    def _give_up_if_stillborn(self) -> None:
        """Allocations that end at once would be asked for without end."""
        pause_s = _STILLBORN_PAUSE_S if len(self._asked) >= _MOST_STILLBORN else 0.0
        if time.monotonic() < self._asked_at + pause_s:
            last = self._asked[-1]
            raise LinkLostError(f"its last allocations ended at once: {self._log_of(last)}")

    def _log_of(self, job: str) -> str:
        try:
            stream = self._transport.open(f"tail -n 5 {self._directory}/slurm-{job}.log")
            content = stream.read(1 << 16) or stream.complaint().encode()
            stream.close()
        except HadarError as error:
            return str(error)
        return said(content.decode(errors="replace").strip().replace("\n", " / "))

    def _see(self, job: str) -> str:
        return f"see {self._directory}/slurm-{job}.log, on the login node"


def _time_left(job: Allocation) -> float:
    return float("inf") if job.left_s is None else job.left_s


def give_back_allocations(node: Node, runs: Sequence[str], login: Transport) -> tuple[int, int]:
    """Ends all allocations and requests of these runs; how many there were, and are left."""
    there = Login(node, login)
    names = {job_name(run, node.name) for run in runs}
    try:
        jobs = [job for job in there.queue.jobs(there, 0.0) if job.name in names]
        there.cancel(jobs)
        left = [job for job in there.queue.jobs(there, 0.0) if job.name in names]
    finally:
        login.close()
    return len(jobs), len(left)
