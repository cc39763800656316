"""Opens SSH connections: own sockets, strict host keys on every hop, a deadline on everything."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, cast

import paramiko

from hadar_cli.adapters import ssh_keys
from hadar_cli.adapters.ssh_config import Endpoint
from hadar_cli.adapters.wire import LinkLostError

logging.getLogger("paramiko").setLevel(logging.CRITICAL + 1)  # errors reach us as exceptions

_CONNECT_S = 15.0
_LOGIN_S = 60.0  # some machines take their time to log someone in
_CHANNEL_S = 60.0
_IDLE_S = 0.5  # paramiko's own tenth of a second wakes a quiet head ten times for every node
_PACKET = 32768


class ChannelRefusedError(LinkLostError):
    """The server opens no further channel on this connection: MaxSessions."""


class _Ear:
    """A socket, or what stands for one, that notes when anything arrived."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.heard_at = time.monotonic()

    def recv(self, size: int) -> bytes:
        content: bytes = self._inner.recv(size)
        self.heard_at = time.monotonic()
        return content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class SshTransport:
    """A connection to one endpoint, logged in; many channels may run over it."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Connects and checks the host key; raises RefusedError or LinkLostError."""
        self.endpoint = endpoint
        self._via = SshTransport.logged_in(endpoint.via) if endpoint.via else None
        with _as_link_errors(endpoint):
            self._socket = _Ear(self._reach())
            try:
                self._transport = paramiko.Transport(cast(socket.socket, self._socket))
                self._socket.settimeout(_IDLE_S)
                self.host_key = self._greet()
            except BaseException:
                self.abort()
                raise

    @classmethod
    def logged_in(cls, endpoint: Endpoint) -> SshTransport:
        transport = cls(endpoint)
        try:
            with _as_link_errors(endpoint):
                transport._log_in()
        except BaseException:
            transport.close()
            raise
        return transport

    def _reach(self) -> Any:
        endpoint = self.endpoint
        if self._via:
            return self._via._transport.open_channel(
                "direct-tcpip", (endpoint.host, endpoint.port), ("127.0.0.1", 0), timeout=_CONNECT_S
            )
        if endpoint.proxy_command:
            return paramiko.ProxyCommand(endpoint.proxy_command)
        reached = socket.create_connection((endpoint.host, endpoint.port), _CONNECT_S)
        # Without it, small requests wait for each other's acknowledgements.
        reached.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return reached

    def _greet(self) -> paramiko.PKey:
        """Agrees on keys and ciphers. Nothing of ours is sent before the host key is checked."""
        trusted = ssh_keys.trusted_keys(self.endpoint)
        options = self._transport.get_security_options()
        options.ciphers = sorted(options.ciphers, key=lambda name: "gcm" not in name)
        options.key_types = ssh_keys.algorithms_first(options.key_types, trusted)
        self._transport.banner_timeout = _CONNECT_S
        self._transport.auth_timeout = _LOGIN_S
        self._transport.start_client(timeout=_CONNECT_S)
        key = self._transport.get_remote_server_key()
        ssh_keys.check(self.endpoint, key, trusted)
        return key

    def _log_in(self) -> None:
        refusals: list[str] = []
        for key in self._keys(refusals):
            try:
                if not self._transport.auth_publickey(self.endpoint.user, key):
                    return
                refusals.append("a key alone is not enough there")
            except paramiko.BadAuthenticationType as error:
                refusals.append(str(error))
                break
            except paramiko.AuthenticationException:
                refusals.append(f"{ssh_keys.fingerprint(key)} was turned away")
        tried = "; ".join(refusals) or "there is no key to try"
        where = f"-p {self.endpoint.port} {self.endpoint.user}@{self.endpoint.host}"
        raise LinkLostError(
            f"{self.endpoint} lets nobody in ({tried})",
            fix=f"try: ssh {where}; then set identity_file, or add the key to ssh-agent",
        )

    def _keys(self, refusals: list[str]) -> Iterator[paramiko.PKey]:
        for path in self.endpoint.identity_files:
            if not path.is_file():
                continue
            try:
                key = paramiko.PKey.from_path(path)
                certificate = path.with_name(path.name + "-cert.pub")
                if certificate.is_file():
                    key.load_certificate(str(certificate))
            except (paramiko.SSHException, ValueError, TypeError, OSError) as error:
                refusals.append(f"{path}: {error}")  # e.g. encrypted: the agent may hold it
                continue
            yield key
        with suppress(paramiko.SSHException):
            yield from paramiko.Agent().get_keys()

    @property
    def heard_at(self) -> float:
        """When the last byte came, by time.monotonic."""
        return self._socket.heard_at

    def run(self, command: str) -> ChannelStream:
        """Starts a command; its streams, once the server has agreed to it."""
        with _as_link_errors(self.endpoint):
            try:
                channel = self._transport.open_session(timeout=_CHANNEL_S)
            except paramiko.ChannelException as error:
                raise ChannelRefusedError(f"{self.endpoint}: {error}") from error
            channel.settimeout(_CHANNEL_S)
            channel.exec_command(command)
            return ChannelStream(channel)

    def abort(self) -> None:
        """Cuts the connection at once, whatever waits on it."""
        outermost = self
        while outermost._via:
            outermost = outermost._via
        with suppress(OSError, AttributeError, EOFError):
            outermost._socket.shutdown(socket.SHUT_RDWR)
        with suppress(OSError, AttributeError, EOFError):
            outermost._socket.close()

    def close(self) -> None:
        self.abort()  # so that paramiko's thread, for which ``close`` waits, listens no longer
        with suppress(OSError, EOFError, paramiko.SSHException):
            self._transport.close()
        if self._via:
            self._via.close()


class ChannelStream:
    """A command's stdin and stdout. ``patience_s`` bounds each wait for its output, if given."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel
        self._stalled_s = 10.0
        self._endless = False
        self.be_patient(_CHANNEL_S)

    def be_patient(self, patience_s: float | None) -> None:
        self._endless = patience_s is None
        self._channel.settimeout(patience_s or self._stalled_s)

    def read(self, size: int) -> bytes:
        while True:
            try:
                return self._channel.recv(size)
            except TimeoutError:
                if not self._endless:
                    raise LinkLostError("nothing was heard in time") from None
            except (OSError, EOFError, paramiko.SSHException) as error:
                raise LinkLostError(f"the connection broke: {error}") from error

    def write(self, content: bytes | memoryview) -> None:
        left = memoryview(content)
        try:
            while left:
                left = left[self._channel.send(bytes(left[:_PACKET])) :]
        except TimeoutError:
            raise LinkLostError("the node takes nothing any more") from None
        except (OSError, EOFError, paramiko.SSHException) as error:
            raise LinkLostError(f"the connection broke: {error}") from error

    def complaint(self) -> str:
        """The end of what the command wrote to stderr."""
        deadline = time.monotonic() + 1.0
        while not self._channel.exit_status_ready() and time.monotonic() < deadline:
            time.sleep(0.02)
        said = b""
        while self._channel.recv_stderr_ready() and time.monotonic() < deadline + 1.0:
            said = (said + self._channel.recv_stderr(1 << 16))[-2000:]
        return said.decode(errors="replace").strip()

    def close(self) -> None:
        with suppress(OSError, EOFError, paramiko.SSHException):
            self._channel.close()


@contextmanager
def _as_link_errors(endpoint: Endpoint) -> Iterator[None]:
    """The one place where the network's errors become ours."""
    try:
        yield
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise LinkLostError(
            f"{endpoint} cannot be reached: {error or type(error).__name__}"
        ) from error
