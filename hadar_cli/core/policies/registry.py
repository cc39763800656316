"""What a policy is, and where policies are found by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from typing import Any, Protocol, TypeVar

from hadar_cli.core.lineup import Lineup
from hadar_cli.core.model import Device, Job, PolicyChoice
from hadar_cli.core.throughput import Rates
from hadar_cli.errors import HadarError, InputError, nearest


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as a policy sees it. ``free_steps`` are those that no copy has done or holds."""

    job: Job
    free_steps: int
    remaining_steps: int
    solo_steps: int = 0  # > 0: only one copy at a time, and no more than this many steps
    copies_active: int = 0
    copies_that_pay: int | None = None  # None: not known yet

    @property
    def room(self) -> int | None:
        """How many copies more may start now; None: as many as one likes."""
        most = self.job.fork or self.copies_that_pay
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
    queue: Lineup = field(default_factory=Lineup.empty)  # jobs that have arrived and are not done
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


ENTRY_POINTS = "hadar.policies"  # where installed packages offer policies of their own

_POLICIES: dict[str, type[Any]] = {}
_P = TypeVar("_P", bound=type[Any])


def register(policy: _P) -> _P:
    """Class decorator: a frozen dataclass with ``name`` and ``plan`` joins the registry."""
    _POLICIES[policy.name] = policy
    return policy


def names() -> list[str]:
    _load_all()
    return sorted(_POLICIES)


def find(name: str) -> type[Any]:
    """The class of a policy that exists."""
    _load_all()
    return _POLICIES[name]


def create(choice: PolicyChoice, file: str | None = None) -> Policy:
    """The chosen policy with its fields set; unknown names and fields are the user's to mend."""
    _load_all()
    if choice.name not in _POLICIES:
        hint = nearest(choice.name, _POLICIES)
        raise InputError(
            f"there is no policy {choice.name!r}" + (f"; did you mean {hint!r}?" if hint else ""),
            file=file,
            line=choice.line,
            field="policy",
            fix=f"use one of: {', '.join(sorted(_POLICIES))}",
        )
    policy = _POLICIES[choice.name]
    known = {f.name: f for f in dataclasses.fields(policy)}
    for name, value in choice.fields.items():
        if name not in known:
            hint = nearest(name, known)
            raise InputError(
                f"policy {choice.name!r} has no field {name!r}"
                + (f"; did you mean {hint!r}?" if hint else ""),
                file=file,
                line=choice.line,
                field=f"policy.{name}",
                fix=f"its fields are: {', '.join(known) or 'none'}",
            )
        default = known[name].default
        if type(value) not in ((float, int) if type(default) is float else (type(default),)):
            raise InputError(
                f"{value!r} is not a {type(default).__name__}",
                file=file,
                line=choice.line,
                field=f"policy.{name}",
                fix=f"its default is {default!r}",
            )
    try:
        made = policy(**choice.fields)
    except InputError as error:  # a policy knows its values, not where they stand
        error.file, error.line = file, choice.line
        raise
    if hasattr(made, "allocate"):
        from hadar_cli.core.policies.gangs import GangScheduler

        return GangScheduler(made)
    forking: Policy = made
    return forking


@cache
def _load_all() -> None:
    from hadar_cli.core.policies import (  # noqa: F401 - they register themselves
        gavel,
        hadar,
        hadare,
        tiresias,
        yarn_cs,
    )

    for entry in entry_points(group=ENTRY_POINTS):
        try:
            register(entry.load())
        except Exception as error:  # other people's code: anything may be wrong with it
            raise HadarError(
                f"the policy {entry.name!r} of {entry.value!r} cannot be loaded: {error!r}",
                fix="mend or uninstall the package that brings it",
            ) from error
