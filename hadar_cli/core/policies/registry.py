"""What a policy is, and where policies are found by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar

from hadar_cli.core.model import Job, PolicyChoice
from hadar_cli.errors import InputError, nearest


@dataclass(frozen=True, slots=True)
class JobView:
    """A job as a policy sees it. ``free_steps`` are those that no copy has done or holds."""

    job: Job
    free_steps: int
    remaining_steps: int
    solo_steps: int = 0  # > 0: only one copy at a time, and no more than this many steps
    copies_active: int = 0


@dataclass(frozen=True, slots=True)
class ClusterView:
    """All that a policy may know when it decides."""

    seconds: float  # left in the slot
    devices: tuple[str, ...]  # free to be given work
    jobs: tuple[JobView, ...]
    rate: Callable[[int, str], float]  # steps per second of a job on a device
    current: Mapping[str, int]  # the job whose copy waits, warm, on each device
    start_cost_s: float = 0.0  # of a copy that is not warm


@dataclass(frozen=True, slots=True)
class Stint:
    """So many steps of a job on one device."""

    job: int
    device: str
    steps: int


class Policy(Protocol):
    """Decides who trains what; returns data and touches nothing."""

    name: ClassVar[str]

    def plan(self, view: ClusterView) -> list[Stint]:
        """Stints for the view's devices; a device runs its own in the order given."""
        ...


_POLICIES: dict[str, type[Any]] = {}
_P = TypeVar("_P", bound=type[Any])


def register(policy: _P) -> _P:
    """Class decorator: a frozen dataclass with ``name`` and ``plan`` joins the registry."""
    _POLICIES[policy.name] = policy
    return policy


def names() -> list[str]:
    _load_all()
    return sorted(_POLICIES)


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
    for field, value in choice.fields.items():
        if field not in known:
            hint = nearest(field, known)
            raise InputError(
                f"policy {choice.name!r} has no field {field!r}"
                + (f"; did you mean {hint!r}?" if hint else ""),
                file=file,
                line=choice.line,
                field=f"policy.{field}",
                fix=f"its fields are: {', '.join(known) or 'none'}",
            )
        default = known[field].default
        if not isinstance(value, (type(default), int) if type(default) is float else type(default)):
            raise InputError(
                f"{value!r} is not a {type(default).__name__}",
                file=file,
                line=choice.line,
                field=f"policy.{field}",
            )
    made: Policy = policy(**choice.fields)
    return made


def _load_all() -> None:
    from hadar_cli.core.policies import hadare  # noqa: F401 - registers itself
