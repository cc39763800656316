"""A node's own addresses, and where a gang's members meet. Standard library only: this file runs on
nodes."""

from __future__ import annotations

import os
import socket
import struct
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from hadar_cli.node.contract import Membership

LOOPBACK = "127.0.0.1"
_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of an interface
# By these, torch.distributed and libraries above it know that they are to divide the work.
_TORCHS = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a gang meets: a file, of members on one node, or an address of rank 0's node."""

    path: str = ""
    host: str = ""
    port: int = 0


def place_of(meets_at: str) -> Place:
    parts = urlsplit(meets_at)
    if parts.scheme == "file" and parts.path:
        path = unquote(parts.path)
        return Place(path=str(Path(path[1:]).expanduser()) if path.startswith("/~") else path)
    if parts.scheme == "tcp" and parts.hostname and parts.port:
        return Place(host=parts.hostname, port=parts.port)
    raise ValueError(f"{meets_at!r} is no place to meet: file:///PATH or tcp://HOST:PORT")


def own_address(place: Place) -> str:
    """This node's address on the way to that place: what members listen on, and nothing else."""
    if place.path:
        return LOOPBACK
    family, kind, _, _, address = _resolved(place.host, place.port, socket.SOCK_DGRAM)
    with socket.socket(family, kind) as probe:  # sends nothing
        probe.connect(address)
        return str(probe.getsockname()[0])


def listening(host: str, port: int) -> socket.socket:
    """A socket at this address alone. Raises OSError where it is not ours, or taken."""
    family, kind, _, _, address = _resolved(host, port, socket.SOCK_STREAM)
    found = socket.socket(family, kind)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.listen(64)
    except OSError:
        found.close()
        raise
    return found


def free_port(host: str) -> int:
    """A port of that address that nobody uses now. Raises OSError where the address is not ours."""
    with listening(host, 0) as probe:
        port: int = probe.getsockname()[1]
        return port


def _resolved(host: str, port: int, kind: int) -> tuple[int, int, int, str, tuple[object, ...]]:
    return socket.getaddrinfo(host, port, type=kind)[0]


def interface_of(address: str) -> str:
    """The name of the network interface that has the address; empty where nobody can tell."""
    if not sys.platform.startswith("linux"):
        return ""
    import fcntl

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # it has no IPv4 address
                asked = struct.pack("256s", name.encode()[:15])
                found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, asked)
                if socket.inet_ntoa(found[20:24]) == address:
                    return name
    return ""


# -- torch's own variables -----------------------------------------------------------------------


def torch_variables(member: Membership) -> dict[str, str]:
    """What a script finds that calls ``init_process_group`` by itself.

    A worker sees one card only, so that its number on the node is 0 for all of them.
    """
    place = place_of(member.meets_at)
    host, port = place.host or LOOPBACK, place.port or _agreed_port(Path(place.path))
    given = (member.rank, 0, member.size, 1, host, port)
    found = {name: str(value) for name, value in zip(_TORCHS, given, strict=True)}
    if interface := interface_of(own_address(place)):
        found |= {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": interface}
    return found


def hide_torch_variables() -> None:
    """For scripts that leave sharing to hadar: their libraries must not begin to share, too."""
    for name in _TORCHS:
        os.environ.pop(name, None)


def _agreed_port(meeting: Path) -> int:
    """A port for the members who meet at this file: chosen by the one whose order comes first."""
    note = meeting.with_name(f"{meeting.name}.port")
    note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    mine = note.with_name(f"{note.name}.{os.getpid()}")
    mine.write_text(str(free_port(LOOPBACK)))
    with suppress(FileExistsError):
        os.link(mine, note)
    mine.unlink()
    return int(note.read_text())
