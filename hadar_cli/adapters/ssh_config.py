"""Where a node is and how to get in: its own fields first, then what ssh_config says.

The ``ssh`` command itself is asked (``ssh -G``), so that names mean here what they mean there;
where there is none, a node's host is taken as it stands. HADAR_SSH_CONFIG names another file
than ssh's own.
"""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hadar_cli.core.model import Node
from hadar_cli.errors import InputError

OWN_KNOWN_HOSTS = Path("~/.config/hadar/known_hosts")
_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
_LONGEST_CHAIN = 8


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One SSH server: the node itself, or a jump host on the way to it (``via``)."""

    host: str
    port: int
    user: str
    identity_files: tuple[Path, ...]
    known_hosts: tuple[Path, ...]
    host_key: str | None = None
    key_alias: str | None = None
    via: Endpoint | None = None
    proxy_command: str | None = None

    @property
    def known_as(self) -> str:
        """Its name in known_hosts."""
        name = self.key_alias or self.host
        return name if self.port == 22 or self.key_alias else f"[{name}]:{self.port}"

    def __str__(self) -> str:
        return f"{self.user}@{self.host}:{self.port}"


def endpoint_of(node: Node) -> Endpoint:
    """The node's SSH server, the jump hosts to it included."""
    user, _, host = node.host.rpartition("@")
    own = {
        "user": node.user or user,
        "port": str(node.port) if node.port else "",
        "identityfile": node.identity_file or "",
        "proxyjump": node.proxy_jump or "",
    }
    return _endpoint(host, own, node.known_hosts, node.host_key)


def _endpoint(
    host: str, own: Mapping[str, str], known_hosts: str | None, pin: str | None, depth: int = 0
) -> Endpoint:
    if depth > _LONGEST_CHAIN:
        raise InputError(f"the jump hosts to {host!r} have no end", field="node.proxy_jump")
    config = _ask_ssh(host)

    def first(key: str, default: str = "") -> str:
        value = own.get(key) or next(iter(config.get(key, ())), default)
        return "" if value.lower() == "none" else value

    jump = first("proxyjump")
    return Endpoint(
        host=first("hostname", host),
        port=int(first("port", "22")),
        user=first("user") or getpass.getuser(),
        identity_files=_identity_files(own, config),
        known_hosts=_known_hosts(known_hosts, config),
        host_key=pin,
        key_alias=first("hostkeyalias") or None,
        via=_via(jump, own, known_hosts, depth) if jump else None,
        proxy_command=None if jump else first("proxycommand") or None,
    )


def _via(jump: str, node: Mapping[str, str], known_hosts: str | None, depth: int) -> Endpoint:
    """The last of ``user@host:port,…``, reached through those before it, with the node's key."""
    before, _, last = jump.rpartition(",")
    place = last.removeprefix("ssh://")
    user, _, address = place.rpartition("@")
    host, _, port = address.rpartition(":") if _has_port(address) else (address, "", "")
    own = {"user": user, "port": port, "proxyjump": before, "identityfile": node["identityfile"]}
    return _endpoint(host.strip("[]"), own, known_hosts, None, depth + 1)


def _has_port(address: str) -> bool:
    return address.count(":") == 1 or "]:" in address


def _ask_ssh(host: str) -> dict[str, list[str]]:
    """What ssh would do for this name, by lower-case key; lists where a key may be repeated."""
    ssh = shutil.which("ssh")
    if not ssh:
        return {}
    other = os.environ.get("HADAR_SSH_CONFIG")
    words = [ssh, *(["-F", other] if other else []), "-G", host]
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, timeout=10, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise InputError(f"ssh -G {host} does not end: see ~/.ssh/config") from None
    if done.returncode:
        raise InputError(f"ssh cannot make sense of {host!r}: {done.stderr.strip()[-300:]}")
    config: dict[str, list[str]] = defaultdict(list)
    for line in done.stdout.splitlines():
        key, _, value = line.partition(" ")
        config[key].append(value)
    return config


def _identity_files(
    own: Mapping[str, str], config: Mapping[str, Sequence[str]]
) -> tuple[Path, ...]:
    """The one that the inventory names comes first."""
    named = [own["identityfile"], *config.get("identityfile", _KEYS)]
    return tuple(Path(name).expanduser() for name in named if name)


def _known_hosts(named: str | None, config: Mapping[str, Sequence[str]]) -> tuple[Path, ...]:
    """A file that the inventory names decides alone."""
    if named:
        return (Path(named).expanduser(),)
    users = " ".join(config.get("userknownhostsfile", ("~/.ssh/known_hosts",)))
    everyones = " ".join(config.get("globalknownhostsfile", ()))
    files = [OWN_KNOWN_HOSTS, *map(Path, f"{users} {everyones}".split())]
    return tuple(path.expanduser() for path in files)
