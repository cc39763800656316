"""How fast a job trains on a device: the formula at first, measurements as they come.

Measurements mend the formula, also for pairs not yet seen. With every job of the table that it
was fitted to called modest and M, the median factor on the unseen GPUs falls from 3.3 to 1.6 once
each job has run on one GPU, and to 1.35 after two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hadar_cli.core.arrays import IntArray
from hadar_cli.core.estimates.formula import device_factor, job_factor
from hadar_cli.core.estimates.gangs import PROPORTIONAL, are_far, exchange_s, gang_rate
from hadar_cli.core.estimates.goodput import BatchSizes, Update
from hadar_cli.core.model import Device, Job

Matrix = NDArray[np.float64]
Cube = NDArray[np.float64]

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

# Gradients in bytes before a checkpoint tells: of a tiny workload, and of anybody's model.
_TINY, _USUAL = 3e5, 1e7
_OF_CHECKPOINT = 0.5  # is weights; the optimizer's state is the rest of it, or more


class Rates(Protocol):
    """What a scheduler knows of speeds."""

    def rate(self, job_id: int, device_name: str) -> float:
        """Steps per second of a job on a single device."""
        ...

    def gang(self, job_id: int, device_names: Sequence[str]) -> float:
        """Steps per second of a job on all of these devices together."""
        ...

    def matrix(self, job_ids: Sequence[int], device_names: Sequence[str]) -> Matrix:
        """``rate`` of these jobs (rows) on these devices (columns)."""
        ...

    def by_kind(
        self, job_ids: IntArray, kinds: Sequence[str], devices: Sequence[Device]
    ) -> tuple[Matrix, Matrix | None]:
        """Jobs × kinds, for one device of a gang: consolidated, and spread over more nodes."""
        ...

    def by_size(
        self, job_ids: IntArray, kinds: Sequence[str], devices: Sequence[Device]
    ) -> Cube | None:
        """Jobs × kinds × sizes: steps per second of whole gangs of 1, 2, … devices of one kind.

        0 where a job may not be of that size; None if no job leaves its size open.
        """
        ...

    def update(self, job_id: int, device_names: Sequence[str]) -> Update:
        """What of a job's mini-batches to join on these devices, for the most steps a second."""
        ...


@dataclass(frozen=True, slots=True)
class GangSpeed:
    """What devices did together, of each of which it was told before."""

    job: int
    devices: Sequence[str]
    update: Update
    steps: float
    seconds: float


class LearningRates(Rates, Protocol):
    """Rates that take in what is measured. Whoever knows them already inherits to learn nothing."""

    # Each does nothing here, and says so: an empty body would make it abstract.
    def observe(
        self, job_id: int, device_name: str, batches: float, seconds: float, size: float = 1.0
    ) -> None:
        """Take in so many batches done in ``seconds`` of training, each of ``size`` of the job's
        own joined to one."""
        return

    def observe_gang(self, seen: GangSpeed) -> None:
        """Take in how fast a gang was."""
        return

    def observe_noise(self, job_id: int, noise: float) -> None:
        """Take in the noise scale of the job's gradients, in mini-batches."""
        return

    def observe_size(self, job_id: int, size: int, has_optimizer: bool) -> None:
        """Take in how many bytes the job's checkpoint has."""
        return


