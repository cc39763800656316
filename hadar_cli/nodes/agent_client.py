"""The head's end of an agent: requests and answers, events to a callback, a deadline on each."""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

from hadar_cli.nodes.wire import LinkLostError, Message, Wire, raise_refusal, said

# An agent with something to say about every device says some dozens of things a second.
_BURST, _PER_S = 10_000, 1000

OnEvent: TypeAlias = Callable[[Message], None]
OnEnd: TypeAlias = Callable[["AgentLink"], None]


class AgentLink:
    """One agent, spoken to over a wire. Events arrive on a thread of their own."""

    def __init__(self, wire: Wire, on_event: OnEvent, on_end: OnEnd) -> None:
        self._wire, self._on_event, self._on_end = wire, on_event, on_end
        self._numbers = itertools.count(1)
        self._waiting: dict[int, queue.Queue[Message]] = {}
        self._lock = threading.Lock()
        self.heard_at = time.monotonic()
        self._why = ""
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def why_ended(self) -> str:
        return self._why

    def ask(self, do: str, timeout_s: float = 30.0, **fields: Any) -> Message:
        """Sends a request and returns its answer; raises AgentError when the agent refuses it."""
        number = next(self._numbers)
        answer: queue.Queue[Message] = queue.Queue(1)
        self._waiting[number] = answer
        try:
            if self._why:  # whoever asks after the end would wait for an answer in vain
                raise LinkLostError(f"its agent ended: {self._why}")
            self._send({"id": number, "do": do, **fields})
            message = answer.get(timeout=timeout_s)
        except queue.Empty:
            raise LinkLostError(f"no answer to {do!r} within {timeout_s:.0f} s") from None
        finally:
            self._waiting.pop(number, None)
        if message.get("lost"):
            raise LinkLostError(f"its agent ended: {self._why}")
        raise_refusal(message)
        return message

    def tell(self, do: str, **fields: Any) -> None:
        """Sends a request whose answer nobody waits for."""
        self._send({"id": next(self._numbers), "do": do, **fields})

    def close(self) -> None:
        """Ends the agent by closing its input."""
        with self._lock:
            self._wire.close()

    def _send(self, message: Message) -> None:
        with self._lock:
            self._wire.send(message)

    def _read(self) -> None:
        began, heard = time.monotonic(), 0
        try:
            while True:
                message = self._wire.receive()
                self.heard_at = time.monotonic()
                heard += 1
                if heard > _BURST + _PER_S * (self.heard_at - began):
                    raise LinkLostError("it sends messages without end")
                self._dispatch(message)
        except Exception as error:  # whatever a node sends costs this node only
            self._why = said(str(error)) or "it closed the connection"
        for answer in list(self._waiting.values()):
            with suppress(queue.Full):
                answer.put_nowait({"lost": True})
        self._on_end(self)

    def _dispatch(self, message: Message) -> None:
        if "event" in message:
            self._on_event(message)
        elif waiting := self._waiting.get(message.get("answer", 0)):
            with suppress(queue.Full):  # answered before: nobody waits for a second one
                waiting.put_nowait(message)
