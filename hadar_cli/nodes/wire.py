"""What the head and a node say to each other: marked JSON lines, and counted bytes between them.

How the stream came about (a local process, an SSH channel, an ssh process) is others' business.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeAlias, TypeVar

from hadar_cli.errors import HadarError
from hadar_cli.node.agent.bootstrap import MARK
from hadar_cli.typed import convert

Message: TypeAlias = dict[str, Any]
_MARK = MARK.encode()
_LONGEST_LINE = 1 << 20
_MOST_NOISE = 1 << 22  # between two messages
_LONGEST_SAYING = 500
_LONGEST_COMPLAINT = 2000
_CHUNK = 1 << 18
_WRITE_S = 10.0
T = TypeVar("T")


class LinkLostError(HadarError):
    """The connection broke or nothing was heard in time: trying again may help."""


class LoginRefusedError(LinkLostError):
    """The machine turned all keys away. Trying again soon would only get this one locked out."""


class NotYetError(LinkLostError):
    """A scheduler has promised the machine, or lost it just now: waiting helps.

    Of each ``kind`` the first is told, while it lasts.
    """

    def __init__(self, message: str, fix: str | None = None, *, kind: str = "") -> None:
        super().__init__(message, fix)
        self.kind = kind


class NoMoreError(LinkLostError):
    """Whoever allots machines gives no more, for want of money or rights: waiting is in vain."""


class AgentError(HadarError):
    """The node understood and said no."""


class SupersededError(AgentError):
    """Another head has taken over the run."""


def said(words: object, limit: int = _LONGEST_SAYING) -> str:
    """What a node says of itself, fit for a message: one line without control characters."""
    text = words if isinstance(words, str) else repr(words)
    text = "".join(c if c.isprintable() else " " for c in text[: limit + 1])
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def read_as(message: object, kind: type[T]) -> T:
    """The message as what it should be; AgentError where it is not."""
    try:
        return convert(message, kind)
    except (ValueError, TypeError, ArithmeticError, RecursionError) as error:
        raise AgentError(f"its answer makes no sense: {said(str(error))}") from error


def raise_refusal(answer: Message) -> None:
    """Raises what a node says no by, with the fix that it knows."""
    if "error" in answer:
        kind = SupersededError if answer.get("superseded") else AgentError
        raise kind(said(answer["error"]), said(answer["fix"]) if "fix" in answer else None)


class Stream(Protocol):
    """Two-way bytes. Raises LinkLostError where they stall or break."""

    def read(self, size: int) -> bytes:
        """Some bytes, at most ``size``; none at the end."""
        ...

    def write(self, content: bytes | memoryview) -> None: ...

    def close(self) -> None: ...


class Wire:
    """Messages and bytes over a stream."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._pending = bytearray()

    def send(self, message: Message) -> None:
        self._stream.write(json.dumps(message).encode() + b"\n")

    def send_bytes(self, content: bytes | memoryview) -> None:
        self._stream.write(content)

    def receive(self) -> Message:
        """The next marked line; everything else, such as a login's greeting, is passed over."""
        noise = 0
        while noise <= _MOST_NOISE:
            line = self._readline()
            if line.startswith(_MARK):
                return _parse(line[len(_MARK) :])
            noise += len(line) + 1
        raise LinkLostError("the node sends noise without end")

    def answer(self) -> Message:
        """The next message, raised if it is an error."""
        message = self.receive()
        raise_refusal(message)
        return message

    def receive_bytes(self, count: int) -> Iterator[bytes]:
        """Exactly ``count`` bytes, in pieces as they arrive."""
        while count:
            if self._pending:
                chunk = bytes(self._pending[:count])
                del self._pending[:count]
            else:
                chunk = self._read(min(count, _CHUNK))
            count -= len(chunk)
            yield chunk

    def close(self) -> None:
        self._stream.close()

    def _readline(self) -> bytes:
        searched = 0
        while (end := self._pending.find(b"\n", searched)) < 0:
            searched = len(self._pending)
            if searched > _LONGEST_LINE:
                raise LinkLostError("the node sends lines without end")
            self._pending += self._read(_CHUNK)
        line = bytes(self._pending[:end])
        del self._pending[: end + 1]
        return line

    def _read(self, size: int) -> bytes:
        chunk = self._stream.read(size)
        if not chunk:
            raise LinkLostError("the connection ended")
        return chunk


def _parse(line: bytes) -> Message:
    """Neither too deep nor with text that no file could hold: what is in it gets far."""
    try:
        message = json.loads(line)
        if b"\\u" in line:  # JSON can spell halves of characters
            json.dumps(message, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise LinkLostError(f"the node sent no valid JSON: {said(str(error))}") from error
    if not isinstance(message, dict):
        raise LinkLostError("the node sent no JSON object")
    return message


class ProcessStream:
    """A child process's stdin and stdout. ``patience_s`` bounds each wait for its output.

    The child has a session of its own: Ctrl-C in the terminal is the head's to handle.
    """

    def __init__(
        self,
        words: Sequence[str],
        patience_s: float | None,
        env: Mapping[str, str] | None = None,
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        self._process = subprocess.Popen(
            words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,  # never the terminal, which is the live view's
            start_new_session=True,
            env=env,
        )
        assert self._process.stdin and self._process.stdout
        self._patience_s = patience_s
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        os.set_blocking(self._in, False)
        self._writing = threading.Lock()  # or closing: a descriptor may be another file's at once
        self.heard_at = 0.0  # by time.monotonic

    def be_patient(self, patience_s: float | None) -> None:
        self._patience_s = patience_s

    def read(self, size: int) -> bytes:
        try:
            if not _is_ready(self._out, select.POLLIN, self._patience_s):
                raise LinkLostError(f"nothing was heard for {self._patience_s:.0f} s")
            content = os.read(self._out, size)
            if content:
                self.heard_at = time.monotonic()
            return content
        except (OSError, ValueError) as error:
            raise LinkLostError(f"the connection broke: {error}") from error

    def write(self, content: bytes | memoryview) -> None:
        left = memoryview(content)
        try:
            while left:
                if not _is_ready(self._in, select.POLLOUT, self._patience_s or _WRITE_S):
                    raise LinkLostError("the node no longer reads what it is sent")
                with self._writing:
                    if self.is_closed:
                        raise LinkLostError("the connection was closed")
                    left = left[os.write(self._in, left) :]
        except (OSError, ValueError) as error:
            raise LinkLostError(f"the connection broke: {error}") from error

    @property
    def is_closed(self) -> bool:
        return self._process.stdin is None or self._process.stdin.closed

    def complaint(self) -> str:
        """The end of what it wrote to stderr, once it has ended or had a moment to."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
        size = os.fstat(self._errors.fileno()).st_size
        tail = os.pread(
            self._errors.fileno(), _LONGEST_COMPLAINT, max(0, size - _LONGEST_COMPLAINT)
        )
        return tail.decode(errors="replace").strip()

    def kill(self) -> None:
        self._process.kill()

    def close(self) -> None:
        """Closes its input, which ends it; kills it where that does not help."""
        with self._writing:
            if self._process.stdin and not self.is_closed:
                self._process.stdin.close()
        try:
            self._process.wait(2.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _is_ready(descriptor: int, event: int, patience_s: float | None) -> bool:
    poll = select.poll()  # select() itself cannot take descriptors beyond 1023
    poll.register(descriptor, event)
    return bool(poll.poll(None if patience_s is None else patience_s * 1000))
