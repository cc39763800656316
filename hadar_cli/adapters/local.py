"""This machine as a node: the agent is a child process, files are already where they are needed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hadar_cli.adapters.agent_link import AgentLink, OnEnd, OnEvent
from hadar_cli.adapters.store import RunStore
from hadar_cli.adapters.wire import AgentError, ProcessStream, Wire
from hadar_cli.core.model import Launch, Node
from hadar_cli.node import agent


class LocalConnection:
    """Opens the agent of a ``host = "local"`` node, working below the run's own directory."""

    def __init__(self, node: Node, store: RunStore) -> None:
        self.node = node
        self.directory = str((store.directory / "nodes" / node.name).resolve())
        self._store, self.token = store, store.facts.token
        self._process: subprocess.Popen[bytes] | None = None
        self._stream: ProcessStream | None = None

    def open_agent(self, on_event: OnEvent, on_end: OnEnd) -> AgentLink:
        python = Path(self.node.python).expanduser() if self.node.python else sys.executable
        # A session of its own: Ctrl-C in the terminal is the head's to handle, not the agent's.
        self._process = subprocess.Popen(
            [python, "-I", Path(agent.__file__).resolve()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # the terminal is the live view's
            start_new_session=True,
        )
        self._stream = ProcessStream(self._process, patience_s=None)
        return AgentLink(Wire(self._stream), on_event, on_end)

    def place(self, launch: Launch) -> Launch:
        return launch

    def push(self, digest: str) -> str:
        return str(self._store.object_path(digest).resolve())

    def pull(self, path: str, size: int) -> str:
        try:
            return self._store.take_in(Path(path))
        except ValueError as error:
            raise AgentError(str(error)) from error

    def heard_at(self) -> float:
        return 0.0

    def abort(self) -> None:
        if self._process:
            self._process.kill()

    def close(self) -> None:
        if self._stream:
            self._stream.close()
