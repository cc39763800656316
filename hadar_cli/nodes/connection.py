"""The ports on the way to a node, from bytes to files.

A ``Transport`` opens byte streams to a machine: SSH does, and Slurm, and so could kubectl. A
``NodeAccess`` starts a part of hadar there and speaks with it: the one way to a node, for runs and
visits alike. A ``Connection`` is what a run does with a node.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Generic, Protocol, TypeAlias, TypeVar

from hadar_cli.core.model import Job, Launch, Node
from hadar_cli.nodes.agent_client import AgentLink, OnEnd, OnEvent
from hadar_cli.nodes.wire import Stream, Wire

# what, bytes done, of how many, and in words where bytes do not tell
TellPrepared: TypeAlias = Callable[[str, int, int, str], None]
Listed: TypeAlias = tuple[str, int, int]  # a file that a job left: name, bytes, time in ns
TellMoved: TypeAlias = Callable[[int, int], None]  # bytes of a file that are there, of how many
_MOST_BYTES = 32 << 20  # of an answer
PATIENCE_S = 60.0  # with a stream of which nothing else is known


class CommandStream(Stream, Protocol):
    """A command's stdin and stdout."""

    def be_patient(self, patience_s: float | None) -> None:
        """Bounds each wait for its output; None is for ever."""
        ...

    def complaint(self) -> str:
        """The end of what it wrote to stderr; it is about to end, or has."""
        ...


class Transport(Protocol):
    """Byte streams to one machine. ``open`` and ``open_bulk`` are called by one thread at a time,
    ``abort``, ``close`` and ``heard_at`` by any."""

    def open(self, command: str) -> CommandStream:
        """Starts a command there, connecting first if need be.

        Raises LinkLostError, and RefusedError where security forbids to go on.
        """
        ...

    def open_bulk(self, command: str) -> CommandStream | None:
        """The same by a way that moves large files faster; None where there is no such way."""
        ...

    def heard_at(self) -> float:
        """When the last byte of any kind came, by time.monotonic; 0 where that is not known."""
        ...

    def abort(self) -> None:
        """Cuts all streams at once, from whatever thread."""
        ...

    def close(self) -> None:
        """Ends all streams; the next ``open`` connects anew."""
        ...

    def recalled(self, idle_s: float) -> str:
        """Why the machine is to be let go, as far as is known here; else "". It has had nothing to
        do for ``idle_s``."""
        ...

    def move_on(self) -> None:
        """The machine is about to be taken away: it is let go, and the next ``open`` is to another,
        where machines are allotted to us."""
        ...

    def give_back(self) -> None:
        """Nobody wants the machine any more: what was allotted or asked for is given back."""
        ...


def answer_of(transport: Transport, command: str, patience_s: float) -> tuple[str, str]:
    """What a short command says there, and what it complains of."""
    stream = transport.open(command)
    stream.be_patient(patience_s)
    try:
        content = bytearray()
        while (chunk := stream.read(1 << 16)) and len(content) < _MOST_BYTES:
            content += chunk
        return content.decode(errors="replace"), stream.complaint()
    finally:
        stream.close()


class NodeAccess(Protocol):
    """Starts parts of hadar on one node: ``agent``, ``visits``, ``transfer``."""

    node: Node

    def open(self, part: str, patience_s: float | None) -> Wire:
        """Starts the part; each wait for its words is bounded by ``patience_s``."""
        ...

    def heard_at(self) -> float: ...

    def abort(self) -> None: ...

    def close(self) -> None: ...

    def recalled(self, idle_s: float) -> str: ...

    def move_on(self) -> None: ...

    def give_back(self) -> None: ...


class Connection(Protocol):
    """What a run does with one node. ``push`` and ``pull`` go side by side, on threads of their
    own; ``abort`` comes from any thread; all else from one at a time."""

    node: Node
    directory: str
    token: str  # of the run
    nursery: str  # the folder of one that several nodes share; empty: the node has its own
    door: str  # runs of one door mean the same node; empty: the node knows by its SSH server

    def open_agent(self, on_event: OnEvent, on_end: OnEnd) -> AgentLink:
        """Connects, anew if it was connected before, and starts the agent."""
        ...

    def prepare(self, job: Job, tell: TellPrepared) -> None:
        """Puts there what takes long, such as the job's data; goes on where it was cut off."""
        ...

    def place(self, job: Job) -> Launch:
        """Puts a job's code on the node and says where it is there."""
        ...

    def push(
        self,
        digest: str,
        series: str,
        under_way: Callable[[], Collection[str]],
        tell: TellMoved = ...,
    ) -> str:
        """Where on the node the checkpoint is; sent unless it is there already.

        The node keeps the two newest of each ``series``, and all that orders ``under_way`` go by.
        ``tell`` is called while something moves, or is waited for that moves.
        """
        ...

    def pull(self, path: str, size: int, tell: TellMoved = ...) -> str:
        """Takes the node's file, of about that size, into the store and returns its hash."""
        ...

    def end_transfers(self) -> None:
        """Ends all pushes and pulls under way; the agent's link stays."""
        ...

    def list_out(self, job: int) -> tuple[list[Listed], int]:
        """The files that a job left for its user, and how many entries are not told."""
        ...

    def fetch_out(self, job: int, name: str, size: int, target: Path) -> None:
        """Takes one of these files, of that size at the most, to where there is none yet."""
        ...

    def heard_at(self) -> float:
        """When the last byte of any kind came from the node; 0 where that is not known."""
        ...

    def abort(self) -> None:
        """Cuts the connection at once, from whatever thread."""
        ...

    def close(self) -> None: ...

    def recalled(self, idle_s: float) -> str:
        """Why the node is to be let go; see ``Transport``."""
        ...

    def move_on(self) -> None:
        """The node is about to be taken away; see ``Transport``."""
        ...

    def give_back(self) -> None:
        """The run needs the node no longer; see ``Transport``."""
        ...


_Access = TypeVar("_Access", bound=NodeAccess)


class ThroughAccess(Generic[_Access]):
    """What every connection leaves to its access."""

    def __init__(self, access: _Access) -> None:
        self.node, self._access = access.node, access

    def open_agent(self, on_event: OnEvent, on_end: OnEnd) -> AgentLink:
        self.close()
        # No limit to its silence: it speaks when there is something to say.
        return AgentLink(self._access.open("agent", None), on_event, on_end)

    def heard_at(self) -> float:
        return self._access.heard_at()

    def abort(self) -> None:
        self._access.abort()

    def close(self) -> None:
        self._access.close()

    def recalled(self, idle_s: float) -> str:
        return self._access.recalled(idle_s)

    def move_on(self) -> None:
        self._access.move_on()

    def give_back(self) -> None:
        self._access.give_back()
