"""How fast a job trains on a device: the formula at first, measurements as they come.

Measurements mend the formula, also for pairs not yet seen. With every job of the table that it
was fitted to called modest and M, the median factor on the unseen GPUs falls from 3.3 to 1.6 once
each job has run on one GPU, and to 1.35 after two.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hadar_cli.core.formula import device_factor, job_factor
from hadar_cli.core.model import Device, Job
from hadar_cli.core.queue import IntArray

Matrix = NDArray[np.float64]

# Share of a measurement's weight that is left after the next one of the same class and device.
MEMORY = 0.5

# Typical error, in ln units, of a rate measured in one round, and of the formula by its causes.
NOISE = 0.05
CLASS_ERROR = math.log(3)
KIND_ERROR = math.log(1.5)
DEVICE_ERROR = math.log(1.05)
INTERACTION_ERROR = math.log(1.3)

# Steps or seconds beyond these say that a clock or a script is broken.
_LEAST, _MOST = 1e-9, 1e15


class Rates(Protocol):
    """What a scheduler knows of speeds."""

    def rate(self, job_id: int, device_name: str) -> float:
        """Steps per second of a job on a single device."""
        ...

    def matrix(self, job_ids: Sequence[int], device_names: Sequence[str]) -> Matrix:
        """``rate`` of these jobs (rows) on these devices (columns)."""
        ...

    def by_kind(
        self, job_ids: IntArray, kinds: Sequence[str], devices: Sequence[Device]
    ) -> tuple[Matrix, Matrix | None]:
        """Jobs × kinds, for one device of a gang: consolidated, and spread over more nodes."""
        ...

    def observe(self, job_id: int, device_name: str, steps: float, seconds: float) -> None:
        """Take in ``steps`` done in ``seconds`` of training."""
        ...


class RateModel:
    """Steps per second of every job on every device: measured where seen, else the best guess.

    Jobs of one ``throughput_class`` share their measurements. Of what the formula misses, part is
    the class's (it is right or wrong about a model everywhere), part the kind of device's, the
    single device's, or the pair's; each is inferred from all measurements so far, shrunk to the
    formula by how far off it typically is. ``observe`` is the only method that changes anything.
    """

    def __init__(self, jobs: Sequence[Job], devices: Sequence[Device]) -> None:
        examples = {job.throughput_class: job for job in jobs}
        rows = {name: row for row, name in enumerate(examples)}
        self._row = {job.id: rows[job.throughput_class] for job in jobs}
        self._column = {device.name: column for column, device in enumerate(devices)}
        job_factors = [
            job_factor(job.batch_size, job.model_size, job.dataset_size, job.launch.preset)
            for job in examples.values()
        ]
        device_factors = [device_factor(device.gpu, device.emulated_speed) for device in devices]
        self._estimates: Matrix = np.outer(job_factors, device_factors)
        self._kinds = _indicator([(device.gpu, device.emulated_speed) for device in devices])
        self._steps: Matrix = np.zeros_like(self._estimates)
        self._seconds: Matrix = np.zeros_like(self._estimates)
        self._rates: Matrix | None = self._estimates

    def observe(self, job_id: int, device_name: str, steps: float, seconds: float) -> None:
        """Take in ``steps`` done in ``seconds`` of training; no steps tell nothing."""
        if not (_LEAST < steps < _MOST and _LEAST < seconds < _MOST):
            return
        # Old steps and seconds fade alike: the mean time of a step, weighted by steps.
        cell = self._row[job_id], self._column[device_name]
        self._steps[cell] = MEMORY * self._steps[cell] + steps
        self._seconds[cell] = MEMORY * self._seconds[cell] + seconds
        self._rates = None

    def rate(self, job_id: int, device_name: str) -> float:
        """The best knowledge of the job's steps per second on the device."""
        return float(self._current()[self._row[job_id], self._column[device_name]])

    def matrix(self, job_ids: Sequence[int], device_names: Sequence[str] | None = None) -> Matrix:
        """``rate`` of these jobs (rows) on these devices, or on all in the order given."""
        rates = self._current()[[self._row[job_id] for job_id in job_ids]]
        if device_names is None:
            return rates
        return rates[:, [self._column[name] for name in device_names]]

    def by_kind(
        self, job_ids: IntArray, kinds: Sequence[str], devices: Sequence[Device]
    ) -> tuple[Matrix, None]:
        """The mean over the devices of each kind; nothing is known of spread gangs."""
        columns = [[self._column[d.name] for d in devices if d.kind == kind] for kind in kinds]
        rates = self.matrix(job_ids.tolist())
        return np.stack([rates[:, c].mean(axis=1) for c in columns], axis=1), None

    def estimated(self, job_id: int, device_name: str) -> float:
        """What the formula said."""
        return float(self._estimates[self._row[job_id], self._column[device_name]])

    def measured(self, job_id: int, device_name: str) -> float | None:
        """The mean of what was observed, None before that."""
        cell = self._row[job_id], self._column[device_name]
        return float(self._steps[cell] / self._seconds[cell]) if self._seconds[cell] else None

    def _current(self) -> Matrix:
        if self._rates is None:
            self._rates = self._infer()
        return self._rates

    def _infer(self) -> Matrix:
        seen = self._seconds > 0
        measured = np.divide(self._steps, self._seconds, where=seen, out=self._estimates.copy())
        misses = np.log(measured / self._estimates)
        guess = self._estimates * np.exp(_explain(misses, seen.astype(float), self._kinds))
        return np.where(seen, measured, guess)


def _explain(misses: Matrix, seen: Matrix, kinds: Matrix) -> Matrix:
    """How far the formula is off, in ln units, at every (class, device), from the pairs seen.

    The maximum a posteriori of ``miss = class + kind + device`` with Gaussian priors. The classes
    are eliminated first, so the system to solve has the size of the inventory, not of the batch.
    """
    devices = seen.shape[1]
    ridge = np.repeat(
        [(NOISE / KIND_ERROR) ** 2, (NOISE / DEVICE_ERROR) ** 2], [kinds.shape[1], devices]
    )
    columns = np.hstack([kinds, np.eye(devices)])  # each device's kind effect and its own
    shares = seen @ columns
    shrink = 1 / (seen.sum(axis=1) + (NOISE / CLASS_ERROR) ** 2)
    normal = (columns.T * seen.sum(axis=0)) @ columns + np.diag(ridge)
    normal -= (shares.T * shrink) @ shares
    target = columns.T @ misses.sum(axis=0) - shares.T @ (shrink * misses.sum(axis=1))
    device_effects = np.linalg.solve(normal, target)
    class_effects = shrink * (misses.sum(axis=1) - shares @ device_effects)
    explained = class_effects[:, None] + columns @ device_effects

    # What is left goes to the pair: a class's rate on one V100 is a good guess for the next V100.
    left = (misses - explained) * seen
    pairs = (left @ kinds) / (seen @ kinds + (NOISE / INTERACTION_ERROR) ** 2)
    return np.asarray(explained + pairs @ kinds.T)


def _indicator(keys: Sequence[Hashable]) -> Matrix:
    """One row per key with a single 1, in the column of the keys equal to it."""
    columns = {key: column for column, key in enumerate(dict.fromkeys(keys))}
    return np.eye(len(columns))[[columns[key] for key in keys]]
