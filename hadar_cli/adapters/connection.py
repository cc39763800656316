"""What it takes to reach a node; local.py and ssh.py do."""

from __future__ import annotations

from typing import Protocol

from hadar_cli.adapters.agent_link import AgentLink, OnEnd, OnEvent
from hadar_cli.core.model import Launch, Node


class Connection(Protocol):
    """How to reach one node. All but ``abort`` are called on the node's thread only."""

    node: Node
    directory: str
    token: str  # of the run

    def open_agent(self, on_event: OnEvent, on_end: OnEnd) -> AgentLink:
        """Connects, anew if it was connected before, and starts the agent."""
        ...

    def place(self, launch: Launch) -> Launch:
        """Puts a job's code on the node and says where it is there."""
        ...

    def push(self, digest: str) -> str:
        """Where on the node the checkpoint is; sent unless it is there already."""
        ...

    def pull(self, path: str, size: int) -> str:
        """Takes the node's file, of about that size, into the store and returns its hash."""
        ...

    def heard_at(self) -> float:
        """When the last byte of any kind came from the node; 0 where that is not known."""
        ...

    def abort(self) -> None:
        """Cuts the connection at once, from whatever thread."""
        ...

    def close(self) -> None: ...
