"""A transfer through a process of its own: OpenSSH moves bytes faster than Python can, and several
at once do not share one interpreter. It trusts nothing but the host key that was checked before."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import paramiko

from hadar_cli.adapters.ssh_config import Endpoint
from hadar_cli.adapters.wire import ProcessStream
from hadar_cli.node.transfer import widen_pipe

_ALIAS = "hadar-node"


class BulkProcess:
    """``ssh`` to an endpoint, running a command."""

    def __init__(
        self, endpoint: Endpoint, host_key: paramiko.PKey, command: str, patience_s: float
    ) -> None:
        with tempfile.NamedTemporaryFile("w", prefix="hadar-", delete=False) as file:
            file.write(f"{_ALIAS} {host_key.get_name()} {host_key.get_base64()}\n")
        self._known_hosts = Path(file.name)
        self._process = subprocess.Popen(
            _words(endpoint, self._known_hosts, command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._process.stdin and self._process.stdout
        for pipe in (self._process.stdin, self._process.stdout):
            widen_pipe(pipe.fileno())
        self.stream = ProcessStream(self._process, patience_s)

    def abort(self) -> None:
        self._process.kill()

    def close(self) -> None:
        self._process.kill()
        with suppress(OSError):
            self.stream.close()
        self._known_hosts.unlink(missing_ok=True)


def can_reach(endpoint: Endpoint) -> bool:
    """Jump hosts are left to paramiko: ssh would look up their keys elsewhere."""
    return not (endpoint.via or endpoint.proxy_command) and shutil.which("ssh") is not None


def _words(endpoint: Endpoint, known_hosts: Path, command: str) -> list[str]:
    options = {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "yes",
        "HostKeyAlias": _ALIAS,
        "UserKnownHostsFile": f'"{known_hosts}"',
        "GlobalKnownHostsFile": "none",
        "UpdateHostKeys": "no",
        "ForwardAgent": "no",
        "ClearAllForwardings": "yes",
        "ControlPath": "none",
        "Compression": "no",
        "Ciphers": "^aes128-gcm@openssh.com",
        "ConnectTimeout": "15",
        "ServerAliveInterval": "5",
    }
    words = [shutil.which("ssh") or "ssh", "-F", "none", "-T"]
    for name, value in options.items():
        words += ["-o", f"{name}={value}"]
    for path in endpoint.identity_files:
        if path.is_file():
            words += ["-i", str(path)]
    return [*words, "-p", str(endpoint.port), "-l", endpoint.user, "--", endpoint.host, command]