class RateModel:
    """Steps per second of every job on every device: measured where seen, else the best guess.

    Jobs of one ``throughput_class`` share their measurements. Of what the formula misses, part is
    the class's (it is right or wrong about a model everywhere), part the kind of device's, the
    single device's, or the pair's; each is inferred from all measurements so far, shrunk to the
    formula by how far off it typically is. ``observe`` is the only method that changes anything.
    """

    def __init__(self, jobs: Sequence[Job], devices: Sequence[Device]) -> None:
        examples = {job.throughput_class: job for job in jobs}
        rows = self._rows = {name: row for row, name in enumerate(examples)}
        self._row = {job.id: rows[job.throughput_class] for job in jobs}
        self._column = {device.name: column for column, device in enumerate(devices)}
        self._shares = {job.id: job.shares for job in jobs}
        self._sizes = {job.id: job.sizes for job in jobs if job.sizes}
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
        self._devices = {device.name: device for device in devices}
        self._bytes = {rows[name]: _usual_bytes(job) for name, job in examples.items()}
        self._exchange: dict[tuple[int, bool], float] = {}  # by class and distance, times the usual
        self._batches = BatchSizes({job.id: job.most_batches for job in jobs if job.most_batches})

    def observe(
        self, job_id: int, device_name: str, batches: float, seconds: float, size: float = 1.0
    ) -> None:
        """Take in batches done in ``seconds`` of training; none tell nothing, nor does a device
        that has been taken out of the inventory."""
        if device_name not in self._column:
            return
        if not (_LEAST < batches < _MOST and _LEAST < seconds < _MOST):
            return
        # Old steps and seconds fade alike: the mean time of a step, weighted by steps.
        cell = self._row[job_id], self._column[device_name]
        if size > 1 and self._seconds[cell]:
            one_s = self._seconds[cell] / self._steps[cell]
            self._batches.observe_batch(cell[0], size, seconds / batches / one_s)
            return
        steps = batches * self._batches.times(cell[0], size)
        self._steps[cell] = MEMORY * self._steps[cell] + steps
        self._seconds[cell] = MEMORY * self._seconds[cell] + seconds
        self._rates = None

    def widen(self, jobs: Sequence[Job], devices: Sequence[Device]) -> None:
        """Other jobs and devices from now on; what was measured of those that stay is kept."""
        wider = RateModel(jobs, devices)
        for name in self._rows.keys() & wider._rows.keys():
            for device in self._column.keys() & wider._column.keys():
                old = self._rows[name], self._column[device]
                new = wider._rows[name], wider._column[device]
                wider._steps[new], wider._seconds[new] = self._steps[old], self._seconds[old]
            row, other = self._rows[name], wider._rows[name]
            wider._bytes[other] = self._bytes[row]
            for is_far in (False, True):
                if (row, is_far) in self._exchange:
                    wider._exchange[other, is_far] = self._exchange[row, is_far]
        rows = {row: wider._rows[name] for name, row in self._rows.items() if name in wider._rows}
        wider._batches.take(self._batches, rows)
        self.__dict__ = wider.__dict__
        self._rates = None

    def forget(self, device_name: str) -> None:
        """What was measured there was another device."""
        if (column := self._column.get(device_name)) is not None:
            self._steps[:, column] = self._seconds[:, column] = 0.0
            self._rates = None

    def knows(self, device_name: str) -> bool:
        return device_name in self._column

    def rate(self, job_id: int, device_name: str) -> float:
        """The best knowledge of the job's steps per second on the device."""
        rate = self._one(job_id, device_name)
        if self._batches.is_open(job_id):
            rate *= self._batches.alone(job_id, self._row[job_id])
        return rate

    def _one(self, job_id: int, device_name: str) -> float:
        """The same with one mini-batch to a step."""
        return float(self._current()[self._row[job_id], self._column[device_name]])

    def gang(self, job_id: int, device_names: Sequence[str]) -> float:
        """The same of a gang."""
        if len(device_names) == 1:
            return self.rate(job_id, device_names[0])
        choices = self._batches.choices(job_id)
        return max(self._gang(job_id, device_names, one) for one in choices)

    def update(self, job_id: int, device_names: Sequence[str]) -> Update:
        choices = self._batches.choices(job_id)
        return max(choices, key=lambda one: self._gang(job_id, device_names, one))

    def _gang(self, job_id: int, device_names: Sequence[str], update: Update) -> float:
        """Steps per second by way of such updates."""
        bare = self._bare(job_id, device_names, update)
        is_alone = len(device_names) == 1  # and the paper's gangs exchange for free
        if not bare or is_alone or self._shares[job_id] != PROPORTIONAL:
            return bare * update.steps
        usual_s, key = self._usual_s(job_id, device_names)
        return update.steps / (1 / bare + self._exchange.get(key, 1.0) * usual_s)

    def observe_noise(self, job_id: int, noise: float) -> None:
        self._batches.observe_noise(job_id, noise)

    def observe_gang(self, seen: GangSpeed) -> None:
        """What the exchange of gradients costs is told by what its members would do without."""
        if not all(name in self._column for name in seen.devices):
            return
        bare = self._bare(seen.job, seen.devices, seen.update)
        if bare and _LEAST < seen.steps < _MOST and _LEAST < seen.seconds < _MOST:
            usual_s, key = self._usual_s(seen.job, seen.devices)
            costs = max(0.0, seen.seconds * seen.update.steps / seen.steps - 1 / bare) / usual_s
            self._exchange[key] = costs + MEMORY * (self._exchange.get(key, costs) - costs)

    def observe_size(self, job_id: int, size: int, has_optimizer: bool) -> None:
        """An exchange that was measured was measured with these bytes: that stays as it is."""
        row = self._row[job_id]
        if size > 0 and not any(known == row for known, _ in self._exchange):
            self._bytes[row] = size * (_OF_CHECKPOINT if has_optimizer else 1.0)

    def _bare(self, job_id: int, device_names: Sequence[str], update: Update) -> float:
        """Updates per second of a gang whose members exchange nothing."""
        row = self._row[job_id]
        times = self._batches.times(row, update.batches)
        rates = [self._one(job_id, name) / times for name in device_names]
        fixed = self._batches.fixed(row, update.batches) / times
        return gang_rate(rates, self._shares[job_id], fixed)

    def _usual_s(self, job_id: int, device_names: Sequence[str]) -> tuple[float, tuple[int, bool]]:
        is_far, row = are_far([self._devices[name] for name in device_names]), self._row[job_id]
        return exchange_s(len(device_names), self._bytes[row], is_far), (row, is_far)

    def matrix(self, job_ids: Sequence[int], device_names: Sequence[str] | None = None) -> Matrix:
        """``rate`` of these jobs (rows) on these devices, or on all in the order given."""
        rates = self._current()[[self._row[job_id] for job_id in job_ids]]
        for i, job_id in enumerate(job_ids if self._batches else ()):
            if self._batches.is_open(job_id):
                rates[i] *= self._batches.alone(job_id, self._row[job_id])
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

    def by_size(
        self, job_ids: IntArray, kinds: Sequence[str], devices: Sequence[Device]
    ) -> Cube | None:
        """By what is known of gangs, of the first devices of each kind."""
        if self._sizes.keys().isdisjoint(job_ids.tolist()):
            return None
        names = [[device.name for device in devices if device.kind == kind] for kind in kinds]

        def speed(row: int, kind: int, size: int) -> float:
            return self.gang(int(job_ids[row]), names[kind][:size])

        counts = [len(of_kind) for of_kind in names]
        return sized_rates([self._sizes.get(job) for job in job_ids.tolist()], counts, speed)

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


def _usual_bytes(job: Job) -> float:
    return _TINY if job.launch.workload and job.launch.preset == "tiny" else _USUAL


def sized_rates(
    sizes: Sequence[tuple[int, int] | None],
    counts: Sequence[int],
    speed: Callable[[int, int, int], float],
) -> Cube:
    """Jobs × kinds × sizes by a function of all three, for the sizes that a job leaves open."""
    rates = np.zeros((len(sizes), len(counts), max(counts, default=0)))
    for row, open_ in enumerate(sizes):
        for kind, most in enumerate(counts):
            least, widest = open_ or (1, 0)
            for size in range(least, min(widest, most) + 1):
                rates[row, kind, size - 1] = speed(row, kind, size)
    return rates


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
