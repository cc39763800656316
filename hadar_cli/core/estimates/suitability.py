"""Which devices may take which jobs: all, but for cards that are too small or proved unsuitable.

Policies see it in the rates: a pair that must not be used trains at 0 steps a second.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from hadar_cli.core.arrays import BoolArray, IntArray
from hadar_cli.core.estimates.goodput import Update
from hadar_cli.core.estimates.reach import keep_together, require_room_for_gangs
from hadar_cli.core.estimates.throughput import Cube, Matrix, Rates
from hadar_cli.core.model import Device, Job
from hadar_cli.core.state import RunState
from hadar_cli.errors import InputError


def is_large_enough(device: Device, job: Job) -> bool:
    """Whether the card holds what the job says it needs; a CPU's memory is not judged."""
    return device.gpu is None or device.gpu.vram_gb >= job.min_vram_gb


def require_room(
    jobs: Sequence[Job], devices: Sequence[Device], file: str, gangs: bool = False
) -> None:
    """Refuses a mix with a job for which every card is too small, or of which a gang would be too
    large for the devices that reach each other."""
    if gangs and devices:
        able = np.array([[is_large_enough(d, job) for d in devices] for job in jobs], dtype=bool)
        require_room_for_gangs(jobs, devices, able, file)
    for job in jobs:
        if devices and not any(is_large_enough(device, job) for device in devices):
            raise InputError(
                f"job {job.name!r} needs {job.min_vram_gb:g} GB, and no device has as much",
                file=file,
                field="min_vram_gb",
                fix="lower it, or add a larger GPU to the inventory",
            )


_NONE: frozenset[str] = frozenset()


class Suitability:
    """Pairs of jobs and devices, as the inventory says and as the run has found."""

    def __init__(self, devices: Sequence[Device], state: RunState, gangs: bool = False) -> None:
        self._devices, self._state = tuple(devices), state
        # Jobs that are not forked: those of several devices keep to such as reach each other.
        is_any_wide = gangs and any(one.job.gpus > 1 for one in state.jobs.values())
        self._has_groups = is_any_wide and len({device.reach for device in devices}) > 1
        self._row = {number: row for row, number in enumerate(state.jobs)}
        self._column = {device.name: column for column, device in enumerate(devices)}
        jobs = [one.job for one in state.jobs.values()]
        needy = {row: job for row, job in enumerate(jobs) if job.min_vram_gb}
        self._roomy: BoolArray = np.ones((len(jobs), len(devices)), dtype=np.bool_)
        for row, job in needy.items():
            self._roomy[row] = [is_large_enough(device, job) for device in devices]
        self._found: tuple[int, frozenset[str]] = (-1, frozenset())
        self._allowed = self._roomy
        self._pools = self._devices

    @property
    def is_everything_allowed(self) -> bool:
        self._look()
        return self._pools is self._devices

    def allows(self, job: int, devices: Collection[str]) -> bool:
        """Whether the job may train on all of these; never on what the run has left."""
        if not all(map(self._column.__contains__, devices)):
            return False
        if self.is_everything_allowed:
            return True
        row = self._allowed[self._row[job]]
        return all(row[self._column[device]] for device in devices)

    def devices_for(self, job: int) -> list[str]:
        """Every device that may take the job, whether or not it is lost."""
        self._look()
        row = self._allowed[self._row[job]]
        return [name for name, column in self._column.items() if row[column]]

    def matrix(self, jobs: Sequence[int], devices: Sequence[str]) -> BoolArray:
        """Jobs × devices: which may be used."""
        self._look()
        rows, columns = [self._row[j] for j in jobs], [self._column[d] for d in devices]
        allowed: BoolArray = self._allowed[np.ix_(rows, columns)]
        return allowed

    @property
    def pools(self) -> tuple[Device, ...]:
        """The devices, of kinds so fine that all of one kind may take the same jobs."""
        self._look()
        return self._pools

    def _look(self) -> None:
        """Takes in what the run has found since the last look."""
        lost = frozenset(self._state.lost_devices) if self._has_groups else _NONE
        avoided = len(self._state.avoided)
        if avoided == self._found[0] and lost == self._found[1]:
            return
        self._found, self._allowed = (avoided, lost), self._roomy.copy()
        for job, device in self._state.avoided:
            if device in self._column:
                self._allowed[self._row[job], self._column[device]] = False
        if self._has_groups:
            here = np.array([device.name not in lost for device in self._devices])
            jobs = [one.job for one in self._state.jobs.values()]
            self._allowed &= keep_together(jobs, self._devices, self._allowed & here)
        self._pools = self._devices if self._allowed.all() else self._sorted_into_pools()

    def _sorted_into_pools(self) -> tuple[Device, ...]:
        """A kind whose devices may not all take the same jobs becomes several."""
        seen: dict[str, dict[bytes, str]] = {}
        pools = []
        for column, device in enumerate(self._devices):
            alike = seen.setdefault(device.kind, {})
            number = len(alike) + 1
            name = device.kind if number == 1 else f"{device.kind}, group {number}"
            pool = alike.setdefault(self._allowed[:, column].tobytes(), name)
            pools.append(device if pool == device.kind else replace(device, pool=pool))
        return tuple(pools)


