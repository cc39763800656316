"""A stream of which the bridge holds the other end."""

from __future__ import annotations

import json
import select
import socket
import threading
from contextlib import suppress

from hadar_cli.nodes.wire import LinkLostError

_WRITE_S = 10.0
_COMPLAINT_S = 3.0


class BridgedStream:
    """A command's stdin and stdout by one socket; the other has what it wrote to stderr."""

    def __init__(self, data: socket.socket, answers: socket.socket, patience_s: float) -> None:
        self._data, self._answers = data, answers
        self._patience_s: float | None = patience_s
        self._writing = threading.Lock()  # or closing: a descriptor may be another file's at once
        self.is_closed = False
        data.setblocking(False)

    def be_patient(self, patience_s: float | None) -> None:
        self._patience_s = patience_s

    def read(self, size: int) -> bytes:
        try:
            if not is_ready(self._data, self._patience_s):
                raise LinkLostError(f"nothing was heard for {self._patience_s:.0f} s")
            return self._data.recv(size)
        except (OSError, ValueError) as error:
            raise LinkLostError(f"the connection broke: {error}") from error

    def write(self, content: bytes | memoryview) -> None:
        left = memoryview(content)
        try:
            while left:
                if not is_ready(self._data, self._patience_s or _WRITE_S, select.POLLOUT):
                    raise LinkLostError("the node no longer reads what it is sent")
                with self._writing, suppress(BlockingIOError):
                    if self.is_closed:
                        raise LinkLostError("the connection was closed")
                    left = left[self._data.send(left) :]
        except (OSError, ValueError) as error:
            raise LinkLostError(f"the connection broke: {error}") from error

    def complaint(self) -> str:
        content = bytearray()
        self.cut()
        with suppress(OSError, ValueError):
            while is_ready(self._answers, _COMPLAINT_S) and (piece := self._answers.recv(1 << 16)):
                content += piece
            return str(json.loads(content.splitlines()[-1]).get("complaint", ""))
        return ""

    def cut(self) -> None:
        with suppress(OSError):
            self._data.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut()
        with self._writing:
            self.is_closed = True
            self._data.close()
            self._answers.close()


def is_ready(one: socket.socket, patience_s: float | None, event: int = select.POLLIN) -> bool:
    poll = select.poll()
    poll.register(one, event)
    return bool(poll.poll(None if patience_s is None else patience_s * 1000))
