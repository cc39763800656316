"""Who is on which device: copies that train, side tasks, and whose process waits there, warm."""

from __future__ import annotations

from collections.abc import Sequence

from hadar_cli.core.events import CopyStarted
from hadar_cli.core.state import JobState, RunState
from hadar_cli.engine.ports import CopyOrder, Progressed

_FIRST_START_COST_S = 2.5  # of a cold copy, until one has been measured
_MOST_FAILURES = 5  # in a row, on one device
_NEWEST = 0.3  # weight of the newest start among all so far
_TELLING_S = 1.0  # of training, before a copy's own speed tells anything


class Occupancy:
    """A device trains one copy at a time; the next order of that copy may be there already."""

    def __init__(self, devices: Sequence[str], state: RunState) -> None:
        self._devices, self._state = tuple(devices), state
        self._place = {device: i for i, device in enumerate(devices)}
        #: devices that do not train: all but those of ``busy``
        self._resting = set(devices)
        #: device -> attempt that trains there
        self.busy: dict[str, str] = {}
        #: attempt -> job, of every attempt in ``busy``
        self.training: dict[str, int] = {}
        #: job -> devices, while it is not forked
        self.gangs: dict[int, tuple[str, ...]] = {}
        #: device -> attempt that was sent ahead; one before it is in ``busy``
        self.ahead: dict[str, str] = {}
        #: device -> attempt that does not train
        self.side_tasks: dict[str, str] = {}
        #: device -> job whose process is there
        self.warm: dict[str, int] = {}
        #: attempts under way whose weights arrive rounded, so that nobody goes on from them
        self.rounded: set[str] = set()
        #: jobs whose copies are being merged: until then, no other copy of theirs starts or ends
        self.merging: set[int] = set()
        #: attempts under way that nobody waits for
        self.late: set[str] = set()
        #: devices of which nothing is heard
        self.silent: set[str] = set()
        #: device -> jobs whose copies failed there in a row, one for each copy
        self.failures: dict[str, list[int]] = {}
        #: attempt under way -> steps it has told of
        self.progress: dict[str, int] = {}
        #: attempt under way -> its own steps a second, and when it told of them
        self.told_rates: dict[str, tuple[float, float]] = {}
        self.start_cost_s = _FIRST_START_COST_S  # of a copy whose process is not there yet

    def hold(self, order: CopyOrder) -> None:
        held = self.busy if order.returns_weights else self.side_tasks
        for device in order.devices:
            if order.follows and device in self.busy:
                self.ahead[device] = order.attempt
            else:
                held[device] = order.attempt
            self.warm[device] = order.job.id
        if order.returns_weights and order.hand_in != "full":
            self.rounded.add(order.attempt)
        self._note(order.attempt)

    def cool(self, devices: Sequence[str]) -> None:
        """No process waits there any more."""
        for device in devices:
            self.warm.pop(device, None)

    def free(self, attempt: str) -> tuple[str, ...]:
        """Takes the attempt off its devices, which go on with what was sent ahead, if anything."""
        self.progress.pop(attempt, None)
        self.told_rates.pop(attempt, None)
        self.late.discard(attempt)
        self.rounded.discard(attempt)
        if self.training.pop(attempt, None) is not None:
            self.gangs.pop(self._state.started[attempt].job, None)
        for device in self._state.started[attempt].devices:
            for held in (self.busy, self.side_tasks, self.ahead):
                if held.get(device) == attempt:
                    del held[device]
            if device in self.ahead and device not in self.busy:
                self.busy[device] = self.ahead.pop(device)
                self._note(self.busy[device])
            if device not in self.busy:
                self._resting.add(device)
        return self._state.started[attempt].devices

    def _note(self, attempt: str) -> None:
        """Notes a copy that trains from now on, if it is one."""
        copy = self._state.started[attempt]
        if self.busy.get(copy.device) == attempt:
            self.training[attempt] = copy.job
            self.gangs[copy.job] = copy.devices
            self._resting.difference_update(copy.devices)

    def fails_too_often(self, device: str, job: int) -> bool:
        """Notes a failure; whether the device had better be left alone, as there are others.

        One job alone says nothing of the device: it may fail everywhere.
        """
        jobs = self.failures.setdefault(device, [])
        jobs.append(job)
        others = set(self._devices) - self._state.lost_devices.keys() - {device}
        return len(jobs) >= _MOST_FAILURES and len(set(jobs)) > 1 and bool(others)

    @property
    def is_empty(self) -> bool:
        return not (self.busy or self.side_tasks)

    @property
    def attempts(self) -> set[str]:
        """The copies that train, or will at once when those before them are done."""
        return {*self.training, *self.ahead.values()}

    def copies(self) -> list[CopyStarted]:
        """The copies that train now."""
        return [self._state.started[attempt] for attempt in self.training]

    def hear(self, told: Progressed, now: float) -> None:
        """How far a copy is; after a while also how fast, which speeds know once it hands in."""
        self.progress[told.attempt] = told.steps
        if told.seconds >= _TELLING_S and told.steps:
            self.told_rates[told.attempt] = told.steps / told.seconds, now

    def steps(self) -> dict[int, int]:
        """How far the gangs have told to be."""
        return {job: self.progress.get(attempt, 0) for attempt, job in self.training.items()}

    def awaited(self, job: JobState) -> list[CopyStarted]:
        """The job's copies that its next merge waits for."""
        return [
            copy
            for attempt, copy in job.active.items()
            if copy.generation == job.generation and attempt not in self.late
        ]

    def available(self) -> tuple[str, ...]:
        """Devices that do not train: idle ones, and those on a side task, which is soon over."""
        able = [d for d in self._resting if d not in self._state.lost_devices]
        return tuple(sorted(able, key=self._place.__getitem__))

    def idle(self) -> tuple[str, ...]:
        return tuple([d for d in self.available() if d not in self.side_tasks])

    def is_warm(self, device: str, job: int) -> bool:
        return self.warm.get(device) == job

    def learn_start(self, seconds: float) -> None:
        self.start_cost_s += _NEWEST * (seconds - self.start_cost_s)

    def validate(self) -> None:
        """Raises AssertionError where this and the run's state contradict each other."""
        jobs = self._state.jobs.values()
        active = {attempt for job in jobs for attempt in job.active}
        side_tasks = {attempt for job in jobs for attempt in job.side_tasks}
        assert self.training.keys() == set(self.busy.values()), "a device is busy with nothing"
        assert self.attempts == active, "a copy trains nowhere, or is over"
        assert set(self.side_tasks.values()) == side_tasks, "a side task is nowhere, or over"
        assert self.ahead.keys() <= self.busy.keys(), "what was sent ahead follows nothing"
        assert self._resting == set(self._devices) - self.busy.keys(), "a device works and rests"
        assert all(self._state.jobs[job].handed_in for job in self.merging), "nothing is merged"
        assert self.late <= active, "nobody waits for a copy that is over"
        assert self.rounded <= active, "a copy that is over is yet to hand in"
        assert self.progress.keys() <= active | side_tasks, "a copy that is over goes on"
        assert self.told_rates.keys() <= self.progress.keys(), "a copy was fast, but got nowhere"
