"""Clusters by name, and the true speeds of a simulation: measured in tables, or modelled."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Protocol

import numpy as np

from hadar_cli.core.arrays import FloatArray, IntArray, RowIndex
from hadar_cli.core.estimates.gangs import gang_rate
from hadar_cli.core.estimates.goodput import ONE, Update
from hadar_cli.core.estimates.throughput import Cube, LearningRates, Matrix, RateModel, sized_rates
from hadar_cli.core.gpu_table import find_gpu
from hadar_cli.core.model import Device, Gpu, Job
from hadar_cli.core.policies.gangs.cluster_devices import ClusterDevices
from hadar_cli.errors import InputError
from hadar_cli.simulation.traces import Throughputs

_UNKNOWN_GPU = (1.0, 1.0)  # TFLOPS and VRAM, where a table tells the rates anyway


class Speeds(Protocol):
    """The true speeds of a simulation, and what a scheduler may know of them."""

    def gang(self, job_id: int, device_names: tuple[str, ...]) -> float:
        """Steps per second of the job on all these devices together."""
        ...

    def known(self) -> LearningRates: ...

    def pools(self) -> tuple[Matrix, IntArray]:
        """Devices of equal speed as one column of jobs × pools, in steps per second of one device,
        consolidated, and how many there are of each. Open jobs at the size that wastes least."""
        ...

    def alone(self) -> FloatArray:
        """Steps per second of each job where it is fastest."""
        ...


def parse_cluster(text: str, gpus_per_node: int) -> tuple[Device, ...]:
    """``v100:20,p100:20`` as devices on nodes of one kind each."""
    counts: dict[str, int] = {}
    for part in text.split(","):
        kind, _, number = part.strip().partition(":")
        if not kind or not number.isdigit() or not 0 < int(number) <= 100_000:
            raise InputError(
                f"{part.strip()!r} is not KIND:COUNT", field="--cluster", fix="e.g. v100:20,k80:8"
            )
        if kind in counts:
            raise InputError(f"{kind!r} is listed twice", field="--cluster")
        counts[kind] = int(number)
    return tuple(
        Device(f"{kind}-{i // gpus_per_node}:{i % gpus_per_node}", node, i % gpus_per_node, gpu)
        for kind, count in counts.items()
        for gpu in (_gpu(kind),)
        for i in range(count)
        for node in (f"{kind}-{i // gpus_per_node}",)
    )


def _gpu(kind: str) -> Gpu:
    """The GPU by the name given here, which the tables of throughputs go by."""
    spec = find_gpu(kind)
    return Gpu(kind, spec.tflops, spec.vram_gb, spec.pcie) if spec else Gpu(kind, *_UNKNOWN_GPU)


def require_known_gpus(devices: Sequence[Device]) -> None:
    """Refuses kinds that nobody has told the speed of."""
    for kind in dict.fromkeys(device.kind for device in devices):
        if kind != "CPU" and find_gpu(kind) is None:
            raise InputError(
                f"nothing is known of the GPU {kind!r}",
                field="--cluster",
                fix="give --throughputs, or an inventory with its figures: -n nodes.toml",
            )


class TableSpeeds(LearningRates):
    """Measured speeds, which the scheduler knows as well."""

    def __init__(
        self, table: Throughputs, jobs: Sequence[Job], devices: Sequence[Device], loses: bool
    ) -> None:
        self._site = ClusterDevices.of(devices)
        self._row = {job.id: row for row, job in enumerate(jobs)}
        self._shares = {job.id: job.shares for job in jobs}
        column = {kind: r for r, kind in enumerate(self._site.kinds)}
        self._column = {device.name: column[device.kind] for device in devices}
        self._packed, self._spread = table.matrices(jobs, self._site.kinds)
        self._alone: list[list[float]] = self._packed.tolist()
        self._gang = np.array([job.gpus for job in jobs])
        self._loses = loses
        self._slow: dict[tuple[str, ...], bool] = {}
        self._index = RowIndex(np.array(list(self._row), dtype=np.int64))
        self._asked: IntArray | None = None  # in the last question, with its answer
        self._answer = self._packed, self._spread
        self._table = table
        self._cube = self._sized(jobs, devices)
        self._is_open = {job.id for job in jobs if job.sizes}

    def gang(self, job_id: int, device_names: Sequence[str]) -> float:
        if len(device_names) == 1 and job_id not in self._is_open:
            return self._alone[self._row[job_id]][self._column[device_names[0]]]
        devices = tuple(device_names)
        rates = (self._spread if self._is_slow(devices) else self._packed)[self._row[job_id]]
        if job_id in self._is_open:
            return self._gang_of_any_size(job_id, devices, rates)
        members = [float(rates[self._column[name]]) for name in devices]
        return gang_rate(members, self._shares[job_id], fixed=0.0)

    def _gang_of_any_size(self, job_id: int, devices: tuple[str, ...], rates: FloatArray) -> float:
        """A gang of one kind as measured at its size; spread, as much slower as at any size."""
        assert self._cube is not None
        row, size = self._row[job_id], len(devices)
        sized, packed = self._cube[row, :, size - 1], self._packed[row]
        loss = np.divide(rates, packed, out=np.ones_like(packed), where=packed > 0)
        return float(min((sized * loss)[self._column[name]] for name in devices))

    def _is_slow(self, devices: tuple[str, ...]) -> bool:
        if not self._loses or len(devices) == 1:
            return False
        if devices not in self._slow:
            self._slow[devices] = self._site.is_spread(devices)
        return self._slow[devices]

    def known(self) -> LearningRates:
        return self

    def pools(self) -> tuple[Matrix, IntArray]:
        here = np.bincount(list(self._column.values()), minlength=len(self._site.kinds))
        if self._cube is None:
            return _pools(self._packed, here)
        per_device = self._cube / np.arange(1, self._cube.shape[2] + 1)
        is_open = self._cube.max(axis=(1, 2), initial=0.0) > 0
        return _pools(np.where(is_open[:, None], per_device.max(axis=2), self._packed), here)

    def alone(self) -> FloatArray:
        given: FloatArray = self._gang * self._packed.max(axis=1, initial=0.0)
        return given if self._cube is None else np.maximum(given, self._cube.max(axis=(1, 2)))

    def rate(self, job_id: int, device_name: str) -> float:
        return float(self._packed[self._row[job_id], self._column[device_name]])

    def matrix(self, job_ids: Sequence[int], device_names: Sequence[str]) -> Matrix:
        rows, columns = [self._row[j] for j in job_ids], [self._column[d] for d in device_names]
        return self._packed[np.ix_(rows, columns)]

    def by_kind(
        self, job_ids: IntArray, kinds: Sequence[str], devices: Sequence[Device]
    ) -> tuple[Matrix, Matrix | None]:
        if job_ids is not self._asked:
            rows = self._index.rows(job_ids)
            self._asked, self._answer = job_ids, (self._packed[rows], self._spread[rows])
            for rates in self._answer:
                rates.flags.writeable = False
        packed, spread = self._answer[0], self._answer[1] if self._loses else None
        if tuple(kinds) == self._site.kinds:
            return packed, spread
        columns = [self._site.kinds.index(kind) for kind in kinds]
        return packed[:, columns], None if spread is None else spread[:, columns]

    def by_size(
        self, job_ids: IntArray, kinds: Sequence[str], devices: Sequence[Device]
    ) -> Cube | None:
        if self._cube is None:
            return None
        columns = [self._site.kinds.index(kind) for kind in kinds]
        return self._cube[self._index.rows(job_ids)][:, columns]

    def _sized(self, jobs: Sequence[Job], devices: Sequence[Device]) -> Cube | None:
        """The rates of all sizes that jobs leave open; jobs of one model share theirs."""
        if not any(job.sizes for job in jobs):
            return None
        kinds = self._site.kinds
        counts = [sum(device.kind == kind for device in devices) for kind in kinds]

        @cache
        def speed(model: str, kind: int, size: int) -> float:
            return size * self._table.device_rate(model, size, kinds[kind])

        sizes = [job.sizes for job in jobs]
        return sized_rates(sizes, counts, lambda j, kind, size: speed(jobs[j].workload, kind, size))

    def update(self, job_id: int, device_names: Sequence[str]) -> Update:
        """Tables tell of batches as they are."""
        return ONE


class ModelledSpeeds:
    """Speeds by the throughput estimate, or as a real run measured them.

    The scheduler starts from the estimate in both cases, and learns as on real nodes.
    """

    def __init__(
        self, jobs: Sequence[Job], devices: Sequence[Device], truth: RateModel | None = None
    ) -> None:
        self._jobs, self._devices = jobs, devices
        self._truth = truth or RateModel(jobs, devices)

    def gang(self, job_id: int, device_names: tuple[str, ...]) -> float:
        return self._truth.gang(job_id, device_names)

    def known(self) -> LearningRates:
        return RateModel(self._jobs, self._devices)

    def pools(self) -> tuple[Matrix, IntArray]:
        rates = self._truth.matrix([job.id for job in self._jobs])
        return _pools(rates, np.ones(rates.shape[1], dtype=np.int64))

    def alone(self) -> FloatArray:
        widest = [widest_gang(job, len(self._devices)) for job in self._jobs]
        return np.asarray(np.array(widest) * self.pools()[0].max(axis=1, initial=0.0))


def widest_gang(job: Job, devices: int) -> int:
    """As many devices as the job can have."""
    return min(job.most_gpus, max(devices, job.gpus))


def _pools(rates: Matrix, counts: IntArray) -> tuple[Matrix, IntArray]:
    """Equal columns put together."""
    pools, which = np.unique(rates, axis=1, return_inverse=True)
    return pools, np.bincount(which.reshape(-1), weights=counts).astype(np.int64)
