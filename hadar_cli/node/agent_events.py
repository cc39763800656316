"""What an agent tells the head of an attempt: how far it is, that it finished, that its worker is
gone. Standard library only: this file runs on nodes."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from hadar_cli.node.contract import write_atomically


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a copy is, as it leaves it every second or so."""

    steps: int
    seconds: float
    loss: float | None = None
    phase: str = ""  # what it is about now, see phases.py
    longest_s: float = 0.0  # the longest such phase of this process so far; 0: not known yet

    def write(self, path: Path) -> None:
        write_atomically(path, asdict(self))


@dataclass(frozen=True, slots=True)
class Finished:
    """The copy left a result; ``checkpoint`` is where its weights lie, None if it left none."""

    result: dict[str, Any]  # the script's JSON; the head reads it as a Result
    checkpoint: str | None = None
    bytes: int = 0


class WorkerEnd(str, Enum):
    """Why a worker is gone."""

    EXITED = "exited"  # by itself, or by a signal from elsewhere
    RELEASED = "released"  # the head told it to leave
    NO_LEASE = "no-lease"
    DEADLINE = "deadline"
    NEVER_STARTED = "never-started"
    NO_NURSERY = "no-nursery"  # the process that was to fork it is gone
    NO_DISK = "no-disk"
    OUT_OF_MEMORY = "out-of-memory"  # the machine's own: its kernel killed somebody
    SUPERVISOR_KILLED = "supervisor-killed"
    CARD_TAKEN = "card-taken"  # another run holds its GPU: it was not started


@dataclass(frozen=True, slots=True)
class Exited:
    """The copy's worker is gone, without a result; what that means is the head's to say."""

    code: int
    end: str  # a WorkerEnd
    detail: str = ""
    log: str = ""


def event_message(attempt: str, event: Progress | Finished | Exited) -> dict[str, Any]:
    """What has happened to an attempt, as the agent tells it."""
    return {"event": type(event).__name__.lower(), "attempt": attempt, **asdict(event)}
