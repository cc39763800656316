"""How long jobs will be: as told, mended by how those turned out that were told and have ended.

A job that has done x times what it was told to need goes on for as long as ended jobs went on from
there (the mean residual life); jobs not done yet count as censored, by Kaplan and Meier. As long
as everybody needs what was told, that is believed. Whoever may end late is judged by the bad case,
not by the mean: a long job that was taken for a short one and began late would set the end of all.

Where nothing was told, x is device-seconds where they are fastest, in place of a share, and jobs of
the same script tell about one another first: those that nobody has seen the end of would be taken
for as short as all others, until it is too late for them. Of everybody else a kind hears as much as
half a job would tell (a beta process; Hjort, 1990). In the bad case a job is the longest of its
kind: of n that have ended and came as far as m at the most, m (1 + 1/n) is expected.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hadar_cli.core.arrays import BoolArray, FloatArray, IntArray

UNLUCKY = 0.02  # so many jobs last even longer than in the bad case
OTHERS = 0.5  # jobs of its own weigh as much for a kind as all others do
DOUBTS = (0.7, 1.0, 1.5, 2.0)  # lengths over those told, once one turned out to be wrong


class Lengths:
    """What the jobs met so far tell about the lengths of those that go on."""

    def __init__(self) -> None:
        self._told = _Ended([*DOUBTS], [0] * len(DOUBTS))
        self._untold = _Ended([], [])
        self._are_true = True  # all that was told

    def note(self, told: float, done: float, speed: float, kind: int) -> None:
        """A job has ended."""
        if told > 0:
            self._told.note(done / told, kind)
            self._are_true = self._are_true and done == told
        elif speed > 0:
            self._untold.note(done / speed, kind)

    def remaining(
        self,
        told: FloatArray,
        done: FloatArray,
        kinds: IntArray,
        speed: Callable[[], FloatArray],
    ) -> tuple[FloatArray, FloatArray]:
        """Steps that jobs still need, and that they need in a bad case.

        ``speed`` is the steps of one device per second where each job is fastest, ``kinds`` says
        which are of the same script.
        """
        if self._are_true and (told > done).all():
            return told - done, told - done
        is_told = told > 0
        unit = told if is_told.all() else np.where(is_told, told, speed())
        unit = np.maximum(unit, 1e-300)
        x, mean, most = done / unit, np.empty(len(done)), np.empty(len(done))
        if is_told.any():
            rows = np.flatnonzero(is_told)
            mean[rows], most[rows] = self._told.with_those(x[rows], kinds[rows]).expected(x[rows])
        if len(rows := np.flatnonzero(~is_told)):
            seen = self._untold.with_those(x[rows], kinds[rows])
            for kind in np.unique(kinds[rows]).tolist():
                mine = rows[kinds[rows] == kind]
                mean[mine], most[mine] = seen.expected_of(kind, x[mine])
        left, left_at_most = (np.maximum(length * unit - done, 1.0) for length in (mean, most))
        return left, left_at_most


class _Ended:
    """Jobs that have ended, whose lengths were told, or were not."""

    def __init__(self, lengths: list[float], kinds: list[int]) -> None:
        self._lengths, self._kinds = lengths, kinds

    def note(self, x: float, kind: int) -> None:
        self._lengths.append(x)
        self._kinds.append(kind)

    def with_those(self, done: FloatArray, kinds: IntArray) -> _Seen:
        """Beside jobs that have come so far and not ended."""
        goes_on = done > 0
        x = np.concatenate([np.array(self._lengths), done[goes_on]])
        kind = np.concatenate([np.array(self._kinds, dtype=np.int64), kinds[goes_on]])
        is_end: BoolArray = np.arange(len(x)) < len(self._lengths)
        order = np.lexsort((~is_end, x))
        return _Seen(x[order], is_end[order], kind[order])


@dataclass(frozen=True, slots=True)
class _Seen:
    """Jobs by how far they have come, in ascending order, and which of them ended there."""

    x: FloatArray
    is_end: BoolArray
    kind: IntArray

    def expected(self, done: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The whole length of jobs that have come so far and not ended: its mean, and at worst."""
        return self._beyond(done, self._hazard())

    def expected_of(self, kind: int, done: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The same, of one kind."""
        mine = self.kind == kind
        if not mine.any():
            return self.expected(done)
        ended = self.is_end & mine
        still_there = np.cumsum(mine[::-1])[::-1]
        hazard = (OTHERS * self._hazard() + ended) / (OTHERS + still_there)
        mean, most = self._beyond(done, hazard)
        longest = float(self.x[mine][-1]) * (1 + 1 / max(1, int(ended.sum())))
        return mean, np.maximum(most, longest)

    def _hazard(self) -> FloatArray:
        """The chance to end there of whoever comes so far."""
        return self.is_end / np.arange(len(self.x), 0, -1)

    def _beyond(self, done: FloatArray, hazard: FloatArray) -> tuple[FloatArray, FloatArray]:
        known, weight = self._survivors(hazard)
        # Sums over all that lasted longer than each of these jobs.
        beyond = np.searchsorted(known, done, side="right")
        alive = np.append(np.cumsum(weight[::-1])[::-1], 0.0)
        mass = alive[beyond]
        total = np.append(np.cumsum((weight * known)[::-1])[::-1], 0.0)[beyond]
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = np.where(mass > 1e-12, total / mass, 2.0 * done)
        worst = len(alive) - np.searchsorted(alive[::-1], UNLUCKY * mass, side="right")
        most = np.append(known, 0.0)[np.minimum(worst, len(known))]
        return np.maximum(mean, done), np.maximum(most, np.maximum(mean, done))

    def _survivors(self, hazard: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Lengths in ascending order, and the probability of each.

        What is left over belongs to those that have gone on for longest: as much again.
        """
        if not len(self.x):
            return self.x, self.x
        alive = np.cumprod(1 - hazard)
        weight, rest = np.append(1.0, alive[:-1]) * hazard, float(alive[-1])
        if rest <= 1e-12:
            return self.x, weight
        return np.append(self.x, 2 * self.x[-1]), np.append(weight, rest)
