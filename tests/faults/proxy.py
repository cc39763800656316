"""A link to a server that looks like a lab's: slow, far, lossy, with small buffers, cut, closed.

A TCP proxy on a port of its own. Loss is what TCP makes of it: a pause until the packet was sent
again. (Where the kernel has netem, ``tc`` does the same to a network namespace; most have none.)
"""

from __future__ import annotations

import queue
import random
import socket
import struct
import threading
import time
from contextlib import suppress

_CHUNK = 1 << 16
_LOOK_S = 0.05
_RESEND_S = 0.2  # TCP's shortest time until a lost packet is sent again
_PACKET = 1500
_CATCHES_UP_S = 0.25  # of what it lost while others had the processor


class _Lane:
    """One direction of the link, for all connections together."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._free_at = 0.0

    def pass_through(self, size: int, bytes_per_s: float) -> None:
        """Returns when these bytes have gone through, at that rate."""
        if bytes_per_s == float("inf"):
            return
        with self._lock:
            began = max(self._free_at, time.monotonic() - _CATCHES_UP_S)
            self._free_at = began + size / bytes_per_s
            until = self._free_at
        while (left := until - time.monotonic()) > 0:
            time.sleep(left)


class Proxy:
    """Forwards its port to another one. Faults are its attributes, and may change at any time."""

    def __init__(self, port: int, target: int) -> None:
        self.port, self._target = port, target
        self.is_cut = False  # connections stay, and nothing passes: a pulled cable
        self.bytes_per_s = float("inf")  # in each direction
        self.delay_s = 0.0  # one way
        self.loss = 0.0  # share of the packets
        self.buffer_bytes = 0  # of each socket and of what is on its way; 0: as the system has it
        self.passed = 0  # bytes, in both directions together
        self._pairs: dict[socket.socket, socket.socket] = {}
        self._listener: socket.socket | None = None
        self._lock = threading.Lock()
        self._ends = threading.Event()
        self._dice = random.Random(port)
        self.open()

    def open(self) -> None:
        """Listens, again if it was closed."""
        with self._lock:
            if self._listener is None:
                self._listener = socket.create_server(("127.0.0.1", self.port), backlog=64)
                lanes = (_Lane(), _Lane())
                words = (self._listener, lanes)
                threading.Thread(target=self._accept, args=words, daemon=True).start()

    def close(self) -> None:
        """Refuses new connections; those that are there go on."""
        with self._lock:
            if self._listener:
                with suppress(OSError):  # wakes whoever waits for the next connection
                    self._listener.shutdown(socket.SHUT_RDWR)
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
        self.close()
        self.reset()

    def _accept(self, listener: socket.socket, lanes: tuple[_Lane, _Lane]) -> None:
        while not self._ends.is_set():
            try:
                client, _ = listener.accept()
            except OSError:  # it was closed
                return
            if self.is_cut:
                threading.Thread(target=self._hold, args=(client, lanes), daemon=True).start()
            else:
                self._connect(client, lanes)

    def _hold(self, client: socket.socket, lanes: tuple[_Lane, _Lane]) -> None:
        self._wait_while_cut()
        self._connect(client, lanes)

    def _connect(self, client: socket.socket, lanes: tuple[_Lane, _Lane]) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._target), 2.0)
        except OSError:
            client.close()
            return
        server.settimeout(None)
        ends = ((client, server), (server, client))
        for one, other in ends:
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.buffer_bytes:
                one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.buffer_bytes)
                one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.buffer_bytes)
            with self._lock:
                self._pairs[one] = other
        for (one, other), lane in zip(ends, lanes, strict=True):
            most = max(2, self.buffer_bytes // _CHUNK) if self.buffer_bytes else 64
            under_way: queue.Queue[tuple[float, bytes]] = queue.Queue(most)
            take, give = (one, under_way, lane), (one, other, under_way)
            threading.Thread(target=self._take, args=take, daemon=True).start()
            threading.Thread(target=self._give, args=give, daemon=True).start()

    def _take(
        self, source: socket.socket, under_way: queue.Queue[tuple[float, bytes]], lane: _Lane
    ) -> None:
        size = min(_CHUNK, self.buffer_bytes or _CHUNK)
        content = b"more"
        while content and not self._ends.is_set():
            self._wait_while_cut()
            try:
                content = source.recv(size)
            except (OSError, ValueError):
                content = b""
            lane.pass_through(len(content), self.bytes_per_s)
            under_way.put((time.monotonic() + self.delay_s + self._resent_s(len(content)), content))

    def _give(
        self, one: socket.socket, other: socket.socket, under_way: queue.Queue[tuple[float, bytes]]
    ) -> None:
        content = b"more"
        while content:
            at, content = under_way.get()
            while (left := at - time.monotonic()) > 0:
                time.sleep(left)
            self._wait_while_cut()
            with self._lock:
                self.passed += len(content)
            try:
                other.sendall(content)
            except (OSError, ValueError):
                content = b""
        self._drop(one)
        while not self._ends.is_set():  # or whoever takes would wait for room without end
            try:
                if not under_way.get(timeout=1.0)[1]:
                    return
            except queue.Empty:
                return

    def _wait_while_cut(self) -> None:
        while self.is_cut and not self._ends.is_set():
            time.sleep(_LOOK_S)

    def _resent_s(self, size: int) -> float:
        packets = max(1, size // _PACKET)
        is_lost = self.loss and self._dice.random() < 1 - (1 - self.loss) ** packets
        return _RESEND_S if is_lost else 0.0

    def _drop(self, one: socket.socket) -> None:
        with self._lock:
            other = self._pairs.pop(one, None)
            if other is None:
                return
            self._pairs.pop(other, None)
        for end in (one, other):
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            with suppress(OSError):  # wakes whoever reads it
                end.shutdown(socket.SHUT_RDWR)
            end.close()
