"""Slurm's queue as its commands on the login node tell of it."""

from __future__ import annotations

import re
import shlex
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hadar_cli.core.model import LOCAL, Node
from hadar_cli.core.slurm import SlurmRequest, seconds_of
from hadar_cli.errors import InputError
from hadar_cli.nodes.connection import Transport, answer_of
from hadar_cli.nodes.wire import LinkLostError, NotYetError, said
from hadar_cli.slurm.limits import (
    NODES,
    PARTITIONS,
    is_endless,
    partitions_of,
    what_would_do,
    why_never,
)
from hadar_cli.slurm.request import SQUEUE, command_line, sbatch, test_request, wanted

_ANSWER_S = 60.0
_SOON_S, _SELDOM_S = 1.0, 20.0  # between looks at the queue: right after a change, and later
_CANCELLED_S = 90.0  # for jobs that were cancelled to be gone
_POLL_S = 0.3  # meanwhile
_OVERLAPS = (20, 11)  # the version that brought `srun --overlap`
_VERSION = re.compile(r"\bslurm\D* (\d+)\.(\d+)")
_NO_SLURM = ("not found", "No such file", "configuration source")
_NEVER = ("Invalid", "not available", "not permitted", "not supported")  # in sbatch's complaints
_OVER = ("COMPLETING", "CANCELLED", "COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED")


@dataclass(frozen=True, slots=True)
class Allocation:
    """One job of ours in the queue: what it has, or waits for."""

    id: str
    state: str
    left_s: float | None  # of its time; None: no end
    host: str
    starts: str
    waits_for: str
    name: str

    @property
    def is_running(self) -> bool:
        return self.state == "RUNNING"

    @property
    def is_over(self) -> bool:
        """Its processes are gone or going."""
        return self.state in _OVER

    @property
    def is_deferred(self) -> bool:
        return self.state == "PENDING" and self.waits_for == "BeginTime"

    @property
    def is_held(self) -> bool:
        """Slurm could not start it on its node, and will not try again by itself."""
        is_held = "launch failed" in self.waits_for or self.waits_for == "JobHoldMaxRequeue"
        return self.state == "PENDING" and is_held

    @property
    def is_endless(self) -> bool:
        """It waits for what will never come."""
        return self.state == "PENDING" and is_endless(self.waits_for)

    def in_words(self) -> str:
        why = "" if self.waits_for in ("None", "") else f": {self.waits_for}"
        when = "" if self.starts in ("N/A", "") else f"; Slurm expects it to start at {self.starts}"
        return f"job {self.id} waits in Slurm's queue{why}{when}"


class Queue:
    """The user's jobs on one cluster. All nodes of a process look at the same list, which is asked
    for the more rarely the longer nothing has changed: the controller is everybody's."""

    def __init__(self) -> None:
        self.asking = threading.Lock()  # held by who looks whether there is anything to ask for
        self._lock = threading.Lock()
        self._jobs: tuple[Allocation, ...] = ()
        self._asked_at, self._every_s = 0.0, _SOON_S

    def jobs(self, login: Login, every_s: float | None = None) -> tuple[Allocation, ...]:
        """As they were ``every_s`` ago at the most, if that is given."""
        with self._lock:
            age_s = time.monotonic() - self._asked_at
            if not self._asked_at or age_s >= (self._every_s if every_s is None else every_s):
                found = tuple(_read(login.ask(*SQUEUE)))
                is_same = [(j.id, j.state) for j in found] == [(j.id, j.state) for j in self._jobs]
                self._every_s = min(1.3 * self._every_s, _SELDOM_S) if is_same else _SOON_S
                self._jobs, self._asked_at = found, time.monotonic()
            return self._jobs

    def changed(self) -> None:
        """Something was asked for or has ended: the list is old."""
        with self._lock:
            self._asked_at, self._every_s = 0.0, _SOON_S


_QUEUES: dict[tuple[str | int | None, ...], Queue] = {}


