"""Makes host keys known: fetches what machines show, and records what the user has taken.

Connections are opened as always, and refused as always; a refusal brings the key along.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hadar_cli.core.model import Node
from hadar_cli.errors import RefusedError
from hadar_cli.ssh import host_keys as ssh_keys
from hadar_cli.ssh.endpoints import Endpoint, endpoint_of
from hadar_cli.ssh.link import SshLink


@dataclass(frozen=True, slots=True)
class ShownKey:
    """The key that a machine shows. ``line`` is what known_hosts says of it once it is trusted."""

    name: str
    kind: str
    fingerprint: str
    line: str
    file: Path
    is_known: bool


def shown_keys(node: Node) -> Iterator[ShownKey]:
    """The keys of the node and of the jump hosts on the way, the nearest machine first.

    It stops at the first that is not known: what lies behind can only be reached through it.
    Raises RefusedError for a key that has changed.
    """
    chain: list[Endpoint] = []
    end: Endpoint | None = endpoint_of(node)
    while end:
        chain.insert(0, end)
        end = end.via
    for endpoint in chain:
        shown = _look_at(endpoint)
        yield shown
        if not shown.is_known:
            return


def _look_at(endpoint: Endpoint) -> ShownKey:
    try:
        with SshLink(endpoint, login=False) as link:
            link.open()
            key, is_known = link.host_key, True
    except ssh_keys.UnknownKeyError as error:
        key, is_known = error.key, False
    return ShownKey(
        name=endpoint.known_as,
        kind=key.get_name(),
        fingerprint=ssh_keys.fingerprint(key),
        line=f"{endpoint.known_as} {key.get_name()} {key.get_base64()}\n",
        file=endpoint.known_hosts[0],
        is_known=is_known,
    )


def record(key: ShownKey) -> None:
    """Adds the key, exactly as it was shown, to the file that connections consult first."""
    try:
        key.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(key.file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        with os.fdopen(descriptor, "r+b") as file:
            before = file.read()
            if before and not before.endswith(b"\n"):
                file.write(b"\n")
            file.write(key.line.encode())
    except OSError as error:
        raise RefusedError(
            f"{key.file} cannot be written: {error.strerror}",
            fix="name another file in nodes.toml: known_hosts = ...",
        ) from error
