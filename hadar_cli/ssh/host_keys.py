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
from hadar_cli.ssh.endpoints import KEY_TOKENS, TOKEN, Endpoint
from hadar_cli.ssh.known_hosts import KnownKey, ask_command, is_in_list, known_keys

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
    """What known_hosts says of a name: keys it may show, who may vouch for it, what is revoked.

    ``elsewhere`` is what it says of the same host without its port.
    """

    keys: tuple[tuple[str, str], ...]  # kind (where known) and fingerprint
    authorities: frozenset[bytes] = frozenset()
    revoked: frozenset[bytes] = frozenset()
    elsewhere: Trust | None = None


def fingerprint(key: paramiko.PKey) -> str:
    """As ssh-keygen -l shows it: ``SHA256:…``."""
    return _fingerprint(key.asbytes())


def _fingerprint(blob: bytes) -> str:
    digest = base64.b64encode(hashlib.sha256(blob).digest()).decode()
    return "SHA256:" + digest.rstrip("=")


def trust_in(endpoint: Endpoint, shown: paramiko.PKey | None = None) -> Trust:
    """A pin decides alone; otherwise known_hosts does, as it does for ssh. KnownHostsCommand is
    asked twice: before a key is shown, and what it says of that one."""
    if endpoint.host_key:
        return Trust((_read_pin(endpoint.host_key),))
    # The name without its port is looked at second, and not at all under an alias.
    names = dict.fromkeys([endpoint.known_as] if endpoint.key_alias else _names(endpoint))
    trust = None
    for name in reversed(names):
        known = known_keys(name, endpoint.known_hosts)
        if endpoint.known_hosts_command and name == endpoint.known_as:
            known += ask_command(_with_key(endpoint.known_hosts_command, name, shown), name)
        trust = _trust(known, trust)
    assert trust
    return trust


def _with_key(words: Sequence[str], name: str, shown: paramiko.PKey | None) -> list[str]:
    """The words of KnownHostsCommand, for a key or for none yet."""
    values = ["ORDER", "NONE", "NONE", "NONE"]
    if shown:
        blob = shown.public_blob.key_blob if shown.public_blob else shown.asbytes()
        kind = paramiko.Message(blob).get_text()
        values = ["HOSTNAME", base64.b64encode(blob).decode(), fingerprint(shown), kind]
    tokens = {"%": "%", **dict(zip(KEY_TOKENS, [name, *values], strict=True))}
    return [TOKEN.sub(lambda found: tokens[found[1]], word) for word in words]


def _names(endpoint: Endpoint) -> list[str]:
    return [endpoint.known_as, endpoint.name]


def _trust(known: Sequence[KnownKey], elsewhere: Trust | None) -> Trust:
    return Trust(
        tuple((key.kind, _fingerprint(key.blob)) for key in known if not key.marker),
        frozenset(key.blob for key in known if key.marker == "@cert-authority"),
        frozenset(_public(key.blob) for key in known if key.marker == "@revoked"),
        elsewhere,
    )


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


def _public(blob: bytes) -> bytes:
    """The key itself, where a line has a certificate in its place."""
    certificate = certificates.read(blob)
    return certificate.key if certificate else blob


# -- judging ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Shown:
    """What a machine shows: a key, and perhaps a certificate for it."""

    key: bytes
    is_certified: bool = False
    authority: bytes = b""  # that signed the certificate; empty where it cannot be read
    objection: str | None = None  # why the certificate is not valid

    def is_revoked_by(self, trust: Trust) -> bool:
        return bool({self.key, self.authority} & trust.revoked)


