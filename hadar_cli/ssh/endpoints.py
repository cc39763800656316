"""Where a node is and how to get in: its own fields first, then what ssh_config says.

The ``ssh`` command itself is asked (``ssh -G``), so that names mean here what they mean there;
where there is none, a node's host is taken as it stands. HADAR_SSH_CONFIG names another file
than ssh's own.
"""

from __future__ import annotations

import getpass
import os
import re
import shlex
import shutil
import socket
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hadar_cli.core.model import Node
from hadar_cli.errors import InputError
from hadar_cli.node.contract import SSH_CONFIG

OWN_KNOWN_HOSTS = Path("~/.config/hadar/known_hosts")
KEY_TOKENS = "HIKft"  # of KnownHostsCommand: they change with the key that is looked for
_KEYS = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
_LONGEST_CHAIN = 8
TOKEN = re.compile(r"%(.?)")
_VARIABLE = re.compile(r"\$\{(\w+)\}")
_HASH = re.compile(r"[0-9a-f]{40}")
_ONE_WORD = re.compile(r"[\w.:@%+-]*")


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
    certificate_files: tuple[Path, ...] = ()
    identities_only: bool = False  # the agent is asked for these identities and no others
    agent_socket: str | None = field(default_factory=lambda: os.environ.get("SSH_AUTH_SOCK"))
    revoked_keys: Path | None = None
    known_hosts_command: tuple[str, ...] = ()  # tells more of known_hosts, key by key
    key_algorithms: tuple[str, ...] = ()  # HostKeyAlgorithms, by which a host key is asked for

    @property
    def known_as(self) -> str:
        """Its name in known_hosts."""
        return self.name if self.port == 22 or self.key_alias else f"[{self.name}]:{self.port}"

    @property
    def name(self) -> str:
        """Its name in certificates, and in known_hosts where the port is not told."""
        return self.key_alias or self.host.lower()

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
    name: str, own: Mapping[str, str], known_hosts: str | None, pin: str | None, depth: int = 0
) -> Endpoint:
    if depth > _LONGEST_CHAIN:
        raise InputError(f"the jump hosts to {name!r} have no end", field="node.proxy_jump")
    config = _ask_ssh(name, own)

    def first(key: str, default: str = "") -> str:
        value = own.get(key) or next(iter(config.get(key, ())), default)
        return "" if value.lower() == "none" else value

    host, alias = first("hostname", name), first("hostkeyalias")
    user, port = first("user") or getpass.getuser(), int(first("port", "22"))
    tokens = {"%": "%", "h": host, "n": name, "p": str(port), "r": user}
    jump = _expand(first("proxyjump"), tokens, TOKEN)
    every_token = {**tokens, **_local_tokens(), "k": alias or host, "j": jump}
    if _HASH.fullmatch(mixed := first("controlpath")):
        every_token["C"] = mixed

    def paths(key: str, default: Sequence[str] = ()) -> list[Path]:
        named = [name for name in config.get(key, default) if name.lower() != "none"]
        return [_path(name, every_token) for name in named]

    own_identity = [Path(own["identityfile"]).expanduser()] if own["identityfile"] else []
    return Endpoint(
        host=host,
        port=port,
        user=user,
        identity_files=tuple(dict.fromkeys([*own_identity, *paths("identityfile", _KEYS)])),
        known_hosts=_known_hosts(known_hosts, config),
        host_key=pin,
        key_alias=alias or None,
        via=_via(jump, own, known_hosts, depth) if jump else None,
        proxy_command=None if jump else _proxy_command(first("proxycommand"), tokens),
        certificate_files=tuple(paths("certificatefile")),
        identities_only=first("identitiesonly") == "yes",
        agent_socket=_agent_socket(first("identityagent", "SSH_AUTH_SOCK")),
        revoked_keys=next(iter(paths("revokedhostkeys")), None),
        known_hosts_command=()
        if known_hosts
        else _known_hosts_command(first("knownhostscommand"), every_token),
        key_algorithms=tuple(first("hostkeyalgorithms").split(",")),
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


def _ask_ssh(host: str, own: Mapping[str, str]) -> dict[str, list[str]]:
    """What ssh would do for this name, by lower-case key; lists where a key may be repeated."""
    ssh = shutil.which("ssh")
    if not ssh:
        return {}
    other = os.environ.get(SSH_CONFIG)
    words = [ssh, *(["-F", other] if other else []), "-G", "-o", "ControlPath=%C"]  # tells %C
    for flag, value in (("-l", own.get("user")), ("-p", own.get("port"))):
        words += [flag, value] if value else []  # as "Match user" and tokens go by them
    try:
        done = subprocess.run(
            [*words, "--", host],
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
            stdin=subprocess.DEVNULL,
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


# -- what ssh -G leaves as it was written ----------------------------------------------------------


def _expand(text: str, tokens: Mapping[str, str | None], pattern: re.Pattern[str]) -> str:
    def value(found: re.Match[str]) -> str:
        known = tokens.get(found[1])
        if known is None:
            raise InputError(
                f"{text!r} in ssh_config: nothing is known to put in place of {found[0]!r}",
                fix="write the value itself there, or %% for a percent sign",
            )
        return known

    return pattern.sub(value, text)


def _path(name: str, tokens: Mapping[str, str]) -> Path:
    return Path(_expand(_expand(name, tokens, TOKEN), os.environ, _VARIABLE)).expanduser()


def _local_tokens() -> dict[str, str]:
    local = socket.gethostname()
    home, uid = str(Path.home()), str(os.getuid())
    return {"u": getpass.getuser(), "d": home, "i": uid, "l": local, "L": local.partition(".")[0]}


def _proxy_command(command: str, tokens: Mapping[str, str]) -> str | None:
    """A shell reads it, so that what is put into it must be one word there."""
    for token in TOKEN.findall(command):
        if not _ONE_WORD.fullmatch(tokens.get(token, "")):
            raise InputError(
                f"{tokens[token]!r} cannot be put into ProxyCommand {command!r}",
                fix="use names of letters, digits and . _ - + @ : only",
            )
    return _expand(command, tokens, TOKEN) or None


def _known_hosts_command(command: str, tokens: Mapping[str, str]) -> tuple[str, ...]:
    """Its words, with what is known of them before the host shows a key."""
    later = {"%": "%%", **{token: f"%{token}" for token in KEY_TOKENS}}
    words = (_expand(word, os.environ, _VARIABLE) for word in shlex.split(command))
    return tuple(_expand(word, {**tokens, **later}, TOKEN) for word in words)


def _agent_socket(named: str) -> str | None:
    """IdentityAgent: a path, the name of a variable, or none."""
    if named == "SSH_AUTH_SOCK" or named.startswith("$"):
        return os.environ.get(named.strip("${}")) or None
    return str(Path(named).expanduser()) if named else None  # older versions of ssh -G leave ~


def _known_hosts(named: str | None, config: Mapping[str, Sequence[str]]) -> tuple[Path, ...]:
    """A file that the inventory names decides alone."""
    if named:
        return (Path(named).expanduser(),)
    users = _split(*config.get("userknownhostsfile", ("~/.ssh/known_hosts",)))
    everyones = _split(*config.get("globalknownhostsfile", ()))
    return tuple(path.expanduser() for path in (OWN_KNOWN_HOSTS, *users, *everyones))


def _split(line: str = "") -> list[Path]:
    """File names of one line. Blanks may be part of them: what is there as a file is one name."""
    words, found = line.split(" "), []
    while words and line != "none":
        lengths = range(len(words), 0, -1)
        is_file = (n for n in lengths if Path(" ".join(words[:n])).expanduser().is_file())
        count = next(is_file, 1)
        found.append(Path(" ".join(words[:count])))
        words = words[count:]
    return found
