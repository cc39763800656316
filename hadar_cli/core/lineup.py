"""Who is here and not done, as the jobs of a run come and end."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hadar_cli.core.queue import IntArray
from hadar_cli.core.state import JobState, RunState


@dataclass(frozen=True, slots=True, eq=False)
class Lineup:
    """Jobs in the order of their mix: ``ids`` says which, ``states`` may hold others too."""

    states: Mapping[int, JobState]
    ids: IntArray

    @staticmethod
    def of(states: Sequence[JobState]) -> Lineup:
        by_id = {state.job.id: state for state in states}
        return Lineup(by_id, np.array(list(by_id), dtype=np.int64))

    @staticmethod
    def empty() -> Lineup:
        return Lineup.of(())

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[JobState]:
        return map(self.states.__getitem__, self.ids.tolist())


class Roster:
    """Everybody of a run; whoever ended is struck off, so that nobody else is looked at."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        jobs = [one.job for one in state.jobs.values()]
        self._row = {job.id: row for row, job in enumerate(jobs)}
        self._ids: IntArray = np.array([job.id for job in jobs], dtype=np.int64)
        self._arrives_s = np.array([job.arrives_s for job in jobs])
        self._arrivals_s = np.sort(self._arrives_s)
        self._is_open = np.ones(len(jobs), dtype=np.bool_)
        self._ended = 0  # so many are struck off
        self._holds_until_s = -math.inf
        self._lineup = Lineup(state.jobs, self._ids[:0])

    def at(self, now_s: float) -> Lineup:
        """Who has come by then and is not done; the same object for as long as that is true."""
        ended = self._state.ended
        if len(ended) > self._ended or now_s >= self._holds_until_s:
            self._is_open[[self._row[job] for job in ended[self._ended :]]] = False
            self._ended = len(ended)
            arrived = int(np.searchsorted(self._arrivals_s, now_s, side="right"))
            later = self._arrivals_s[arrived:]
            self._holds_until_s = float(later[0]) if len(later) else math.inf
            is_here = self._is_open & (self._arrives_s <= now_s)
            self._lineup = Lineup(self._state.jobs, self._ids[is_here])
        return self._lineup
