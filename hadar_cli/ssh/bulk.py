"""A transfer through a process of its own: OpenSSH moves bytes faster than Python can, and several
at once do not share one interpreter. It trusts nothing but the host key that was checked before,
and offers nothing but the key that opened the door before."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import paramiko

from hadar_cli.node.agent.transfer import widen_pipe
from hadar_cli.nodes.connection import PATIENCE_S
from hadar_cli.nodes.wire import ProcessStream
from hadar_cli.ssh.authentication import Identity
from hadar_cli.ssh.endpoints import Endpoint

_ALIAS = "hadar-node"


class BulkStream(ProcessStream):
    """``ssh`` to an endpoint, running a command."""

    def __init__(
        self, endpoint: Endpoint, host_key: paramiko.PKey, identity: Identity, command: str
    ) -> None:
        self._files = Path(tempfile.mkdtemp(prefix="hadar-"))
        try:
            known_hosts, public = self._files / "known_hosts", self._files / "id.pub"
            known_hosts.write_text(f"{_ALIAS} {_line(host_key)}\n")
            public.write_text(f"{_line(identity.key)}\n")  # for a key that is the agent's
            words = _words(endpoint, known_hosts, identity, identity.path or public, command)
            super().__init__(words, PATIENCE_S)
        except BaseException:
            shutil.rmtree(self._files)
            raise
        for pipe in (self._in, self._out):
            widen_pipe(pipe)

    def close(self) -> None:
        self.kill()
        with suppress(OSError):
            super().close()
        shutil.rmtree(self._files, ignore_errors=True)


def can_reach(endpoint: Endpoint) -> bool:
    """Jump hosts are left to paramiko: ssh would look up their keys elsewhere."""
    return not (endpoint.via or endpoint.proxy_command) and shutil.which("ssh") is not None


def _line(key: paramiko.PKey) -> str:
    """The public key, without its certificate."""
    name = key.get_name().replace("-cert-v01@openssh.com", "")
    return f"{name} {key.get_base64()}"


def _words(
    endpoint: Endpoint, known_hosts: Path, identity: Identity, key: Path, command: str
) -> list[str]:
    options = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "HostKeyAlias": _ALIAS,
        "UserKnownHostsFile": _quoted(known_hosts),
        "GlobalKnownHostsFile": "none",
        "UpdateHostKeys": "no",
        "IdentitiesOnly": "yes",
        "IdentityAgent": _quoted(endpoint.agent_socket or "none"),
        "IdentityFile": _quoted(key),
        "ForwardAgent": "no",
        "ClearAllForwardings": "yes",
        "ControlPath": "none",
        "Compression": "no",
        "Ciphers": "^aes128-gcm@openssh.com",
        "ConnectTimeout": "15",
        "ServerAliveInterval": "5",
    }
    if identity.certificate:
        options["CertificateFile"] = _quoted(identity.certificate)
    words = [shutil.which("ssh") or "ssh", "-F", "none", "-T"]
    for name, value in options.items():
        words += ["-o", f"{name}={value}"]
    return [*words, "-p", str(endpoint.port), "-l", endpoint.user, "--", endpoint.host, command]


def _quoted(name: object) -> str:
    """A file name as ssh_config reads it: blanks are blanks, and a percent sign is one."""
    return '"' + str(name).replace("%", "%%") + '"'
