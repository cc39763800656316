"""Logs in by keys alone, in an order of our own; nobody is ever asked for a password.

The identities of the inventory and of ssh_config come first, from their files or, where those are
encrypted, from the agent; then what else the agent has, unless IdentitiesOnly says otherwise. A
server counts every key that it turns away, and hangs up after a few.
"""

from __future__ import annotations

import base64
import io
import socket
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import paramiko
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from paramiko.agent import AgentSSH
from paramiko.pkey import PublicBlob

from hadar_cli.nodes.wire import LinkLostError, LoginRefusedError
from hadar_cli.ssh import certificates
from hadar_cli.ssh.endpoints import Endpoint
from hadar_cli.ssh.host_keys import fingerprint

# The last is raised of keys that live in a security key: only an agent can use them for us.
_KEY_ERRORS = (paramiko.SSHException, ValueError, TypeError, OSError, UnsupportedAlgorithm)
_PKCS8 = b"-----BEGIN PRIVATE KEY-----"
_AGENT_S = 60.0  # some ask their user first
_MANY = 3  # keys that were turned away; servers hang up after six, or fewer


@dataclass(frozen=True, slots=True)
class Identity:
    """A key to log in with; ``path`` is its private file, if it did not come from the agent."""

    key: paramiko.PKey
    path: Path | None = None
    certificate: Path | None = None

    def __str__(self) -> str:
        whence = self.path or "the agent's key"
        return f"{whence} ({fingerprint(self.key)}{', certified' if self.certificate else ''})"


class _Agent(AgentSSH):
    """The keys of the agent that listens at a socket."""

    def __init__(self, path: str) -> None:
        super().__init__()
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(_AGENT_S)
            connection.connect(path)
            self._connect(connection)  # type: ignore[attr-defined]
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        self._close()  # type: ignore[attr-defined]


def log_in(transport: paramiko.Transport, endpoint: Endpoint) -> Identity:
    """Offers one identity after the other; returns the one that was taken."""
    refusals: list[str] = []
    agent = _open_agent(endpoint, refusals)
    try:
        for offered, identity in enumerate(_identities(endpoint, agent, refusals)):
            try:
                if not transport.auth_publickey(endpoint.user, identity.key):
                    return identity
                refusals.append(f"{identity} alone is not enough")
            except paramiko.BadAuthenticationType as error:
                refusals.append(str(error))
                break
            except paramiko.AuthenticationException:
                refusals.append(f"{identity} was turned away")
                if transport.is_active():
                    continue
                if not offered:
                    raise LinkLostError(f"{endpoint} hung up at the login") from None
                refusals.append("then it hung up")
                break
    finally:
        if agent:
            agent.close()
    raise _refusal(endpoint, refusals)


def _refusal(endpoint: Endpoint, refusals: list[str]) -> LoginRefusedError:
    where = f"-p {endpoint.port} {endpoint.user}@{endpoint.host}"
    tried = "; ".join(refusals) or "there is no key to try"
    if len(refusals) > _MANY:
        fix = "it takes a few tries only. Name the right key: identity_file = ... in nodes.toml"
    else:
        fix = f"try: ssh {where}; then set identity_file, or add the key to ssh-agent"
    return LoginRefusedError(f"{endpoint} refuses the login ({tried})", fix)


def _open_agent(endpoint: Endpoint, refusals: list[str]) -> _Agent | None:
    if endpoint.agent_socket:
        try:
            return _Agent(endpoint.agent_socket)
        except (paramiko.SSHException, OSError) as error:
            refusals.append(f"the agent at {endpoint.agent_socket} does not answer: {error}")
    return None


def _identities(
    endpoint: Endpoint, agent: _Agent | None, refusals: list[str]
) -> Iterator[Identity]:
    held: dict[bytes, paramiko.AgentKey] = dict(_keys_of(agent)) if agent else {}
    for path in endpoint.identity_files:
        if not path.is_file():
            continue
        try:
            found = list(_from_file(path, endpoint))
        except _KEY_ERRORS as error:
            # Encrypted, or the public half of a key that never leaves its agent.
            key = held.pop(_public_blob(path), None)
            found = list(_with_certificates(key, _certificates(path, endpoint))) if key else []
            if not found:
                refusals.append(f"{path}: {error}")
        for identity in found:
            held.pop(identity.key.asbytes(), None)
        yield from found
    if not endpoint.identities_only:
        for key in held.values():
            yield from _with_certificates(key, endpoint.certificate_files)


def _keys_of(agent: _Agent) -> Iterator[tuple[bytes, paramiko.AgentKey]]:
    for key in agent.get_keys():
        if "-cert-" in key.name:
            certificate = PublicBlob.from_message(paramiko.Message(key.blob))
            key.public_blob = certificate  # type: ignore[assignment]
        yield key.blob, key


def _with_certificates(key: paramiko.AgentKey, certificates: Iterable[Path]) -> Iterator[Identity]:
    """An agent's key with those of the certificates that are its own, and as the agent has it."""
    for certificate in certificates:
        if certificate.is_file() and _certifies(certificate, key.blob):
            certified = paramiko.AgentKey(key.agent, key.blob, key.comment)
            public = PublicBlob.from_file(str(certificate))
            certified.public_blob = public  # type: ignore[assignment]
            yield Identity(certified, certificate=certificate)
    yield Identity(key)


def _certificates(path: Path, endpoint: Endpoint) -> tuple[Path, ...]:
    """Files that may certify the key of this one."""
    return (path.with_name(f"{path.name}-cert.pub"), *endpoint.certificate_files)


def _from_file(path: Path, endpoint: Endpoint) -> Iterator[Identity]:
    """The key with each of its certificates, and by itself."""
    key = _read_key(path)
    key.public_blob = None
    for certificate in _certificates(path, endpoint):
        if certificate.is_file() and _certifies(certificate, key.asbytes()):
            certified = _read_key(path)
            certified.load_certificate(str(certificate))
            yield Identity(certified, path, certificate)
    yield Identity(key, path)


def _read_key(path: Path) -> paramiko.PKey:
    """Also in the format that openssl writes today, which ssh reads and paramiko does not."""
    content = path.read_bytes()
    if not content.lstrip().startswith(_PKCS8):
        return paramiko.PKey.from_path(path)
    key = load_pem_private_key(content, None)
    if not isinstance(key, RSAPrivateKey | EllipticCurvePrivateKey):
        return paramiko.PKey.from_path(path)
    form = PrivateFormat.TraditionalOpenSSL
    file = io.StringIO(key.private_bytes(Encoding.PEM, form, NoEncryption()).decode())
    kind = paramiko.RSAKey if isinstance(key, RSAPrivateKey) else paramiko.ECDSAKey
    return kind.from_private_key(file)


def _certifies(path: Path, key: bytes) -> bool:
    certificate = certificates.read(PublicBlob.from_file(str(path)).key_blob)
    return certificate is not None and certificate.key == key


def _public_blob(path: Path) -> bytes:
    """The public key of a private one that cannot be read; ssh-keygen leaves it in NAME.pub."""
    for place in (path, path.with_name(f"{path.name}.pub")):
        with suppress(*_KEY_ERRORS):
            return PublicBlob.from_file(str(place)).key_blob
    with suppress(*_KEY_ERRORS):
        inside = base64.b64decode("".join(path.read_text().splitlines()[1:-1]))
        message = paramiko.Message(inside.removeprefix(b"openssh-key-v1\0"))
        for _ in range(3):  # cipher, key derivation and its options; then the number of keys
            message.get_binary()
        message.get_int()
        return message.get_binary()
    return b""
