"""Whether nodes of one network reach each other, and how fast: one listens, the others call.

Standard library only: this file runs on nodes. It listens at one address, for as long as the visit
lasts, and takes nothing from a caller that does not begin with the visit's secret.
"""

from __future__ import annotations

import hmac
import os
import socket
import threading
import time
from contextlib import suppress
from typing import Any

from hadar_cli.node.network import listening

_CHUNK = 1 << 16
_PATIENCE_S = 3.0  # with one that does not answer: a firewall mostly says nothing at all
_ENOUGH_S = 0.3  # of sending tells how fast a link is
_MOST_BYTES = 64 << 20
_DONE = b"!"


def receive_callers(host: str, secret: str) -> int:
    """Listens there, on a thread that ends with the process; the port."""
    door = listening(host, 0)
    port: int = door.getsockname()[1]

    def serve() -> None:
        while True:
            caller, _ = door.accept()
            threading.Thread(target=_receive, args=(caller, secret.encode()), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    return port


def _receive(caller: socket.socket, secret: bytes) -> None:
    with suppress(OSError), caller:
        caller.settimeout(_PATIENCE_S)
        said = b""
        while len(said) < len(secret) and (more := caller.recv(len(secret) - len(said))):
            said += more
        if not hmac.compare_digest(said, secret):
            return
        caller.sendall(_DONE)
        left = _MOST_BYTES
        while left > 0 and (more := caller.recv(_CHUNK)):
            left -= len(more)
        caller.sendall(_DONE)


def call(host: str, port: int, secret: str) -> dict[str, Any]:
    """What a call there comes to: bytes a second, or why there is none."""
    try:
        with socket.create_connection((host, port), timeout=_PATIENCE_S) as line:
            line.sendall(secret.encode())
            if line.recv(1) != _DONE:
                return {"problem": "somebody else answers there", "bytes_per_s": 0.0}
            began, sent, noise = time.perf_counter(), 0, os.urandom(_CHUNK)
            while sent < _MOST_BYTES and time.perf_counter() < began + _ENOUGH_S:
                line.sendall(noise)
                sent += len(noise)
            line.shutdown(socket.SHUT_WR)
            line.recv(1)
            return {"problem": None, "bytes_per_s": sent / (time.perf_counter() - began)}
    except OSError as error:
        why = "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
        return {"problem": why, "bytes_per_s": 0.0}
