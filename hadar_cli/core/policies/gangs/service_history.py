"""What a scheduler of gangs remembers of every job, in columns of numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from math import exp
from typing import Any

import numpy as np

from hadar_cli.core.arrays import FloatArray, IntArray, RowIndex
from hadar_cli.core.estimates.gangs import PROPORTIONAL
from hadar_cli.core.policies.gangs.cluster_devices import Placement
from hadar_cli.core.policies.gangs.lengths import Lengths
from hadar_cli.core.policies.gangs.queue import Allocation
from hadar_cli.core.policies.job_queue import JobQueue

# What has gone on for a time goes on for x times as long again with a chance of 1 / (1 + x): five
# times of six for a fifth. Counting on more, long jobs begin too late whenever it ends sooner.
AT_LEAST = 0.2


class ServiceHistory:
    """Every job met so far in columns of numbers, and what it has had of the cluster."""

    def __init__(self) -> None:
        self._ids = self._gang = np.zeros(0, dtype=np.int64)
        self._index = RowIndex(self._ids)
        self._elastic = self._proportional = np.zeros(0, dtype=np.bool_)
        self._target = self._told = self._arrived_s = self._attained_s = np.zeros(0)
        self._speed = np.zeros(0)  # of one device where each is fastest, once asked for
        self._scripts: dict[str, int] = {}
        self._script = np.zeros(0, dtype=np.int64)  # of each job
        self._lengths = Lengths()
        self._remaining = np.zeros(0)  # steps not committed when last looked at
        self._watched: set[int] = set()  # jobs that may have come further since
        self._served_until_s = 0.0
        self._first_s = self._last_s = 0.0  # arrivals
        self._times = 0  # at which somebody arrived, after the first
        self._kinds: list[str] = []
        self._rounds = np.zeros((0, 0))  # jobs × kinds
        self._queue = JobQueue.of(())
        self._rows: IntArray = np.zeros(0, dtype=np.int64)  # of the queue's jobs

    @property
    def met(self) -> int:
        """Jobs that have come so far; 0 if all came at once."""
        return len(self._ids) if self._times else 0

    def rows(self, queue: JobQueue) -> IntArray:
        """Where the jobs of this queue are, which is mostly the last one itself."""
        if queue is not self._queue:
            self._note_ends(queue)
            rows = self._index.rows(queue.ids)
            if len(rows) and rows.min() < 0:
                self._enter(queue, queue.ids[rows < 0].tolist())
                rows = self._index.rows(queue.ids)
            self._queue, self._rows = queue, rows
        return self._rows

    def _enter(self, queue: JobQueue, new: Sequence[int]) -> None:
        jobs, nothing = [queue.job(number) for number in new], np.zeros(len(new))
        self._note_arrivals(sorted({job.arrives_s for job in jobs}))
        self._ids = np.append(self._ids, [job.id for job in jobs])
        self._index = RowIndex(self._ids)
        self._gang = np.append(self._gang, [job.gpus for job in jobs])
        self._elastic = np.append(self._elastic, [job.elastic for job in jobs])
        are_shared = [job.shares == PROPORTIONAL for job in jobs]
        self._proportional = np.append(self._proportional, are_shared)
        self._target = np.append(self._target, [float(job.target_steps) for job in jobs])
        self._told = np.append(self._told, [queue.told(number) for number in new])
        self._speed = np.append(self._speed, nothing)
        scripts = [self._scripts.setdefault(job.trains, len(self._scripts)) for job in jobs]
        self._script = np.append(self._script, scripts)
        left = [float(queue.remaining(number)) for number in new]
        self._remaining = np.append(self._remaining, left)
        self._arrived_s = np.append(self._arrived_s, [job.arrives_s for job in jobs])
        self._attained_s = np.append(self._attained_s, nothing)
        self._rounds = np.pad(self._rounds, ((0, len(jobs)), (0, 0)))

    def _note_arrivals(self, times: Sequence[float]) -> None:
        if not len(self._ids):
            self._first_s = self._last_s = times[0]
        self._times += sum(1 for t in times if t > self._last_s)
        self._last_s = max(self._last_s, times[-1])

    def _note_ends(self, queue: JobQueue) -> None:
        """Those who were in the last queue and are not in this one."""
        for job in np.setdiff1d(self._queue.ids, queue.ids, assume_unique=True).tolist():
            if queue.knows(job):
                row = self._index.rows_of([job])[0]
                done, speed = queue.done(job), self._speed[row]
                self._lengths.note(self._told[row], done, speed, self._script[row])

    def arrivals_s(self, now_s: float) -> float:
        """How much longer jobs will come at least, it seems, by how long they have come so far.

        The longer nobody has come, in usual gaps between two, the less likely that is. A batch
        that was all there from the beginning expects nobody.
        """
        since_s = self._last_s - self._first_s
        if not self._times:
            return 0.0
        return AT_LEAST * since_s * exp(-max(0.0, now_s - self._last_s) * self._times / since_s)

    def columns(self, queue: JobQueue) -> dict[str, Callable[[], Any]]:
        """What never changes of a job."""
        names = ("gang", "elastic", "proportional", "arrived_s")
        return {name: partial(self._of, queue, name) for name in names}

    def _of(self, queue: JobQueue, name: str) -> Any:
        rows = self.rows(queue)  # may bring new ones
        return getattr(self, f"_{name}")[rows]

    def watch(self, *groups: Iterable[int]) -> None:
        """These jobs run or will: what they have left may be another number the next time."""
        self._watched.update(*groups)

    def done(self, queue: JobQueue, progress: Mapping[int, int]) -> FloatArray:
        """Steps of each job, whether or not they have been committed."""
        rows, watched = self.rows(queue), [job for job in self._watched if queue.knows(job)]
        left_now = [queue.remaining(job) for job in watched]
        self._remaining[self._index.rows_of(watched)] = left_now
        self._watched.intersection_update(progress)  # who does not run comes no further
        steps = self._remaining.copy()
        steps[self._index.rows_of(progress)] -= list(progress.values())
        done: FloatArray = (self._target - steps)[rows]
        return done

    def remaining(
        self, queue: JobQueue, done: FloatArray, speed: Callable[[], FloatArray]
    ) -> tuple[FloatArray, FloatArray]:
        """Steps that each still needs, as expected and in a bad case."""
        rows = self.rows(queue)

        def speeds() -> FloatArray:
            self._speed[rows] = found = speed()
            return found

        return self._lengths.remaining(self._told[rows], done, self._script[rows], speeds)

    def serve(self, now_s: float, gangs: Placement) -> None:
        """Those who run now did so since the last time; nobody is moved in between."""
        elapsed_s, self._served_until_s = now_s - self._served_until_s, now_s
        sizes = np.fromiter(map(len, gangs.values()), np.float64, len(gangs))
        self._attained_s[self._index.rows_of(gangs)] += elapsed_s * sizes

    def attained_s(self, queue: JobQueue) -> FloatArray:
        attained: FloatArray = self._of(queue, "attained_s")
        return attained

    def count_rounds(
        self, allocations: Mapping[int, Allocation], kinds: Sequence[str], times: int
    ) -> None:
        if times and allocations:
            rows, columns = self._index.rows_of(allocations), self._columns(kinds)
            counts = np.array(list(allocations.values()))
            self._rounds[rows[:, None], columns] += times * (counts > 0)

    def rounds_on(self, queue: JobQueue, kinds: Sequence[str]) -> FloatArray:
        rows, columns = self.rows(queue), self._columns(kinds)
        return self._rounds[rows[:, None], columns]

    def _columns(self, kinds: Sequence[str]) -> list[int]:
        if new := [kind for kind in kinds if kind not in self._kinds]:
            self._kinds += new
            self._rounds = np.pad(self._rounds, ((0, 0), (0, len(new))))
        return [self._kinds.index(kind) for kind in kinds]