class SuitableRates:
    """Rates of which those of pairs that must not be used are 0. It learns nothing."""

    def __init__(self, rates: Rates, suitability: Suitability) -> None:
        self._rates, self._suitability = rates, suitability

    def rate(self, job_id: int, device_name: str) -> float:
        if not self._suitability.allows(job_id, (device_name,)):
            return 0.0
        return self._rates.rate(job_id, device_name)

    def gang(self, job_id: int, device_names: Sequence[str]) -> float:
        if not self._suitability.allows(job_id, device_names):
            return 0.0
        return self._rates.gang(job_id, device_names)

    def matrix(self, job_ids: Sequence[int], device_names: Sequence[str]) -> Matrix:
        rates = self._rates.matrix(job_ids, device_names)
        if self._suitability.is_everything_allowed:
            return rates
        return np.where(self._suitability.matrix(job_ids, device_names), rates, 0.0)

    def by_kind(
        self, job_ids: IntArray, kinds: Sequence[str], devices: Sequence[Device]
    ) -> tuple[Matrix, Matrix | None]:
        if self._suitability.is_everything_allowed:
            return self._rates.by_kind(job_ids, kinds, devices)
        known, plain, allowed = self._by_pool(job_ids, kinds, devices)
        rates, spread = self._rates.by_kind(job_ids, known, plain)
        return np.where(allowed, rates, 0.0), None if spread is None else np.where(
            allowed, spread, 0.0
        )

    def by_size(
        self, job_ids: IntArray, kinds: Sequence[str], devices: Sequence[Device]
    ) -> Cube | None:
        if self._suitability.is_everything_allowed:
            return self._rates.by_size(job_ids, kinds, devices)
        known, plain, allowed = self._by_pool(job_ids, kinds, devices)
        rates = self._rates.by_size(job_ids, known, plain)
        return None if rates is None else np.where(allowed[:, :, None], rates, 0.0)

    def _by_pool(
        self, job_ids: IntArray, kinds: Sequence[str], devices: Sequence[Device]
    ) -> tuple[list[str], tuple[Device, ...], BoolArray]:
        """Kinds and devices by their own names, and which job may use which of the pools."""
        example = {device.kind: device for device in reversed(devices)}
        plain = tuple(replace(device, pool="") for device in devices)
        known = [replace(example[kind], pool="").kind for kind in kinds]
        names = [example[kind].name for kind in kinds]
        return known, plain, self._suitability.matrix(job_ids.tolist(), names)

    def update(self, job_id: int, device_names: Sequence[str]) -> Update:
        return self._rates.update(job_id, device_names)
