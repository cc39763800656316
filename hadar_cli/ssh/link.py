"""Opens SSH connections through fabric, and lets in nothing that fabric would add by itself.

Fabric trusts unknown keys, reads ssh_config and its own files for gateways and agent forwarding,
and asks for passwords. Here every hop is a ``SshLink`` of ours that checks its host key before a
key of ours is offered; all settings come from the endpoint, and none from any file or variable.
"""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

import fabric
import paramiko

from hadar_cli.errors import RefusedError
from hadar_cli.nodes.wire import LinkLostError
from hadar_cli.ssh import host_keys
from hadar_cli.ssh.authentication import Identity, log_in
from hadar_cli.ssh.channel import ChannelStream
from hadar_cli.ssh.endpoints import Endpoint

logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)  # errors reach us as exceptions

_CONNECT_S = 15.0
_LOGIN_S = 60.0  # some machines take their time to log someone in
_CHANNEL_S = 60.0
_IDLE_S = 0.5  # paramiko's own tenth of a second wakes a quiet head ten times for every node


class ChannelRefusedError(LinkLostError):
    """The server opens no further channel on this connection: MaxSessions."""


class _Ear:
    """A socket, or what stands for one, that notes when anything arrived."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.heard_at = 0.0  # to have connected is not to have heard

    def recv(self, size: int) -> bytes:
        content: bytes = self._inner.recv(size)
        self.heard_at = time.monotonic()
        return content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class _KnownKeysOnly(paramiko.MissingHostKeyPolicy):
    """Asked about every host key, as the client itself is given none to compare."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint, self.trust = endpoint, host_keys.trust_in(endpoint)
        self.checked: paramiko.PKey | None = None

    def missing_host_key(
        self, client: paramiko.SSHClient, hostname: str, key: paramiko.PKey
    ) -> None:
        if self.endpoint.known_hosts_command:
            self.trust = host_keys.trust_in(self.endpoint, key)
        host_keys.check(self.endpoint, key, self.trust)
        self.checked = key


class SshLink(fabric.Connection):  # type: ignore[misc]  # fabric has no types
    """A connection to one endpoint; many channels may run over it."""

    endpoint: Endpoint
    identity: Identity | None  # that opened the door
    _policy: _KnownKeysOnly
    _login: bool
    _ear: _Ear | None
    _proxy: subprocess.Popen[bytes] | None

    def __init__(self, endpoint: Endpoint, login: bool = True) -> None:
        """With ``login`` off, opening it ends at the host key."""
        policy = _KnownKeysOnly(endpoint)
        self._set(endpoint=endpoint, identity=None)
        self._set(_policy=policy, _login=login, _ear=None, _proxy=None)
        super().__init__(
            endpoint.host,
            user=endpoint.user,
            port=endpoint.port,
            config=fabric.Config(ssh_config=paramiko.SSHConfig(), lazy=True),
            gateway=SshLink(endpoint.via) if endpoint.via else endpoint.proxy_command,
            forward_agent=False,
            connect_timeout=int(_CONNECT_S),
            connect_kwargs={
                "auth_strategy": self,
                "transport_factory": self._tuned,
                "banner_timeout": _CONNECT_S,
                "auth_timeout": _LOGIN_S,
                "channel_timeout": _CHANNEL_S,
            },
        )
        self.client.set_missing_host_key_policy(self._policy)

    def derive_shorthand(self, host_string: str) -> dict[str, Any]:
        """The host is a host: no user or port is read out of it."""
        return {"user": None, "host": host_string, "port": None}

    def get_gateway(self) -> None:
        """Gateways are made above, or there are none."""

    def open(self) -> None:
        """Connects, checks the host key, logs in; raises RefusedError or LinkLostError."""
        if self.is_connected:
            return
        with as_link_errors(self.endpoint):
            try:
                if not self.gateway:
                    self.connect_kwargs["sock"] = self._reach()
                super().open()
            except BaseException:
                self.close()
                raise

    def _reach(self) -> socket.socket:
        reached = socket.create_connection((self.host, self.port), _CONNECT_S)
        # Without it, small requests wait for each other's acknowledgements.
        reached.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return reached

    def open_gateway(self) -> Any:
        if isinstance(self.gateway, str):
            return self._reach_by(self.gateway)
        self.gateway.open()
        return self.gateway.transport.open_channel(
            "direct-tcpip", (self.host, self.port), ("127.0.0.1", 0), timeout=_CONNECT_S
        )

    def _reach_by(self, command: str) -> socket.socket:
        """ProxyCommand, by the user's shell as ssh does; the shell makes way for the command."""
        ours, its = socket.socketpair()
        shell = os.environ.get("SHELL") or "/bin/sh"
        with its:
            process = subprocess.Popen(
                [shell, "-c", f"exec {command}"],
                stdin=its.fileno(),
                stdout=its.fileno(),
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._set(_proxy=process)
        return ours

    def _tuned(self, sock: Any, **options: Any) -> paramiko.Transport:
        """The fastest cipher first, and a host key of a kind that is known."""
        self._set(_ear=_Ear(sock))
        self._policy.checked = None
        transport = paramiko.Transport(cast(socket.socket, self._ear), **options)
        sock.settimeout(_IDLE_S)
        security = transport.get_security_options()
        security.ciphers = sorted(security.ciphers, key=lambda name: "gcm" not in name)
        security.key_types = host_keys.algorithms_first(
            security.key_types, self._policy.trust, self.endpoint.key_algorithms
        )
        return transport

    def authenticate(self, transport: paramiko.Transport) -> None:
        """Called by the client, after the policy, or else this raises RefusedError."""
        if self.host_key and self._login:
            self._set(identity=log_in(transport, self.endpoint))

    @property
    def host_key(self) -> paramiko.PKey:
        """The key that was shown and checked."""
        if not self._policy.checked:
            raise RefusedError(f"the host key of {self.endpoint.known_as} was not checked")
        return self._policy.checked

    @property
    def heard_at(self) -> float:
        """When the last byte came, by time.monotonic."""
        return self._ear.heard_at if self._ear else 0.0

    def start(self, command: str) -> ChannelStream:
        """Starts a command; its streams, once the server has agreed to it."""
        with as_link_errors(self.endpoint):
            if not self.is_connected:
                raise LinkLostError("the connection is closed")
            try:
                channel = self.create_session()
            except paramiko.ChannelException as error:
                raise ChannelRefusedError(f"{self.endpoint}: {error}") from error
            channel.settimeout(_CHANNEL_S)
            channel.exec_command(command)
            return ChannelStream(channel)

    def abort(self) -> None:
        """Cuts the connection at once, whatever waits on it."""
        outermost = self
        while isinstance(outermost.gateway, SshLink):
            outermost = outermost.gateway
        if ear := outermost._ear:
            with suppress(OSError, AttributeError, EOFError):
                ear.shutdown(socket.SHUT_RDWR)
            with suppress(OSError, AttributeError, EOFError):
                ear.close()

    def close(self) -> None:
        self.abort()  # so that paramiko's thread, for which ``close`` waits, listens no longer
        with suppress(OSError, EOFError, paramiko.SSHException):
            self.client.close()
        if isinstance(self.gateway, SshLink):
            self.gateway.close()
        if self._proxy:
            self._proxy.kill()
            self._proxy.wait()


@contextmanager
def as_link_errors(endpoint: Endpoint) -> Iterator[None]:
    """The one place where the network's errors become ours."""
    try:
        yield
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise LinkLostError(
            f"{endpoint} cannot be reached: {error or type(error).__name__}"
        ) from error
