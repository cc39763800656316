"""Which host key a machine must show, and what happens when it does not.

A key that is not known is never taken on trust. ``hadar nodes trust`` is the way to make it known.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import paramiko

from hadar_cli.errors import RefusedError
from hadar_cli.ssh import certificates
from hadar_cli.ssh.endpoints import Endpoint
from hadar_cli.ssh.known_hosts import KnownKey, is_in_list, known_keys

_CERTIFIED = "-cert-v01@openssh.com"


class UnknownKeyError(RefusedError):
    """Nobody has vouched for this key yet; it is kept here to be shown to the user."""

    def __init__(self, endpoint: Endpoint, key: paramiko.PKey, why: str = "") -> None:
        shown = f"{key.get_name()} {fingerprint(key)}"
        super().__init__(
            f"the host key of {endpoint.known_as} is not known: {shown}{why}",
            fix="compare it with the machine's own (ssh-keygen -lf /etc/ssh/ssh_host_*_key.pub), "
            "then: hadar nodes trust",
        )
        self.key = key


@dataclass(frozen=True, slots=True)
class Trust:
    """What is known of an endpoint: keys that it may show, who may vouch for it, what is revoked.

    ``elsewhere`` are keys of the same host without its port: ssh takes them where the port has
    none of its own, but holds none of them against it.
    """

    keys: tuple[tuple[str, str], ...]  # kind (where known) and fingerprint
    elsewhere: tuple[tuple[str, str], ...] = ()
    authorities: frozenset[bytes] = frozenset()
    revoked: frozenset[bytes] = frozenset()


def fingerprint(key: paramiko.PKey) -> str:
    """As ssh-keygen -l shows it: ``SHA256:…``."""
    return _fingerprint(key.asbytes())


def _fingerprint(blob: bytes) -> str:
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode()
    return "SHA256:" + digest.rstrip("=")


def trust_in(endpoint: Endpoint) -> Trust:
    """A pin decides alone; otherwise known_hosts does, as it does for ssh."""
    if endpoint.host_key:
        return Trust((_read_pin(endpoint.host_key),))
    here = known_keys(endpoint.known_as, endpoint.known_hosts)
    # The name without its port is looked at second, and not at all under an alias.
    there = [] if endpoint.key_alias else known_keys(endpoint.name, endpoint.known_hosts)
    keys = _plain(here)
    return Trust(
        keys,
        () if keys else _plain(there),
        frozenset(key.blob for key in here + there if key.marker == "@cert-authority"),
        frozenset(key.blob for key in here + there if key.marker == "@revoked"),
    )


def _plain(known: Sequence[KnownKey]) -> tuple[tuple[str, str], ...]:
    return tuple((key.kind, _fingerprint(key.blob)) for key in known if not key.marker)


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


def check(endpoint: Endpoint, key: paramiko.PKey, trust: Trust) -> None:
    """Raises RefusedError unless ``key`` is one that the endpoint may show."""
    certificate = certificates.of(key)
    blobs = [key.asbytes(), *([certificate.blob, certificate.authority] if certificate else [])]
    if any(_is_revoked(blob, endpoint, trust) for blob in blobs):
        raise RefusedError(
            f"the host key of {endpoint.known_as} is REVOKED: {key.get_name()} {fingerprint(key)}",
            fix="ask whoever revoked it; the machine needs a new host key",
        )
    shown = fingerprint(key)
    if any(shown == known for _, known in trust.keys + trust.elsewhere):
        return
    if certificate and certificate.authority in trust.authorities:
        if objection := certificate.objection(endpoint.name):
            raise RefusedError(
                f"the host certificate of {endpoint.known_as} is not valid: {objection}",
                fix="have it signed anew by your certificate authority (ssh-keygen -s … -h -n …)",
            )
        return
    if not trust.keys:
        raise UnknownKeyError(endpoint, key, _why_not_certified(key, trust))
    expected = ", ".join(f"{kind} {known}".strip() for kind, known in trust.keys)
    raise RefusedError(
        f"the host key of {endpoint.known_as} has CHANGED: known is {expected}, "
        f"shown is {key.get_name()} {shown}",
        fix="someone may sit in between. If the machine was set up anew, remove the old key: "
        f"ssh-keygen -R '{endpoint.known_as}' (or host_key in nodes.toml), then: hadar nodes trust",
    )


def _is_revoked(blob: bytes, endpoint: Endpoint, trust: Trust) -> bool:
    listed = endpoint.revoked_keys
    return blob in trust.revoked or (listed is not None and is_in_list(blob, listed))


def _why_not_certified(key: paramiko.PKey, trust: Trust) -> str:
    if not trust.authorities:
        return ""
    if key.public_blob and not certificates.of(key):
        return "; its certificate cannot be read here, as those signed by security keys"
    return "; no authority in known_hosts has signed it"


def algorithms_first(offered: Sequence[str], trust: Trust) -> list[str]:
    """Asks for a certificate where an authority is known, then for a key of a kind that is known,
    as the server may have several."""
    kinds = {kind for kind, _ in trust.keys + trust.elsewhere}
    if "ssh-rsa" in kinds:
        kinds |= {"rsa-sha2-512", "rsa-sha2-256"}
    plain = sorted(offered, key=lambda name: name not in kinds)
    if not trust.authorities:
        return plain
    names = [f"{name}{_CERTIFIED}" for name in plain if name != "ssh-rsa"]
    return [*names, *plain]
