"""What people ask of a run: files in its directory, for whichever head drives it to take up.

runs/<id>/inbox/<request>.json: whole from the moment it has its name, and gone once the journal
says what became of it. A request whose number the journal knows is never granted again.
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, get_args

import msgspec

from hadar_cli.core.model import Job, Node
from hadar_cli.runs.store import RunStore, storage_errors, write_durably
from hadar_cli.typed import convert


@dataclass(frozen=True, slots=True)
class AddJobs:
    """Jobs of another mix; the head numbers them, and says when they arrived."""

    jobs: tuple[Job, ...]
    renames: bool = False  # those whose names are taken, in place of refusing them


@dataclass(frozen=True, slots=True)
class CancelJobs:
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PauseJobs:
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ContinueJobs:
    jobs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SetPriority:
    jobs: tuple[str, ...]
    priority: int


@dataclass(frozen=True, slots=True)
class AddNodes:
    nodes: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class DrainNode:
    node: str


@dataclass(frozen=True, slots=True)
class CloseQueue:
    """No more work will come."""


Request: TypeAlias = (
    AddJobs
    | CancelJobs
    | PauseJobs
    | ContinueJobs
    | SetPriority
    | AddNodes
    | DrainNode
    | CloseQueue
)
_KINDS = {kind.__name__: kind for kind in get_args(Request)}


class Inbox:
    """The requests of one run that no head has answered yet."""

    def __init__(self, store: RunStore) -> None:
        self._folder = store.directory / "inbox"

    def put(self, request: Request, number: str = "") -> str:
        """Leaves a request and returns its number; later ones have larger numbers. With a number of
        its own, it is the same request however often it is left."""
        number = number or f"{time.time_ns():020d}-{secrets.token_hex(3)}"
        with storage_errors(self._folder):
            self._folder.mkdir(mode=0o700, exist_ok=True)
            body = msgspec.json.encode([type(request).__name__, request])
            write_durably(self._path(number), body)
        return number

    def waiting(self) -> list[str]:
        """Numbers of the requests, oldest first; what is no file is nobody's request."""
        try:
            return sorted(path.stem for path in self._folder.glob("*.json") if path.is_file())
        except OSError:
            return []

    def read(self, number: str) -> Request:
        """Raises ValueError where the file is none that ``put`` has left."""
        try:
            kind, body = json.loads(self._path(number).read_bytes())
            request: Request = convert(body, _KINDS[kind])
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ValueError(f"its file cannot be read: {error}") from error
        return request

    def take_back(self, number: str) -> bool:
        """Removes the request; whether it was still there."""
        try:
            self._path(number).unlink()
        except FileNotFoundError:
            return False
        return True

    def _path(self, number: str) -> Path:
        return self._folder / f"{number}.json"
