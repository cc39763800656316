"""How long jobs will be: as told, mended by how those turned out that were told and have ended.

A job that has done x times what it was told to need goes on for as long as ended jobs went on from
there (the mean residual life); jobs not done yet count as censored, by Kaplan and Meier. As long
as everybody needs what was told, that is believed. Where nothing was told, x is seconds of training
on the fastest devices in place of a share, and a job that has gone on for longer than any before is
expected to need as much again. Whoever may end late is judged by the bad case, not by the mean: a
long job that was taken for a short one and began late would set the end of all.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from hadar_cli.core.arrays import BoolArray, FloatArray

UNLUCKY = 0.02  # so many jobs last even longer than in the bad case
DOUBTS = (0.7, 1.0, 1.5, 2.0)  # lengths over those told, once one turned out to be wrong


class Lengths:
    """What the jobs met so far tell about the lengths of those that go on."""

    def __init__(self) -> None:
        self._told = _Population([*DOUBTS])
        self._untold = _Population([])
        self._are_true = True  # all that was told

    def note(self, told: float, done: float, speed: float) -> None:
        """A job has ended."""
        if told > 0:
            self._told.note(done / told)
            self._are_true = self._are_true and done == told
        elif speed > 0:
            self._untold.note(done / speed)

    def remaining(
        self, told: FloatArray, done: FloatArray, speed: Callable[[], FloatArray]
    ) -> tuple[FloatArray, FloatArray]:
        """Steps that jobs still need, and that they need in a bad case.

        ``speed`` is their steps per second where they are fastest.
        """
        if self._are_true and (told > done).all():
            return told - done, told - done
        is_told = told > 0
        unit = told if is_told.all() else np.where(is_told, told, speed())
        unit = np.maximum(unit, 1e-300)
        x, mean, most = done / unit, np.empty(len(done)), np.empty(len(done))
        for rows, population in ((is_told, self._told), (~is_told, self._untold)):
            if rows.any():
                mean[rows], most[rows] = population.expected(x[rows])
        left, left_at_most = (np.maximum(length * unit - done, 1.0) for length in (mean, most))
        return left, left_at_most


class _Population:
    """Jobs whose lengths are told, or are not."""

    def __init__(self, ended: list[float]) -> None:
        self._ended = ended

    def note(self, x: float) -> None:
        self._ended.append(x)

    def expected(self, done: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The whole length of jobs that have come so far and not ended: its mean, and at worst."""
        known, weight = _survivors(np.array(self._ended), done)
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


def _survivors(ended: FloatArray, going: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Lengths in ascending order, and the probability of each, by Kaplan and Meier.

    What is left over belongs to those that have gone on for longest: as much again.
    """
    going = going[going > 0]
    x = np.concatenate([ended, going])
    if not len(x):
        return x, x
    is_end: BoolArray = np.arange(len(x)) < len(ended)
    order = np.lexsort((~is_end, x))
    x, is_end = x[order], is_end[order]
    at_risk = np.arange(len(x), 0, -1)
    alive = np.cumprod(np.where(is_end, 1 - 1 / at_risk, 1.0))
    weight = np.where(is_end, np.append(1.0, alive[:-1]) / at_risk, 0.0)
    rest = float(alive[-1])
    if rest > 1e-12:
        x, weight = np.append(x, 2 * x[-1]), np.append(weight, rest)
    return x, weight
