"""A command's stdin and stdout over an SSH channel, with a deadline on every wait."""

from __future__ import annotations

import time
from contextlib import suppress

import paramiko

from hadar_cli.nodes.connection import PATIENCE_S
from hadar_cli.nodes.wire import LinkLostError

_STALLED_S = 10.0  # for a stream that may be silent for ever, but not deaf
_PACKET = 32768


class ChannelStream:
    """``be_patient`` bounds each wait for the command's output."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self._channel = channel
        self._endless = False
        self.be_patient(PATIENCE_S)

    def be_patient(self, patience_s: float | None) -> None:
        self._endless = patience_s is None
        self._channel.settimeout(patience_s or _STALLED_S)

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
            raise LinkLostError("the node no longer reads what it is sent") from None
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
