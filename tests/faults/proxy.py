"""A link to a server that can be cut, slowed down and closed: a TCP proxy on a port of its own."""

from __future__ import annotations

import selectors
import socket
import struct
import threading
import time
from contextlib import suppress

_CHUNK = 1 << 14


class Proxy:
    """Forwards its port to another one. Faults are its attributes, and may change at any time."""

    def __init__(self, port: int, target: int) -> None:
        self.port, self._target = port, target
        self.is_cut = False  # connections stay, and nothing passes: a pulled cable
        self.bytes_per_s = float("inf")
        self.passed = 0  # bytes, in both directions together
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._listener: socket.socket | None = None
        self._selector = selectors.DefaultSelector()
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self.open()
        self._thread = threading.Thread(target=self._forward, daemon=True)
        self._thread.start()

    def open(self) -> None:
        """Listens, again if it was closed."""
        with self._lock:
            if self._listener is None:
                self._listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
                self._listener.setblocking(False)
                self._selector.register(self._listener, selectors.EVENT_READ)

    def close(self) -> None:
        """Refuses new connections; those that are there go on."""
        with self._lock:
            if self._listener:
                self._selector.unregister(self._listener)
                self._listener.close()
                self._listener = None

    def reset(self) -> int:
        """Breaks all connections, as a restarted router does; how many there were."""
        with self._lock:
            broken = list(self._pairs)
            for one in broken:
                self._drop(one)
        return len(broken) // 2

    def end(self) -> None:
        self._ends.set()
        self._thread.join()
        self.close()
        self.reset()
        self._selector.close()

    def _forward(self) -> None:
        while not self._ends.is_set():
            if self.is_cut:
                time.sleep(0.02)
                continue
            for key, _ in self._selector.select(0.05):
                with self._lock, suppress(OSError, ValueError, KeyError):
                    if key.fileobj is self._listener:
                        self._accept()
                    elif key.fileobj in self._pairs:
                        self._pass_on(key.fileobj)  # type: ignore[arg-type]

    def _accept(self) -> None:
        assert self._listener
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(("127.0.0.1", self._target), 2.0)
        except OSError:
            client.close()
            return
        for one, other in ((client, server), (server, client)):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            one.settimeout(5.0)
            self._pairs[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _pass_on(self, source: socket.socket) -> None:
        """One piece at a time: a slow link is slow for all its connections together."""
        try:
            content = source.recv(_CHUNK)
            self._pairs[source].sendall(content)
        except OSError:
            content = b""
        if not content:
            self._drop(source)
            return
        self.passed += len(content)
        if self.bytes_per_s < float("inf"):
            time.sleep(len(content) / self.bytes_per_s)

    def _drop(self, one: socket.socket) -> None:
        other = self._pairs.pop(one, None)
        if other is None:
            return
        self._pairs.pop(other, None)
        for end in (one, other):
            with suppress(KeyError, ValueError, OSError):
                self._selector.unregister(end)
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.close()
