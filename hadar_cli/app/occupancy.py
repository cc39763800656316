"""Who is on which device: copies that train, errands, and whose process waits there, warm."""

from __future__ import annotations

from collections.abc import Sequence

from hadar_cli.app.ports import CopyOrder
from hadar_cli.core.events import CopyStarted
from hadar_cli.core.state import JobState, RunState

_FIRST_START_COST_S = 2.5  # of a cold copy, until one has been measured
_MOST_FAILURES = 5  # in a row, on one device
_NEWEST = 0.3  # weight of the newest start among all so far


class Occupancy:
    """A device trains one copy at a time; the next order of that copy may be there already."""

    def __init__(self, devices: Sequence[str], state: RunState) -> None:
        self._devices, self._state = tuple(devices), state
        self._place = {device: i for i, device in enumerate(devices)}
        self._resting = set(devices)  # those that do not train
        self.busy: dict[str, str] = {}  # device -> attempt that trains
        self.training: dict[str, int] = {}  # attempt -> job
        self.gangs: dict[int, tuple[str, ...]] = {}  # job -> devices, while it is not forked
        self.errands: dict[str, str] = {}  # device -> attempt that does not
        self.warm: dict[str, int] = {}  # device -> job whose process is there
        self.late: set[str] = set()  # attempts that nobody waits for
        self.silent: set[str] = set()  # devices of which nothing is heard
        self.failures: dict[str, int] = {}  # device -> copies that failed there in a row
        self.ahead: dict[str, str] = {}  # device -> attempt that was sent ahead of its time
        self.progress: dict[str, int] = {}  # attempt -> steps it has told of
        self.start_cost_s = _FIRST_START_COST_S  # of a copy whose process is not there yet

    def hold(self, order: CopyOrder) -> None:
        held = self.busy if order.hand_in else self.errands
        for device in order.devices:
            if order.follows and device in self.busy:
                self.ahead[device] = order.attempt
            else:
                held[device] = order.attempt
            self.warm[device] = order.job.id
        self._note(order.attempt)

    def free(self, attempt: str) -> str:
        """Takes the attempt off its devices, which go on with what was sent ahead, if anything."""
        self.progress.pop(attempt, None)
        self.late.discard(attempt)
        if self.training.pop(attempt, None) is not None:
            self.gangs.pop(self._state.started[attempt].job, None)
        for device in self._state.started[attempt].devices:
            for held in (self.busy, self.errands, self.ahead):
                if held.get(device) == attempt:
                    del held[device]
            if device in self.ahead and device not in self.busy:
                self.busy[device] = self.ahead.pop(device)
                self._note(self.busy[device])
            if device not in self.busy:
                self._resting.add(device)
        return self._state.device_of(attempt)

    def _note(self, attempt: str) -> None:
        """Notes a copy that trains from now on, if it is one."""
        copy = self._state.started[attempt]
        if self.busy.get(copy.device) == attempt:
            self.training[attempt] = copy.job
            self.gangs[copy.job] = copy.devices
            self._resting.difference_update(copy.devices)

    def fails_too_often(self, device: str) -> bool:
        """Notes a failure; whether the device had better be left alone, as there are others."""
        self.failures[device] = self.failures.get(device, 0) + 1
        others = set(self._devices) - self._state.lost_devices.keys() - {device}
        return self.failures[device] >= _MOST_FAILURES and bool(others)

    @property
    def is_empty(self) -> bool:
        return not (self.busy or self.errands)

    @property
    def attempts(self) -> set[str]:
        """The copies that train, or will at once when those before them are done."""
        return {*self.training, *self.ahead.values()}

    def copies(self) -> list[CopyStarted]:
        """The copies that train now."""
        return [self._state.started[attempt] for attempt in self.training]

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
        """Devices that do not train: idle ones, and those on an errand, which is soon over."""
        able = [d for d in self._resting if d not in self._state.lost_devices]
        return tuple(sorted(able, key=self._place.__getitem__))

    def idle(self) -> tuple[str, ...]:
        return tuple([d for d in self.available() if d not in self.errands])

    def is_warm(self, device: str, job: int) -> bool:
        return self.warm.get(device) == job

    def learn_start(self, seconds: float) -> None:
        self.start_cost_s += _NEWEST * (seconds - self.start_cost_s)
