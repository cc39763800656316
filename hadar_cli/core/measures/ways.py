"""The three ways to use many devices, as a run took them: job by job, and what decided."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from hadar_cli.core import events
from hadar_cli.core.estimates.gangs import (
    GAIN,
    PROPORTIONAL,
    are_far,
    best_gang,
    exchange_s,
    gang_rate,
    steps_seen,
    tells_speed,
)
from hadar_cli.core.measures.summary import Ways
from hadar_cli.core.model import Device, Job
from hadar_cli.core.reasons import Loss

_MOST = 16  # devices that are weighed, the fastest: a gang of more has no use for slower ones


def ways_of(
    jobs: Sequence[Job], devices: Sequence[Device], policy: str, happened: Iterable[events.Event]
) -> dict[int, Ways]:
    """Of every job with steps that count, by its number."""
    taken = _Taken(devices)
    for event in happened:
        taken.add(event)
    forks = policy == "hadare" or any(found["merged"] for found in taken.counts.values())
    by_number = {job.id: job for job in jobs}
    return {
        number: replace(
            _ways(by_number[number], devices, forks, taken), batches=taken.batches[number]
        )
        for number, found in taken.counts.items()
        if number in by_number and found.total()
    }


class _Taken:
    """Folds a journal: steps by way, and the speeds seen on the way."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self.counts: dict[int, Counter[str]] = {}  # by job
        self.unable: set[int] = set()
        self.batches: dict[int, int] = defaultdict(lambda: 1)  # in one update, by job
        self.shared_s: dict[int, tuple[float, int]] = {}  # a step of the job's last gang; its size
        self._devices = {device.name: device for device in devices}
        self._started: dict[str, events.CopyStarted] = {}
        self._steps: Counter[str] = Counter()
        self._seconds: dict[tuple[int, str], list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._bytes: dict[int, int] = {}

    def add(self, event: events.Event) -> None:
        match event:
            case events.CopyStarted():
                self._started[event.attempt] = event
            case events.CopyFinished() if event.steps:
                self._finish(event)
            case events.CopyLost() if event.reason is Loss.CANNOT_SHARE:
                self.unable.add(self._started[event.attempt].job)
            case events.WeightsMerged():
                self._bytes[event.job] = event.bytes
                found = self.counts.setdefault(event.job, Counter())
                trained = [attempt for attempt in event.accepted if self._steps[attempt]]
                for attempt in trained:
                    is_gang = len(self._started[attempt].devices) > 1
                    way = "merged" if len(trained) > 1 else "shared" if is_gang else "alone"
                    found[way] += self._steps[attempt]

    def _finish(self, done: events.CopyFinished) -> None:
        copy = self._started[done.attempt]
        self._steps[done.attempt] = done.steps
        self.batches[copy.job] = max(self.batches[copy.job], done.update[0])
        for device, steps, seconds in steps_seen(copy, done):
            total = self._seconds[copy.job, device]
            total[0], total[1] = total[0] + steps, total[1] + seconds
        if copy.gang and tells_speed(done):
            self.shared_s[copy.job] = done.train_s / done.steps, len(copy.gang)

    # -- as speeds, of devices that have trained the job ------------------------------------

    def rate(self, job_id: int, device_name: str) -> float:
        steps, seconds = self._seconds.get((job_id, device_name), (0.0, 0.0))
        return steps / seconds if seconds else 0.0

    def gang(self, job_id: int, device_names: Sequence[str]) -> float:
        bare = gang_rate([self.rate(job_id, name) for name in device_names], PROPORTIONAL)
        is_far = are_far([self._devices[name] for name in device_names])
        way_s = exchange_s(len(device_names), self._bytes.get(job_id, 0) / 2, is_far)
        return 1 / (1 / bare + way_s) if bare else 0.0


def _ways(job: Job, devices: Sequence[Device], forks: bool, taken: _Taken) -> Ways:
    found = taken.counts[job.id]
    counts = found["alone"], found["shared"], found["merged"]
    if not forks:
        return Ways(*counts, "policy" if job.most_gpus == 1 else "mix")
    if job.mode != "auto" or job.shares != PROPORTIONAL:
        return Ways(*counts, "mix")
    if job.id in taken.unable:
        return Ways(*counts, "script")
    speed = {device.name: taken.rate(job.id, device.name) for device in devices}
    best = max(devices, key=lambda device: speed[device.name])
    near = [d.name for d in devices if d.reach == best.reach and d.name != best.name]
    near = sorted((name for name in near if speed[name]), key=lambda name: -speed[name])
    if not near:
        return Ways(*counts, "policy")
    alone_s = 1 / speed[best.name]
    shared_s, sharers = taken.shared_s.get(job.id) or _foreseen(job.id, best.name, near, taken)
    return Ways(*counts, "time", alone_s, shared_s, sharers, alone_s > GAIN * shared_s)


def _foreseen(job: int, best: str, near: Sequence[str], taken: _Taken) -> tuple[float, int]:
    """What a step would take the best gang, of those that may be no worse than none."""
    gang, rate = best_gang(job, best, near[: _MOST - 1], taken)
    if len(gang) == 1:
        gang = (best, near[0])
        rate = taken.gang(job, gang)
    return 1 / rate, len(gang)
