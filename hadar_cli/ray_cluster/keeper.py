"""Holds one machine of a Ray cluster: an actor, which starts there what the bridge asks for.

The commands are its children, their streams its pipes. What they start in sessions of their own
lives on when the actor is killed; the head's lease ends it. Without a stream for ``idle_s`` it ends
by itself, so that nobody's GPUs are held for a head that never comes back.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

READ_S = 5.0  # without output, before a read says so
_SILENT_S = 20.0  # without a word from the bridge, before a stream counts as cut
_FAREWELL_S = 2.0  # for a command whose input has ended
_LOOK_EVERY_S = 1.0
_BUFFER = 4 << 20
_CHUNK = 1 << 20
_LONGEST_COMPLAINT = 2000


class Stream:
    """A command and its pipes. Pieces of its input may overtake each other on their way here."""

    def __init__(self, process: asyncio.subprocess.Process, errors: IO[bytes]) -> None:
        self.process, self._errors = process, errors
        self.heard_at = time.monotonic()
        self._written = 0
        self._turn = asyncio.Condition()

    async def read(self) -> bytes | None:
        """Some output; nothing at its end; None if there is none yet."""
        self.heard_at = time.monotonic()
        assert self.process.stdout
        try:
            return await asyncio.wait_for(self.process.stdout.read(_CHUNK), READ_S)
        except asyncio.TimeoutError:
            return None
        finally:
            self.heard_at = time.monotonic()

    async def write(self, position: int, content: bytes) -> None:
        assert self.process.stdin
        async with self._turn:
            await self._turn.wait_for(lambda: self._written >= position)
            try:
                self.process.stdin.write(content)
                await self.process.stdin.drain()
            finally:
                self._written = position + len(content)
                self.heard_at = time.monotonic()
                self._turn.notify_all()

    async def close(self) -> str:
        """Ends its input, which ends it; kills it where that does not help. Its last words."""
        if self.process.stdin:
            self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), _FAREWELL_S)
        except asyncio.TimeoutError:
            with suppress(ProcessLookupError):
                self.process.kill()
            await self.process.wait()
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - _LONGEST_COMPLAINT))
        complaint = self._errors.read().decode(errors="replace").strip()
        self._errors.close()
        return complaint


class Keeper:
    """The actor. ``directory`` is the run's on this machine; without one it is for a visit."""

    def __init__(self, directory: str | None, idle_s: float) -> None:
        self._streams: dict[int, Stream] = {}
        self._opened, self._idle_s, self._used_at = 0, idle_s, time.monotonic()
        self._looking: asyncio.Task[None] | None = None
        # `python3` is Ray's own, unless the inventory names another.
        here = str(Path(sys.executable).parent)
        self._env = {**os.environ, "PATH": f"{here}{os.pathsep}{os.environ.get('PATH', '')}"}
        os.umask(0o077)
        if directory:
            stop_workers_on_other_cards(Path(directory).expanduser())

    async def ready(self) -> bool:
        self._looking = self._looking or asyncio.ensure_future(self._look())
        return True

    async def open(self, command: str) -> int:
        """Starts a command; the number of its stream."""
        errors = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the process
        process = await asyncio.create_subprocess_exec(
            *("sh", "-c", f"exec {command}"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
            limit=_BUFFER,
            cwd=Path.home(),
            env=self._env,
        )
        self._opened += 1
        self._streams[self._opened] = Stream(process, errors)
        return self._opened

    async def read(self, number: int) -> bytes | None:
        stream = self._streams.get(number)
        return await stream.read() if stream else b""

    async def write(self, number: int, position: int, content: bytes) -> None:
        if stream := self._streams.get(number):
            await stream.write(position, content)

    async def close(self, number: int) -> str:
        stream = self._streams.pop(number, None)
        return await stream.close() if stream else ""

    async def close_all(self) -> None:
        await asyncio.gather(*map(self.close, list(self._streams)))

    async def _look(self) -> None:
        """Ends streams whose bridge is gone, and itself when nobody wants it."""
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            now = time.monotonic()
            for number, stream in list(self._streams.items()):
                if now > stream.heard_at + _SILENT_S:
                    await self.close(number)
            if self._streams:
                self._used_at = now
            elif now > self._used_at + self._idle_s:
                os._exit(0)


def stop_workers_on_other_cards(run: Path) -> None:
    """Workers outlive an actor that is killed. Ray may have given their cards to others since."""
    shown, note = os.environ.get("CUDA_VISIBLE_DEVICES", ""), run / "cards"
    run.mkdir(mode=0o700, parents=True, exist_ok=True)
    if note.exists() and note.read_text() != shown:
        for worker in (run / "workers").glob("*/"):
            (worker / "stop").touch()
    note.write_text(shown)
