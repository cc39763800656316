"""Reads known_hosts files as ssh does: patterns, hashed names, authorities, revoked keys."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hadar_cli.nodes.wire import LinkLostError

_MARKERS = {"@cert-authority", "@revoked"}
_CERTIFIED = "-cert-v01@openssh.com"
_COMMAND_S = 15.0
# How many fields a key of each kind has, its name included.
_FIELDS = {
    "ssh-ed25519": 2,
    "ssh-rsa": 3,
    "ssh-dss": 5,
    **dict.fromkeys((f"ecdsa-sha2-nistp{bits}" for bits in (256, 384, 521)), 3),
    "sk-ssh-ed25519@openssh.com": 3,
    "sk-ecdsa-sha2-nistp256@openssh.com": 4,
}


@dataclass(frozen=True, slots=True)
class KnownKey:
    """One line of the file: a host's key, or by its marker an authority's or a revoked one."""

    marker: str
    kind: str
    blob: bytes


def known_keys(name: str, paths: Iterable[Path]) -> list[KnownKey]:
    """All that these files say about a name, such as ``gpu.lab`` or ``[gpu.lab]:2222``."""
    found = []
    for path in paths:
        if path.is_file():
            lines = path.read_bytes().decode(errors="replace").split("\n")
            found += [key for names, key in _read(lines) if matches(name, names)]
    return found


def ask_command(words: Sequence[str], name: str) -> list[KnownKey]:
    """What KnownHostsCommand says about a name. Where it fails, nobody knows whom to trust."""
    try:
        asked = subprocess.run(
            words,
            capture_output=True,
            timeout=_COMMAND_S,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LinkLostError(f"KnownHostsCommand {words[0]}: {error}") from error
    if asked.returncode:
        said = asked.stderr.decode(errors="replace").strip()[-300:]
        raise LinkLostError(f"KnownHostsCommand {words[0]} ended with {asked.returncode}: {said}")
    lines = asked.stdout.decode(errors="replace").split("\n")
    return [key for names, key in _read(lines) if matches(name, names)]


def is_in_list(blob: bytes, path: Path) -> bool:
    """Whether the file that RevokedHostKeys names has this key; one that cannot be read has all.

    It is a list of keys, or in a format that ssh-keygen knows.
    """
    key = base64.b64encode(blob)
    try:
        content = path.read_bytes()
        if not content.startswith(b"SSHKRL"):
            return key in content.split()
        kind = blob[4 : 4 + int.from_bytes(blob[:4], "big")]
        words = ["ssh-keygen", "-Q", "-f", str(path), "/dev/stdin"]
        asked = subprocess.run(words, input=kind + b" " + key, capture_output=True, check=False)
        return asked.returncode != 0
    except OSError:
        return True


def _read(lines: Iterable[str]) -> Iterator[tuple[str, KnownKey]]:
    """Names and key of each line. As ssh does, lines that make no sense are passed over."""
    for line in lines:
        words = line.replace("\t", " ").replace("\r", " ").split(" ")
        words = [word for word in words if word]
        marker = words.pop(0) if words and words[0].startswith("@") else ""
        if len(words) < 3 or words[0].startswith("#") or marker not in {"", *_MARKERS}:
            continue
        names, kind, key = words[:3]
        with suppress(binascii.Error):
            blob = base64.b64decode(key, validate=True)
            if is_key(kind, blob):
                yield names, KnownKey(marker, kind, blob)


def is_key(kind: str, blob: bytes) -> bool:
    """Whether it is whole, and of the kind that the line names."""
    fields, rest = [], blob
    while len(rest) >= 4:
        end = 4 + int.from_bytes(rest[:4], "big")
        fields.append(rest[4:end])
        if end > len(rest):
            return False
        rest = rest[end:]
        if kind.endswith(_CERTIFIED) and fields == [kind.encode()]:
            return True
    return not rest and fields[:1] == [kind.encode()] and len(fields) == _FIELDS.get(kind)


def matches(name: str, patterns: str) -> bool:
    """Whether a line's names, separated by commas, stand for this one; one ``!`` says no."""
    if patterns.startswith("|1|"):
        return _is_hash_of(name, patterns)
    verdicts = [
        not pattern.startswith("!")
        for pattern in patterns.split(",")
        if _is_like(name, pattern.removeprefix("!"))
    ]
    return bool(verdicts) and all(verdicts)


def _is_like(name: str, pattern: str) -> bool:
    """``*`` stands for any characters and ``?`` for one; brackets are brackets."""
    parts = {"*": ".*", "?": "."}
    regex = "".join(parts.get(character) or re.escape(character) for character in pattern)
    return re.fullmatch(regex, name, re.IGNORECASE | re.DOTALL) is not None


def _is_hash_of(name: str, hashed: str) -> bool:
    try:
        salt = hashed.split("|")[2]
        mac = hmac.new(base64.b64decode(salt, validate=True), name.lower().encode(), hashlib.sha1)
        return hashed == f"|1|{salt}|{base64.b64encode(mac.digest()).decode()}"
    except ValueError:
        return False
