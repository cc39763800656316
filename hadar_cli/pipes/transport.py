"""Byte streams that are a process's pipes, and no more: whatever program gets a command to run
somewhere can be a transport, such as ``kubectl exec -i POD -- sh -c``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hadar_cli.nodes.connection import PATIENCE_S
from hadar_cli.nodes.wire import LinkLostError, ProcessStream


class PipeTransport:
    """Runs commands by these words, to which each command is added as the last."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self._words, self._env = list(words), env
        self._streams: list[ProcessStream] = []

    def open(self, command: str) -> ProcessStream:
        try:
            stream = ProcessStream([*self._words, command], PATIENCE_S, self._env)
        except OSError as error:
            raise LinkLostError(f"{self._words[0]}: {error.strerror}") from error
        self._streams.append(stream)
        return stream

    def open_bulk(self, command: str) -> None:
        return None

    def heard_at(self) -> float:
        return 0.0

    def abort(self) -> None:
        for stream in list(self._streams):
            stream.kill()

    def close(self) -> None:
        while self._streams:
            self._streams.pop().close()

    def recalled(self, idle_s: float) -> str:
        return ""

    def move_on(self) -> None: ...

    def give_back(self) -> None: ...