def check(endpoint: Endpoint, key: paramiko.PKey, trust: Trust) -> None:
    """Raises RefusedError unless ``key`` is one that the endpoint may show."""
    shown, listed = _look_at(key, endpoint), endpoint.revoked_keys
    blobs = [shown.key, shown.authority, key.public_blob.key_blob if key.public_blob else b""]
    if listed and any(blob and is_in_list(blob, listed) for blob in blobs):
        raise _revoked(endpoint, key)
    if _is_taken(shown, trust):
        return
    if any(shown.is_revoked_by(one) for one in (trust, trust.elsewhere) if one):
        raise _revoked(endpoint, key)
    if shown.objection and shown.authority in _all_authorities(trust):
        raise RefusedError(
            f"the host certificate of {endpoint.known_as} is not valid: {shown.objection}",
            fix="have it signed anew by your certificate authority (ssh-keygen -s … -h -n …)",
        )
    if not trust.keys:
        raise UnknownKeyError(endpoint, key, _why_not_certified(shown, trust))
    expected = ", ".join(f"{kind} {known}".strip() for kind, known in trust.keys)
    raise RefusedError(
        f"the host key of {endpoint.known_as} has CHANGED: known is {expected}, "
        f"shown is {key.get_name()} {fingerprint(key)}",
        fix="someone may sit in between. If the machine was set up anew, remove the old key: "
        f"ssh-keygen -R '{endpoint.known_as}' (or host_key in nodes.toml), then: hadar nodes trust",
    )


def _look_at(key: paramiko.PKey, endpoint: Endpoint) -> _Shown:
    if not key.public_blob:
        return _Shown(key.asbytes())
    certificate = certificates.of(key)
    if not certificate:
        return _Shown(key.asbytes(), True)
    objection = certificate.objection(endpoint.name)
    return _Shown(key.asbytes(), True, certificate.authority, objection)


def _is_taken(shown: _Shown, trust: Trust) -> bool:
    """In ssh's order: first by the certificate, then by the key alone; and by the name without its
    port where the name with it says nothing."""
    if shown.is_certified:
        if shown.is_revoked_by(trust):
            return False
        if shown.authority and shown.authority in trust.authorities:
            if not shown.objection:
                return True
        elif trust.elsewhere and _is_taken(shown, trust.elsewhere):
            return True
    if shown.key in trust.revoked:
        return False
    if trust.keys:
        return any(_fingerprint(shown.key) == known for _, known in trust.keys)
    return trust.elsewhere is not None and _is_taken(_Shown(shown.key), trust.elsewhere)


def _all_authorities(trust: Trust) -> frozenset[bytes]:
    return trust.authorities | (trust.elsewhere.authorities if trust.elsewhere else frozenset())


def _revoked(endpoint: Endpoint, key: paramiko.PKey) -> RefusedError:
    return RefusedError(
        f"the host key of {endpoint.known_as} is REVOKED: {key.get_name()} {fingerprint(key)}",
        fix="ask whoever revoked it; the machine needs a new host key",
    )


def _why_not_certified(shown: _Shown, trust: Trust) -> str:
    if not _all_authorities(trust):
        return ""
    if shown.is_certified and not shown.authority:
        return "; its certificate cannot be read here, as those signed by security keys"
    return "; no authority in known_hosts has signed it"


def algorithms_first(
    offered: Sequence[str], trust: Trust, configured: Sequence[str] = ()
) -> list[str]:
    """Which host key to ask for, best first, as the server may have several: in ssh's order, which
    prefers certificates where an authority is known, and then keys of a kind that is known.

    ``configured`` is what ssh_config says; of that, what can be had here.
    """
    usable = [*(f"{name}{_CERTIFIED}" for name in offered if name != "ssh-rsa"), *offered]
    names = [name for name in configured if name in usable] or usable
    kinds = {kind for kind, known in trust.keys if not _is_revoked_key(known, trust)}
    if _kind(names[0]) in kinds:
        return names

    def is_preferred(name: str) -> bool:
        by_authority = name.endswith(_CERTIFIED) and bool(trust.authorities)
        return by_authority or _kind(name) in kinds

    return sorted(names, key=lambda name: not is_preferred(name))


def _kind(algorithm: str) -> str:
    """Of the key, as known_hosts names it."""
    name = algorithm.removesuffix(_CERTIFIED)
    return "ssh-rsa" if name.startswith("rsa-") else name


def _is_revoked_key(known: str, trust: Trust) -> bool:
    return any(known == _fingerprint(blob) for blob in trust.revoked)
