"""How fast a job trains on a device: the paper's formula at first, measurements as they come.

The paper's estimate of throughput is

    value = PMI × batch_size × pcie_scaling / (model_weight × dataset_size),  PMI = TFLOPS / √VRAM

without saying in what unit. Read as steps/s it says that a step gets faster as its batch grows,
while in Gavel's published throughput table (ResNet-18, ResNet-50, LM, Transformer and
Recommendation at batch sizes 5 to 8192 on V100, P100 and K80: 72 rates) steps/s fall about as
batch^-0.6, and a V100 with six times the PMI of a P100 is only 1.2 times as fast. So the value is
taken as a *damped samples/s*:

    steps_per_s = SCALE × value^DAMPING / batch_size

The exponent was swept with the weights fitted anew each time. Median factor between estimate and
measurement: 3.9 for value = steps/s, 2.5 for value = samples/s, 1.43 at exponent 0.5, 1.29 at 0.4,
1.33 at 0.3; one estimate in ten is still off by more than 2.7.

Measurements mend that, also for pairs not yet seen (`RateModel`). With every job of that table
called modest and M, the median factor on the unseen GPUs falls from 3.3 to 1.6 once each job has
run on one GPU, and to 1.35 after two.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from hadar_cli.core.gpu_table import CPU
from hadar_cli.core.model import Device, Gpu, Job

Matrix = NDArray[np.float64]

# Fitted to Gavel's table with ResNet-18 and LM as modest, Transformer high, ResNet-50 extra-high
# and Recommendation small.
DAMPING = 0.4
SCALE = 95.0
MODEL_WEIGHT = {"small": 0.006, "modest": 1.0, "high": 23.0, "extra-high": 90.0}

# The measurements show no effect of the data set on a step; kept mild, rising as in the paper.
DATASET_WEIGHT = {"S": 1.0, "M": 1.1, "L": 1.2, "XL": 1.3}

# Not calibrated: all GPUs of Gavel's table sit on PCIe 3. Bandwidth doubles with each generation,
# of which training sees a part.
PCIE_SCALING = {1: 0.6, 2: 0.8, 3: 1.0, 4: 1.25, 5: 1.5, 6: 1.75}

# A tiny preset's step is this much lighter than the formula's at its batch size: the middle of
# the five workloads on one CPU core (28, 12, 25, 10 and 25 ms a step), all within 3.6 times of it.
PRESET_SCALE = {"paper": 1.0, "tiny": 9.0}

# An emulated GPU is a CPU core paced in proportion to what it stands for. Fitted to the default
# inventory's paces (0.55 for an RTX 3090 down to 0.066 for a T400), within 1.5 times of each.
STAND_IN = 0.09

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


def pmi(gpu: Gpu) -> float:
    """The paper's Performance-Memory Index."""
    return gpu.tflops / math.sqrt(gpu.vram_gb)


def estimate_steps_per_s(
    gpu: Gpu | None,
    *,
    batch_size: int,
    model_size: str,
    dataset_size: str,
    preset: str = "paper",
    emulated_speed: float | None = None,
) -> float:
    """Steps per second before anything has been measured; ``gpu=None`` is one CPU core."""
    job = _job_factor(batch_size, model_size, dataset_size, preset)
    return job * _device_factor(gpu, emulated_speed)


def _job_factor(batch_size: int, model_size: str, dataset_size: str, preset: str) -> float:
    load = MODEL_WEIGHT[model_size] * DATASET_WEIGHT[dataset_size]
    return SCALE * PRESET_SCALE[preset] * math.pow(batch_size / load, DAMPING) / batch_size


def _device_factor(gpu: Gpu | None, emulated_speed: float | None) -> float:
    if emulated_speed is None:
        return _hardware_factor(gpu or CPU)
    pace = STAND_IN * _hardware_factor(gpu) if gpu else emulated_speed
    return _hardware_factor(CPU) * pace


def _hardware_factor(gpu: Gpu) -> float:
    return math.pow(pmi(gpu) * PCIE_SCALING[gpu.pcie], DAMPING)


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
            _job_factor(job.batch_size, job.model_size, job.dataset_size, job.launch.preset)
            for job in examples.values()
        ]
        device_factors = [_device_factor(device.gpu, device.emulated_speed) for device in devices]
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

    def matrix(self, job_ids: Sequence[int]) -> Matrix:
        """``rate`` of these jobs (rows) on all devices (columns, in the order given)."""
        return self._current()[[self._row[job_id] for job_id in job_ids]]

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
