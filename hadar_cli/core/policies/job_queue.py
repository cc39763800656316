"""Who is here and not done, as the jobs of a run come and end."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from hadar_cli.core.arrays import IntArray
from hadar_cli.core.model import Job
from hadar_cli.core.state import JobState, RunState


class JobReader:
    """What a policy may know of jobs, by their numbers. No attribute leads to the state itself."""

    def __init__(self, states: Mapping[int, JobState]) -> None:
        self.job: Callable[[int], Job] = lambda number: states[number].job
        self.remaining: Callable[[int], int] = lambda number: states[number].remaining
        self.priority: Callable[[int], int] = lambda number: states[number].priority
        self.knows: Callable[[int], bool] = lambda number: number in states


class JobQueue:
    """Jobs that have arrived and are not done, in the order of their mix; only to be read."""

    __slots__ = ("_read", "_told", "ids", "job", "knows", "priority", "remaining")

    def __init__(
        self, read: JobReader, ids: IntArray, told: Mapping[int, float] | None = None
    ) -> None:
        self._read = read
        self._told = told  # steps, where they are not what the job will need
        self.ids = ids
        self.ids.flags.writeable = False
        self.job, self.knows, self.priority = read.job, read.knows, read.priority
        self.remaining = read.remaining  # steps of a job that are not committed yet

    @staticmethod
    def of(states: Sequence[JobState]) -> JobQueue:
        by_id = {state.job.id: state for state in states}
        return JobQueue(JobReader(by_id), np.array(list(by_id), dtype=np.int64))

    @staticmethod
    def empty() -> JobQueue:
        return JobQueue.of(())

    def __len__(self) -> int:
        return len(self.ids)

    def done(self, number: int) -> int:
        """Its committed steps, also of a job that has ended."""
        return self.job(number).target_steps - self.remaining(number)

    def told(self, number: int) -> float:
        """Steps that the job will need, as far as anybody knows; 0: nobody does."""
        if self._told is None:
            return float(self.job(number).target_steps)
        return self._told.get(number, 0.0)

    def only(self, numbers: Collection[int]) -> JobQueue:
        """Those of these numbers."""
        kept = [number for number in self.ids.tolist() if number in numbers]
        return JobQueue(self._read, np.array(kept, dtype=np.int64), self._told)

    def misled(self, told: Mapping[int, float]) -> JobQueue:
        """The same jobs with other lengths told; those left out are unknown."""
        return JobQueue(self._read, self.ids, told)


class Arrivals:
    """Everybody of a run; whoever ended is struck off, so that nobody else is looked at."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        jobs = [one.job for one in state.jobs.values()]
        self._row = {job.id: row for row, job in enumerate(jobs)}
        self._ids: IntArray = np.array([job.id for job in jobs], dtype=np.int64)
        self._arrives_s = np.array([job.arrives_s for job in jobs])
        self._arrivals_s = np.sort(self._arrives_s)
        self._is_open = np.ones(len(jobs), dtype=np.bool_)
        self._ended = self._rests = 0  # so many are struck off, or have begun to rest or gone on
        self._holds_until_s = -math.inf
        self._read = JobReader(state.jobs)
        self._queue = JobQueue(self._read, self._ids[:0])

    def at(self, now_s: float) -> JobQueue:
        """Who has come by then and is not done; the same object for as long as that is true."""
        ended, rests = self._state.ended, self._state.rests
        is_old = len(ended) > self._ended or rests != self._rests
        if is_old or now_s >= self._holds_until_s:
            self._is_open[[self._row[job] for job in ended[self._ended :]]] = False
            self._ended, self._rests = len(ended), rests
            arrived = int(np.searchsorted(self._arrivals_s, now_s, side="right"))
            later = self._arrivals_s[arrived:]
            self._holds_until_s = float(later[0]) if len(later) else math.inf
            is_here = self._is_open & (self._arrives_s <= now_s)
            is_here[[self._row[job.job.id] for job in self._state.unwanted]] = False
            self._queue = JobQueue(self._read, self._ids[is_here])
        return self._queue
