"""Host keys: whose word is taken for them, and what is said when they do not match.

A key that is not known is never taken on trust. ``hadar nodes trust`` is the way to make it known.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence

import paramiko

from hadar_cli.adapters.ssh_config import Endpoint
from hadar_cli.errors import RefusedError


class UnknownKeyError(RefusedError):
    """Nobody has vouched for this key yet; it is kept here to be shown to the user."""

    def __init__(self, endpoint: Endpoint, key: paramiko.PKey) -> None:
        shown = f"{key.get_name()} {fingerprint(key)}"
        super().__init__(
            f"the host key of {endpoint.known_as} is not known: {shown}",
            fix="compare it with the machine's own (ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub), "
            "then: hadar nodes trust",
        )
        self.key = key


def fingerprint(key: paramiko.PKey) -> str:
    """As ssh-keygen -l shows it: ``SHA256:…``."""
    return _fingerprint(key.asbytes())


def _fingerprint(blob: bytes) -> str:
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode()
    return "SHA256:" + digest.rstrip("=")


def trusted_keys(endpoint: Endpoint) -> list[tuple[str, str]]:
    """The keys that the endpoint may show, as type (where known) and fingerprint."""
    if endpoint.host_key:
        return [_read_pin(endpoint.host_key)]
    found = []
    for path in endpoint.known_hosts:
        if path.is_file():
            known = paramiko.HostKeys(str(path)).lookup(endpoint.known_as)
            found += [(kind, fingerprint(key)) for kind, key in (known or {}).items()]
    return found


def _read_pin(pin: str) -> tuple[str, str]:
    """``ssh-ed25519 AAAA…`` or ``SHA256:…``."""
    if pin.startswith("SHA256:"):
        return "", pin.rstrip("=")
    kind, _, rest = pin.strip().partition(" ")
    try:
        return kind, _fingerprint(base64.b64decode(rest.split()[0], validate=True))
    except (ValueError, IndexError):
        raise RefusedError(
            f"host_key = {pin!r} is neither a public key nor a fingerprint",
            fix="write it like 'ssh-ed25519 AAAA…' or 'SHA256:…'",
        ) from None


def check(endpoint: Endpoint, key: paramiko.PKey, trusted: Sequence[tuple[str, str]]) -> None:
    """Raises RefusedError unless ``key`` is one that the endpoint may show."""
    shown = fingerprint(key)
    if any(shown == known for _, known in trusted):
        return
    if not trusted:
        raise UnknownKeyError(endpoint, key)
    expected = ", ".join(f"{kind} {known}".strip() for kind, known in trusted)
    raise RefusedError(
        f"the host key of {endpoint.known_as} has CHANGED: known is {expected}, "
        f"shown is {key.get_name()} {shown}",
        fix="someone may sit in between. If the machine was set up anew, remove the old key: "
        f"ssh-keygen -R '{endpoint.known_as}' (or host_key in nodes.toml), then: hadar nodes trust",
    )


def algorithms_first(offered: Sequence[str], trusted: Sequence[tuple[str, str]]) -> list[str]:
    """Asks for a key of a kind that is known, as the server may have several."""
    kinds = {kind for kind, _ in trusted}
    if "ssh-rsa" in kinds:
        kinds |= {"rsa-sha2-512", "rsa-sha2-256"}
    return sorted(offered, key=lambda name: name not in kinds)
