"""What a session knows of its copies and their workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from hadar_cli.engine.ports import CopyOrder, CopyResult
from hadar_cli.node.agent_events import Finished
from hadar_cli.node.phases import UNMEASURED_S

_SAVING = 1.2  # times an order's time: with what a supervisor adds to it for saving
_LATE_S = 30.0  # and then: the supervisor ends it before
TRIES = 3  # to send an order or fetch a result, before the copy is given up


class Phase(Enum):
    NEW = "new"  # nobody wanted anything of it yet
    OPENING = "opening"  # for the first time; if that fails, it is gone
    OPEN = "open"
    MENDING = "mending"  # the link broke just now
    GONE = "gone"  # given up, and looked for
    REFUSED = "refused"  # given up for good
    CLOSED = "closed"


class Stage(Enum):
    WAITING = "waiting"  # to be sent
    SENDING = "sending"
    RUNNING = "running"  # on the node, as far as is known
    FETCHING = "fetching"


CONNECTING = {Phase.OPENING, Phase.MENDING, Phase.GONE}  # a Connect is under way
EMPTY = {Phase.NEW, Phase.GONE, Phase.REFUSED, Phase.CLOSED}  # no attempts, no workers


@dataclass(slots=True)
class Held:
    """An attempt whose end has not been reported."""

    order: CopyOrder
    stage: Stage  # SENDING and FETCHING only while the session is OPEN
    worker: str = ""  # never empty while SENDING or FETCHING; an adopted one's is told by the agent
    warm: bool = False
    tries: int = 0  # at most TRIES
    arrived: int = 0  # bytes of its result, at the most
    late_at: float | None = None  # only while RUNNING: no clock runs while files move
    finished: Finished | None = None  # heard, and not yet looked at
    result: CopyResult | None = None  # exactly while FETCHING
    stays: bool = False
    is_recalled: bool = False  # it is to hand in as soon as it runs
    is_abandoned: bool = False  # only while SENDING: it is to be let go as soon as it runs
    progressed_at: float = 0.0

    def has_arrived(self, done: int) -> bool:
        """So many bytes have moved; whether they are its result's. A fetch that gets on is never
        given up, however often it is cut."""
        if self.stage is not Stage.FETCHING:
            return False
        self.tries = 1 if done > self.arrived else self.tries
        self.arrived = max(self.arrived, done)
        return True

    def runs_from(self, now: float) -> None:
        """It is late when it is past whatever its supervisor lets it have."""
        self.late_at = now + _SAVING * self.order.seconds + UNMEASURED_S + _LATE_S

    def is_at_work(self, now: float, may_last_s: float) -> None:
        """It has said what it is about, which may go on for so long past its order's time."""
        if self.late_at is not None:
            until = now + self.order.seconds + may_last_s + _LATE_S
            self.late_at = max(self.late_at, until)

    def validate(self, is_open: bool) -> None:
        """Raises AssertionError where the fields contradict each other."""
        attempt, stage = self.order.attempt, self.stage
        is_moving = stage in (Stage.SENDING, Stage.FETCHING)
        assert not is_moving or (is_open and self.worker), attempt
        assert (self.result is not None) == (stage is Stage.FETCHING), attempt
        assert self.late_at is None or stage is Stage.RUNNING, attempt
        assert not self.is_abandoned or stage is Stage.SENDING, attempt
        assert 0 <= self.tries <= TRIES, attempt

    @staticmethod
    def devices_of(held: Mapping[str, Held], devices: Mapping[str, int]) -> tuple[int, ...]:
        """The numbers of the devices that these are for."""
        return tuple(sorted({devices[one.order.device] for one in held.values()}))

    @staticmethod
    def validate_all(held: Mapping[str, Held], devices: Iterable[str], is_open: bool) -> None:
        sending = [one.order.device for one in held.values() if one.stage is Stage.SENDING]
        assert len(sending) == len(set(sending)), "two orders on the way to one device"
        for attempt, one in held.items():
            assert one.order.attempt == attempt and one.order.device in devices
            one.validate(is_open)


@dataclass(slots=True)
class Worker:
    """The process that a device's next order of the same job goes to."""

    job: int
    name: str
    is_started: bool = False  # it was given an order, and took it
    has_trained: bool = False  # or may have: its weights are no longer the job's first


class Workers:
    """Which worker a device's next order goes to: one for a device, at the most."""

    def __init__(self, devices: Mapping[str, int], epoch: int) -> None:
        self._indices, self._epoch = devices, epoch
        self.by_device: dict[str, Worker] = {}
        self._leaving: dict[str, str] = {}  # by device: it should go by itself, and may not
        self._hired = 0

    @property
    def names(self) -> list[str]:
        return [worker.name for worker in self.by_device.values()]

    def for_order(self, order: CopyOrder) -> tuple[str, str]:
        """The worker that holds this job on the device, or a new one, and whom it replaces."""
        worker = self.by_device.get(order.device)
        is_first = order.weights is None and not order.follows
        if worker and worker.job == order.job.id and not (is_first and worker.has_trained):
            return worker.name, ""
        self._hired += 1
        name = f"{self._indices[order.device]}-{order.job.id}-{self._hired}-e{self._epoch}"
        self.by_device[order.device] = Worker(order.job.id, name)
        leaving = self._leaving.pop(order.device, "")
        return name, worker.name if worker else leaving

    def holds(self, order: CopyOrder) -> bool:
        """Whether the device's worker holds the order's job."""
        worker = self.by_device.get(order.device)
        return worker is not None and worker.job == order.job.id

    def took(self, held: Held) -> None:
        """The attempt's worker was given its order."""
        order = held.order
        worker = self.by_device.setdefault(order.device, Worker(order.job.id, held.worker))
        if worker.name == held.worker:
            worker.is_started = True
            worker.has_trained |= bool(order.steps)

    def is_there(self, held: Held) -> bool:
        """Whether the attempt's worker is the device's; orders sent ahead may outlive theirs."""
        worker = self.by_device.get(held.order.device)
        return worker is not None and worker.name == held.worker

    def forget(self, held: Held) -> None:
        """It is gone or going: the device's next copy starts anew, and tells it to leave."""
        if self.is_there(held):
            self._leaving[held.order.device] = self.by_device.pop(held.order.device).name

    def forget_unstarted(self, held: Held) -> None:
        if self.is_there(held) and not self.by_device[held.order.device].is_started:
            del self.by_device[held.order.device]

    def validate(self) -> None:
        assert set(self.by_device) <= set(self._indices)
        assert len(self.names) == len(set(self.names)), self.names


def checkpoints_of(held: Iterable[Held]) -> set[str]:
    """What the orders under way start from, or may still have to read."""
    return {digest for h in held for digest in (h.order.weights, h.order.optimizer) if digest}
