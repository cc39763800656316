"""A node that means harm: an SSH server on loopback that lets the head in and then misbehaves.

It speaks the protocol far enough to be believed: login, bootstrap, agent. What it says then is the
test's choice.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeAlias

import paramiko
from paramiko import common

from hadar_cli.core.model import Node
from hadar_cli.node.agent.bootstrap import MARK
from tests.support.sshd import make_key

Message: TypeAlias = dict[str, Any]


class Visitor:
    """The head, as the hostile node sees it: one command's streams."""

    def __init__(self, channel: paramiko.Channel, node: HostileNode) -> None:
        self.channel, self.node = channel, node
        self._in = channel.makefile("rb")
        self.become = ""

    def bootstrap(self) -> None:
        """As an honest node does it, with the code there already."""
        self._in.readline()
        self.become = json.loads(self._in.readline())["become"]
        self.say({"ready": True, "python": "3.11.0", "pid": 1})

    def say(self, *messages: object) -> None:
        for message in messages:
            self.write(f"{MARK}{json.dumps(message)}\n".encode())

    def write(self, content: bytes) -> None:
        self.channel.sendall(content)

    def complain(self, content: bytes) -> None:
        self.channel.sendall_stderr(content)

    def requests(self) -> Iterator[Message]:
        while line := self._in.readline():
            self.node.asked.append(json.loads(line))
            yield self.node.asked[-1]

    def take(self, count: int) -> bytes:
        return bytes(self._in.read(count))

    def flood(self, content: bytes, seconds: float = 60.0) -> None:
        """Sends the same over and over until nobody takes it any more."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.write(content)
            self.node.flooded += len(content)


Behaviour: TypeAlias = Callable[[Visitor], None]


class _Server(paramiko.ServerInterface):
    def __init__(self, node: HostileNode) -> None:
        self._node = node

    def check_channel_request(self, kind: str, chanid: int) -> int:
        return common.OPEN_SUCCEEDED

    def check_auth_publickey(self, username: str, key: paramiko.PKey) -> int:
        return common.AUTH_SUCCESSFUL

    def get_allowed_auths(self, username: str) -> str:
        return "publickey"

    def check_channel_forward_agent_request(self, channel: paramiko.Channel) -> bool:
        self._node.forwards.append("agent")
        return True

    def check_channel_exec_request(self, channel: paramiko.Channel, command: bytes) -> bool:
        self._node.commands.append(command.decode())
        threading.Thread(target=self._node.serve, args=(channel,), daemon=True).start()
        return True


class HostileNode:
    """Listens on a free port until closed; every command is dealt with by ``behaviour``."""

    def __init__(self, folder: Path, behaviour: Behaviour) -> None:
        self.behaviour = behaviour
        self.asked: list[Message] = []
        self.commands: list[str] = []
        self.forwards: list[str] = []
        self.flooded = 0
        make_key(folder / "host_key")
        make_key(folder / "id")
        self.key = paramiko.Ed25519Key.from_private_key_file(str(folder / "host_key"))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._transports: list[paramiko.Transport] = []
        pin = f"{self.key.get_name()} {self.key.get_base64()}"
        self.node = Node(
            "evil",
            "127.0.0.1",
            port=self._listener.getsockname()[1],
            user="me",
            identity_file=str(folder / "id"),
            host_key=pin,
        )
        threading.Thread(target=self._listen, daemon=True).start()

    def inventory_row(self) -> str:
        node = self.node
        return (
            f'[[node]]\nname = "{node.name}"\nhost = "127.0.0.1"\nport = {node.port}\nuser = "me"\n'
            f'identity_file = "{node.identity_file}"\nhost_key = "{node.host_key}"\n'
        )

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for transport in self._transports:
            transport.close()

    def serve(self, channel: paramiko.Channel) -> None:
        with suppress(OSError, EOFError, ValueError, KeyError):
            self.behaviour(Visitor(channel, self))
        with suppress(OSError, EOFError):
            channel.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
                transport = paramiko.Transport(connection)
                transport.add_server_key(self.key)
                self._transports.append(transport)
                transport.start_server(server=_Server(self))
            except (OSError, EOFError, paramiko.SSHException):
                if self._listener.fileno() < 0:
                    return


@contextmanager
def hostile(folder: Path, behaviour: Behaviour) -> Iterator[HostileNode]:
    folder.mkdir(exist_ok=True)
    node = HostileNode(folder, behaviour)
    try:
        yield node
    finally:
        node.close()
