"""This machine as a node: the agent is a child process, files are already where they are needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from hadar_cli.adapters.agent_link import AgentLink, Message
from hadar_cli.adapters.store import RunStore
from hadar_cli.core.model import Node
from hadar_cli.node import agent


class LocalConnection:
    """Opens the agent of a ``host = "local"`` node, working below the run's own directory."""

    def __init__(self, node: Node, store: RunStore) -> None:
        self.node = node
        self.directory = str((store.directory / "nodes" / node.name).resolve())
        self._store = store
        self._process: subprocess.Popen[bytes] | None = None

    def open_agent(
        self, on_event: Callable[[Message], None], on_end: Callable[[], None]
    ) -> AgentLink:
        # A session of its own: Ctrl-C in the terminal is the head's to handle, not the agent's.
        self._process = subprocess.Popen(
            [self.node.python or sys.executable, "-I", str(Path(agent.__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._process.stdin and self._process.stdout
        return AgentLink(self._process.stdin, self._process.stdout, on_event, on_end)

    def push(self, digest: str) -> str:
        """Where the node finds the checkpoint."""
        return str(self._store.object_path(digest).resolve())

    def pull(self, path: str) -> str:
        """Takes the node's file into the store and returns its hash."""
        return self._store.take_in(Path(path))

    def close(self) -> None:
        if self._process:
            try:
                self._process.wait(5.0)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
