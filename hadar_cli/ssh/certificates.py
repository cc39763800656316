"""OpenSSH certificates: who signed a key, for whom and until when."""

from __future__ import annotations

import base64
import time
from dataclasses import dataclass

import paramiko
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    SSHCertificate,
    SSHCertificateType,
    SSHCertPublicKeyTypes,
    load_ssh_public_identity,
)

_BROKEN_SIGNATURE = "ssh-rsa"  # stands for SHA-1, which ssh takes from no authority


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certified key."""

    parsed: SSHCertificate
    blob: bytes

    @property
    def authority(self) -> bytes:
        """The public key that signed it."""
        return _blob(self.parsed.signature_key())

    @property
    def key(self) -> bytes:
        """The public key that is certified."""
        return _blob(self.parsed.public_key())

    def objection(self, host: str) -> str | None:
        """Why it does not vouch for this host, if so; by the rules that ssh goes by."""
        cert = self.parsed
        names = [name.decode(errors="replace") for name in cert.valid_principals]
        try:
            cert.verify_cert_signature()
        except (InvalidSignature, UnsupportedAlgorithm, ValueError, AssertionError):
            return "its signature is wrong"
        now = time.time()
        if self._algorithm() == _BROKEN_SIGNATURE:
            return "it is signed with SHA-1"
        if cert.type is not SSHCertificateType.HOST:
            return "it is a user's certificate"
        if now < cert.valid_after:
            return "it is not valid yet"
        if now >= cert.valid_before:
            return "it has expired"
        if names and host not in names:
            return f"it is for {', '.join(names)}"
        if cert.critical_options:
            return "it has options that nobody here understands"
        return None

    def _algorithm(self) -> str:
        """Of the signature, which is the blob's last field, behind the authority's key."""
        last = self.blob.rpartition(self.authority)[2]
        return paramiko.Message(paramiko.Message(last).get_binary()).get_text()


def of(key: paramiko.PKey) -> Certificate | None:
    """The certificate that a machine showed with its key."""
    return read(key.public_blob.key_blob) if key.public_blob else None


def read(blob: bytes) -> Certificate | None:
    kind = paramiko.Message(blob).get_text()
    try:
        parsed = load_ssh_public_identity(f"{kind} {base64.b64encode(blob).decode()}".encode())
        if not isinstance(parsed, SSHCertificate):
            return None
        parsed.signature_key()  # raises where it is of a kind that nobody here can check
    except (ValueError, UnsupportedAlgorithm):
        return None
    return Certificate(parsed, blob)


def _blob(key: SSHCertPublicKeyTypes) -> bytes:
    return base64.b64decode(key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).split()[1])
