"""The head's end of an agent: requests and answers, events to a callback, a deadline on everything.

How the agent's streams are opened (a local process, an SSH channel) is the caller's business.
"""

from __future__ import annotations

import itertools
import json
import queue
import threading
from collections.abc import Callable
from typing import IO, Any, TypeAlias

from hadar_cli.errors import HadarError
from hadar_cli.node.agent import MARK

Message: TypeAlias = dict[str, Any]
_LONGEST_LINE = 1 << 20
_MARK = MARK.encode()


class AgentError(HadarError):
    """The agent refused a request, or cannot be reached any more."""


class AgentLink:
    """One agent's two streams. Events arrive on a thread of their own."""

    def __init__(
        self,
        requests: IO[bytes],
        answers: IO[bytes],
        on_event: Callable[[Message], None],
        on_end: Callable[[], None],
    ) -> None:
        self._requests, self._answers = requests, answers
        self._on_event, self._on_end = on_event, on_end
        self._numbers = itertools.count(1)
        self._waiting: dict[int, queue.Queue[Message]] = {}
        self._lock = threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()

    def ask(self, do: str, timeout_s: float = 30.0, **fields: Any) -> Message:
        """Sends a request and returns its answer; raises AgentError when there is none in time."""
        number = next(self._numbers)
        answer: queue.Queue[Message] = queue.Queue(1)
        self._waiting[number] = answer
        self._send({"id": number, "do": do, **fields})
        try:
            message = answer.get(timeout=timeout_s)
        except queue.Empty:
            raise AgentError(f"no answer to {do!r} within {timeout_s:.0f} s") from None
        finally:
            self._waiting.pop(number, None)
        if "error" in message:
            raise AgentError(str(message["error"]))
        return message

    def tell(self, do: str, **fields: Any) -> None:
        """Sends a request whose answer nobody waits for."""
        self._send({"id": next(self._numbers), "do": do, **fields})

    def close(self) -> None:
        """Ends the agent by closing its input."""
        with self._lock:
            try:
                self._requests.close()
            except OSError:
                return

    def _send(self, message: Message) -> None:
        line = json.dumps(message).encode() + b"\n"
        with self._lock:
            try:
                self._requests.write(line)
                self._requests.flush()
            except (OSError, ValueError) as error:
                raise AgentError(f"the agent is gone: {error}") from error

    def _read(self) -> None:
        try:
            while line := self._answers.readline(_LONGEST_LINE):
                if line.startswith(_MARK):
                    self._dispatch(json.loads(line[len(_MARK) :]))
        except (OSError, ValueError):
            pass  # a broken stream ends the link like a closed one
        for answer in list(self._waiting.values()):
            answer.put({"error": "the agent ended"})
        self._on_end()

    def _dispatch(self, message: Message) -> None:
        if "event" in message:
            self._on_event(message)
        elif waiting := self._waiting.get(message.get("answer", 0)):
            waiting.put(message)
