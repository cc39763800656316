"""Who is here and not done, as the jobs of a run come and end."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hadar_cli.core.arrays import IntArray
from hadar_cli.core.model import Job
from hadar_cli.core.state import JobState, RunState


@dataclass(frozen=True, slots=True, eq=False)
class JobQueue:
    """Jobs in the order of their mix, to be looked at and not to be touched."""

    _states: Mapping[int, JobState]  # and perhaps of others too
    ids: IntArray
    _told: Mapping[int, float] | None = None  # steps, where they are not what the job will need

    def __post_init__(self) -> None:
        self.ids.flags.writeable = False

    @staticmethod
    def of(states: Sequence[JobState]) -> JobQueue:
        by_id = {state.job.id: state for state in states}
        return JobQueue(by_id, np.array(list(by_id), dtype=np.int64))

    @staticmethod
    def empty() -> JobQueue:
        return JobQueue.of(())

    def __len__(self) -> int:
        return len(self.ids)

    def job(self, number: int) -> Job:
        return self._states[number].job

    def remaining(self, number: int) -> int:
        """Steps of the job that are not committed yet."""
        return self._states[number].remaining

    def done(self, number: int) -> int:
        """Its committed steps, also of a job that has ended."""
        state = self._states[number]
        return state.job.target_steps - state.remaining

    def told(self, number: int) -> float:
        """Steps that the job will need, as far as anybody knows; 0: nobody does."""
        if self._told is None:
            return float(self.job(number).target_steps)
        return self._told.get(number, 0.0)

    def priority(self, number: int) -> int:
        return self._states[number].priority

    def only(self, numbers: Collection[int]) -> JobQueue:
        """Those of these numbers."""
        kept = [number for number in self.ids.tolist() if number in numbers]
        return JobQueue(self._states, np.array(kept, dtype=np.int64))

    def knows(self, number: int) -> bool:
        return number in self._states

    def misled(self, told: Mapping[int, float]) -> JobQueue:
        """The same jobs with other lengths told; those left out are unknown."""
        return JobQueue(self._states, self.ids, told)


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
        self._queue = JobQueue(state.jobs, self._ids[:0])

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
            self._queue = JobQueue(self._state.jobs, self._ids[is_here])
        return self._queue
