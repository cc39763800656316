"""What a trial has found so far; whoever looks at one part of a script writes it here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hadar_cli.trial.words import Check, Fault, Status

Tell = Callable[[Check], None]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a trial waits, in seconds: with who tells of its steps, only while it is silent."""

    start_s: float = 60.0  # for a copy's first steps, or the next
    deadline_s: float = 2.0  # of the order that is too long for it
    grace_s: float = 5.0  # past a deadline
    order_s: float = 3600.0  # of orders whose steps are to be done, however long they take
    leave_s: float = 8.0  # after SIGTERM; two more, and its node kills it


class Over(Exception):
    """Nothing more can be found out."""


class Findings:
    """Checks, told as soon as they are made, and what could not be looked at."""

    def __init__(self, tell: Tell) -> None:
        self._hear = tell
        self.checks: list[Check] = []
        self.unseen: list[str] = []

    def add(self, check: Check) -> None:
        self.checks.append(check)
        self._hear(check)

    def tell(self, name: str, what: str = "", status: Status = Status.PASSED) -> None:
        self.add(Check(name, status, what))

    def warn(self, name: str, fault: Fault) -> None:
        self.add(Check(name, Status.WARNED, fault.what, fault.fix))

    def demand(self, name: str, fault: Fault | None) -> None:
        """A fault after which nothing more can be said ends the trial."""
        if fault:
            self.add(fault.at(name))
            raise Over
