"""What a policy sees and answers, and how it makes itself known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from hadar_cli.core.estimates.throughput import Rates
from hadar_cli.core.model import Device, Job
from hadar_cli.core.policies.job_queue import JobQueue


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as a policy sees it. ``free_steps`` are those that no copy has done or holds."""

    job: Job
    free_steps: int
    remaining_steps: int
    solo_steps: int = 0  # > 0: only one copy at a time, and no more than this many steps
    copies_active: int = 0
    copies_that_pay: int | None = None  # None: not known yet
    too_dear: frozenset[str] = frozenset()  # devices that cost a merge more than they bring
    may_share: bool = False  # several devices may do its steps together

    @property
    def room(self) -> int | None:
        """How many copies more may start now; None: as many as one likes."""
        most = 1 if self.job.mode == "alone" else self.job.fork or self.copies_that_pay
        if self.solo_steps:
            most = 1
        return None if most is None else max(0, most - self.copies_active)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """All that a policy may know when it decides."""

    now_s: float
    slot_s: float
    seconds: float  # left in the slot; less than ``slot_s`` when devices came free inside it
    devices: tuple[str, ...]  # free to be given work
    jobs: Callable[[], Sequence[JobView]]  # of forking policies; made only when asked for
    rates: Rates
    current: Mapping[str, int] = field(default_factory=dict)  # warm job of each device
    busy_s: Mapping[str, float] = field(default_factory=dict)  # devices free only after so long
    start_cost_s: float = 0.0  # of a copy that is not warm
    cluster: tuple[Device, ...] = ()  # every device that is not lost
    queue: JobQueue = field(
        default_factory=JobQueue.empty
    )  # jobs that have arrived and are not done
    running: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # gangs under way
    progress: Callable[[], Mapping[int, int]] = dict  # their steps so far, uncommitted


@dataclass(frozen=True, slots=True)
class Stint:
    """So many steps of a job on one device, or on all devices of its ``gang``."""

    job: int
    device: str
    steps: int
    gang: tuple[str, ...] = ()

    @property
    def devices(self) -> tuple[str, ...]:
        return self.gang or (self.device,)


class Policy(Protocol):
    """Decides who trains what; returns data and touches nothing."""

    @property
    def name(self) -> str: ...

    @property
    def forks(self) -> bool:
        """Whether copies of one job train at once, to be merged at the end of each slot."""
        ...

    def plan(self, view: ClusterView) -> list[Stint]:
        """Stints for the view's devices; a device runs its own in the order given."""
        ...


REGISTERED: dict[str, type[Any]] = {}
_P = TypeVar("_P", bound=type[Any])


def register(policy: _P) -> _P:
    """Class decorator: a frozen dataclass with ``name`` and ``plan`` can be chosen by its name."""
    REGISTERED[policy.name] = policy
    return policy
