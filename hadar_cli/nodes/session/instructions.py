"""What a session may want done; each says which event answers it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from hadar_cli.engine.ports import CopyOrder, Report


@dataclass(frozen=True, slots=True)
class Connect:
    """Close what is open, wait, start an agent (see ``opening``); then ``opened``/``unreachable``.

    There is one at a time, and nothing else is to be done until it is answered.
    """

    after_s: float = 0.0
    moves_on: bool = False  # from a machine that is about to be taken away, to another


@dataclass(frozen=True, slots=True)
class Send:
    """Put code and checkpoint there, then give the order; then ``ordered`` or ``order_refused``."""

    order: CopyOrder
    worker: str
    instead_of: str = ""  # a worker to release first


@dataclass(frozen=True, slots=True)
class Fetch:
    """Take the copy's checkpoint into the store; then ``fetched`` or ``fetch_refused``."""

    attempt: str
    path: str
    size: int


@dataclass(frozen=True, slots=True)
class Release:
    """Ask a worker to hand in what it has, and to leave."""

    worker: str


@dataclass(frozen=True, slots=True)
class Forget:
    """The agent may remove the attempt's files."""

    attempt: str


@dataclass(frozen=True, slots=True)
class Renew:
    """The head lives: so may the workers. It has use for these devices, by their numbers."""

    wanted: tuple[int, ...] = ()


@dataclass(slots=True)
class Renewals:
    """When a node is asked to renew its lease: whenever it says nothing by itself, or is to know
    something new, else as rarely as the lease allows, which lasts for twenty looks."""

    _every: int = 3  # looks
    _passed: int = 2  # since the last one
    _wanted: tuple[int, ...] = ()

    def due(self, unheard: int, wanted: tuple[int, ...]) -> list[Renew]:
        """At a look, after so many at which nothing was heard."""
        self._passed += 1
        if not unheard and self._passed < self._every and wanted == self._wanted:
            return []
        self._passed, self._wanted = 0, wanted
        return [Renew(wanted)]


@dataclass(frozen=True, slots=True)
class EndWorkers:
    """At once, and all."""


@dataclass(frozen=True, slots=True)
class Abort:
    """Cut the connection, whoever waits for it."""


@dataclass(frozen=True, slots=True)
class Disconnect:
    """For good; a machine that is rented or allotted is given back, unless it is another head's."""

    gives_back: bool = True


@dataclass(frozen=True, slots=True)
class Tell:
    """Report to the head."""

    report: Report


Instruction: TypeAlias = (
    Connect | Send | Fetch | Release | Forget | Renew | EndWorkers | Abort | Disconnect | Tell
)
