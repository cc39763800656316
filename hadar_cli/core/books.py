"""What a scheduler of gangs remembers of every job, in columns of numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from hadar_cli.core.lineup import Lineup
from hadar_cli.core.queue import Allocation, FloatArray, IntArray
from hadar_cli.core.row_index import RowIndex
from hadar_cli.core.site import Placement
from hadar_cli.core.state import JobState


class Books:
    """Every job met so far in columns of numbers, and what it has had of the cluster."""

    def __init__(self) -> None:
        self._ids = self._gang = np.zeros(0, dtype=np.int64)
        self._index = RowIndex(self._ids)
        self._elastic = np.zeros(0, dtype=np.bool_)
        self._target = self._arrived_s = self._attained_s = np.zeros(0)
        self._remaining = np.zeros(0)  # steps not committed when last looked at
        self._watched: set[int] = set()  # jobs that may have come further since
        self._served_until_s = 0.0
        self._kinds: list[str] = []
        self._rounds = np.zeros((0, 0))  # jobs × kinds
        self._queue = Lineup.of(())
        self._rows: IntArray = np.zeros(0, dtype=np.int64)  # of the queue's jobs

    def rows(self, queue: Lineup) -> IntArray:
        """Where the jobs of this queue are, which is mostly the last one itself."""
        if queue is not self._queue:
            rows = self._index.rows(queue.ids)
            if len(rows) and rows.min() < 0:
                self._enter([queue.states[job] for job in queue.ids[rows < 0].tolist()])
                rows = self._index.rows(queue.ids)
            self._queue, self._rows = queue, rows
        return self._rows

    def _enter(self, states: Sequence[JobState]) -> None:
        jobs, nothing = [state.job for state in states], np.zeros(len(states))
        self._ids = np.append(self._ids, [job.id for job in jobs])
        self._index = RowIndex(self._ids)
        self._gang = np.append(self._gang, [job.gpus for job in jobs])
        self._elastic = np.append(self._elastic, [job.elastic for job in jobs])
        self._target = np.append(self._target, [float(job.target_steps) for job in jobs])
        self._remaining = np.append(self._remaining, [float(state.remaining) for state in states])
        self._arrived_s = np.append(self._arrived_s, [job.arrives_s for job in jobs])
        self._attained_s = np.append(self._attained_s, nothing)
        self._rounds = np.pad(self._rounds, ((0, len(jobs)), (0, 0)))

    def columns(self, queue: Lineup) -> dict[str, Callable[[], Any]]:
        """What never changes of a job."""
        names = ("gang", "elastic", "target", "arrived_s")
        return {name: partial(self._of, queue, name) for name in names}

    def _of(self, queue: Lineup, name: str) -> Any:
        rows = self.rows(queue)  # may bring new ones
        return getattr(self, f"_{name}")[rows]

    def watch(self, *groups: Iterable[int]) -> None:
        """These jobs run or will: what they have left may be another number the next time."""
        self._watched.update(*groups)

    def remaining(self, queue: Lineup, progress: Mapping[int, int]) -> FloatArray:
        """Steps that are not done, whether or not those that are have been committed."""
        rows, watched = self.rows(queue), self._watched & queue.states.keys()
        left_now = [queue.states[job].remaining for job in watched]
        self._remaining[self._index.rows_of(watched)] = left_now
        self._watched.intersection_update(progress)  # who does not run comes no further
        steps = self._remaining.copy()
        steps[self._index.rows_of(progress)] -= list(progress.values())
        left: FloatArray = steps[rows]
        return left

    def serve(self, now_s: float, gangs: Placement) -> None:
        """Those who run now did so since the last time; nobody is moved in between."""
        elapsed_s, self._served_until_s = now_s - self._served_until_s, now_s
        sizes = np.fromiter(map(len, gangs.values()), np.float64, len(gangs))
        self._attained_s[self._index.rows_of(gangs)] += elapsed_s * sizes

    def attained_s(self, queue: Lineup) -> FloatArray:
        attained: FloatArray = self._of(queue, "attained_s")
        return attained

    def count_rounds(
        self, allocations: Mapping[int, Allocation], kinds: Sequence[str], times: int
    ) -> None:
        if times and allocations:
            rows, columns = self._index.rows_of(allocations), self._columns(kinds)
            counts = np.array(list(allocations.values()))
            self._rounds[rows[:, None], columns] += times * (counts > 0)

    def rounds_on(self, queue: Lineup, kinds: Sequence[str]) -> FloatArray:
        rows, columns = self.rows(queue), self._columns(kinds)
        return self._rounds[rows[:, None], columns]

    def _columns(self, kinds: Sequence[str]) -> list[int]:
        if new := [kind for kind in kinds if kind not in self._kinds]:
            self._kinds += new
            self._rounds = np.pad(self._rounds, ((0, 0), (0, len(new))))
        return [self._kinds.index(kind) for kind in kinds]