class Login:
    """The way to the login node, and what is asked there."""

    def __init__(self, node: Node, transport: Transport) -> None:
        assert node.slurm
        self.node, self.transport, self.request = node, transport, node.slurm
        key = (node.host, node.port, node.user, node.slurm.conf)
        self.queue = _QUEUES.setdefault(key, Queue())

    def ask(self, *words: str) -> str:
        """What a command of Slurm's says; NotYetError, with its complaint, if it says nothing."""
        output, complaint = self._run(self.request, words)
        if not output:
            raise NotYetError(f"Slurm's {words[0]} does not answer: {said(complaint)}")
        return output

    def named(self, name: str, every_s: float | None = None) -> list[Allocation]:
        """Its jobs, the newest last."""
        jobs = (job for job in self.queue.jobs(self, every_s) if job.name == name)
        return sorted(jobs, key=lambda job: (len(job.id), job.id))

    def submit(self, run: str, directory: str, begins_in_s: float = 0.0) -> str:
        """Asks for an allocation; the number of the job."""
        words = sbatch(self.node, run, directory, begins_in_s)
        output, complaint = self._run(self.request, words)
        self.queue.changed()
        told = output.strip().rpartition("\n")[2].partition(";")[0]  # behind it, the cluster's name
        if told.isdigit():
            return told
        will_not_do = any(words in complaint for words in _NEVER)
        kind = LinkLostError if will_not_do else NotYetError
        raise kind(f"Slurm does not take the request: {said(complaint)}")

    def hasten(self, job: Allocation) -> None:
        """It may start now, whatever was said when it was asked for."""
        self._run(self.request, ["scontrol", "update", f"jobid={job.id}", "starttime=now"])
        self.queue.changed()

    def cancel(self, jobs: Sequence[Allocation]) -> None:
        """Returns when they are gone from the queue."""
        if not jobs:
            return
        self._run(self.request, ["scancel", *(job.id for job in jobs)])
        ids, deadline = {job.id for job in jobs}, time.monotonic() + _CANCELLED_S
        self.queue.changed()
        while ids & {job.id for job in self.queue.jobs(self, _POLL_S)}:
            if time.monotonic() > deadline:
                left = ", ".join(sorted(ids))
                raise LinkLostError(f"Slurm does not end job {left}", fix=f"scancel {left}")
            time.sleep(_POLL_S)

    def check(self) -> str:
        """When Slurm would start the request; InputError with its words if it never would."""
        self._require_overlap()
        output, complaint = self._run(self.request, test_request(self.node))
        told = said((output + complaint).strip())
        words = shlex.join(wanted(self.request))
        if " to start at " not in told:
            problem = f"Slurm {self._where} refuses `sbatch {words}`: {told}"
            raise InputError(problem, field=f"node {self.node.name}", fix=self._fix_for(told))
        table, _ = self._run(self.request, PARTITIONS)
        if never := why_never(self.request, partitions_of(table)):
            problem = f"Slurm {self._where} would never start `sbatch {words}`: {said(never)}"
            fix = "mend it: `scontrol show partition` shows limits"
            raise InputError(problem, field=f"node {self.node.name}", fix=fix)
        return told.partition(" to start at ")[2]

    def _require_overlap(self) -> None:
        """Where its version is told, and too old, streams would fail once the allocation runs."""
        try:
            told, _ = self._run(self.request, ("srun", "--version"))
        except LinkLostError as error:
            problem = f"the way to Slurm {self._where}: {error}"
            fix = error.fix or f"see whether `ssh {self.node.host}` lets you in"
            raise InputError(problem, field=f"node {self.node.name}", fix=fix) from error
        found = _VERSION.search(told)
        if found and (int(found[1]), int(found[2])) < _OVERLAPS:
            version = said(told.strip())
            problem = f"Slurm {self._where} is {version}, which cannot join an allocation"
            fix = "hadar needs 20.11 or newer; or list what `salloc` gives you, as machines by SSH"
            raise InputError(problem, field=f"node {self.node.name}", fix=fix)

    @property
    def _where(self) -> str:
        return "here" if self.node.host == LOCAL else f"on {self.node.host}"

    def _fix_for(self, complaint: str) -> str:
        if any(words in complaint for words in _NO_SLURM):
            return (
                f"is Slurm {self._where}? Run hadar on a login node, or name one: host; or say "
                "where its commands (slurm.bin) and its slurm.conf (slurm.conf) are"
            )
        table, _ = self._run(self.request, NODES)
        return said(what_would_do(complaint, self.request, table))

    def _run(self, request: SlurmRequest, words: Sequence[str]) -> tuple[str, str]:
        return answer_of(self.transport, command_line(request, words), _ANSWER_S)


def _read(table: str) -> Iterator[Allocation]:
    """The header stands in the first line that has as many cells; a login may greet before it."""
    is_below = False
    for line in table.splitlines():
        cells = line.split("|", 6)
        if len(cells) == 7 and is_below:
            job, state, left, host, starts, waits_for, name = cells
            yield Allocation(job, state, seconds_of(left), host, starts, said(waits_for), name)
        is_below |= cells[0] == "JOBID"
