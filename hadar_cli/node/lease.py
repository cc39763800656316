"""How long workers may go on without a word of the head: a file whose content is the node's time.

The agent renews it in the run's directory, and in memory where there is some to share: a disk
that is full, read-only or stalled is no sign that the head is gone. The newer one of both holds.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from contextlib import suppress
from pathlib import Path

MEMORY = Path("/dev/shm")  # noqa: S108 - opened with care: any user of the machine can write there
_LONGEST = 40


class Lease:
    """A run's lease on one node, as whoever renews or watches it holds it."""

    def __init__(self, path: Path) -> None:
        self._path, self._in_memory = path, _in_memory(path)
        self._seen = 0.0  # a logout may empty the memory, and must not end what the disk shows less

    def renew(self) -> None:
        """On the disk; OSError where it takes nothing."""
        part = self._path.with_name(f"{self._path.name}.part")
        part.write_text(repr(time.monotonic()))
        part.replace(self._path)

    def renew_in_memory(self) -> None:
        """Waits for no disk. Nothing where there is no such memory."""
        with suppress(OSError):
            descriptor = _open(self._in_memory, os.O_WRONLY | os.O_CREAT)
            try:
                # At once, and always as long: a reader sees the old time or the new one.
                os.pwrite(descriptor, f"{time.monotonic():020.6f}".encode(), 0)
            finally:
                os.close(descriptor)

    def renewed_at(self) -> float:
        """On the node's monotonic clock; 0 where it never was."""
        with suppress(OSError, ValueError):
            self._seen = max(self._seen, float(self._path.read_text()))
        with suppress(OSError, ValueError):
            descriptor = _open(self._in_memory, os.O_RDONLY)
            try:
                self._seen = max(self._seen, float(os.pread(descriptor, _LONGEST, 0)))
            finally:
                os.close(descriptor)
        return self._seen

    def forget(self) -> None:
        """What is in memory, where no run's directory would take it along."""
        with suppress(OSError):
            self._in_memory.unlink()


def _in_memory(path: Path) -> Path:
    name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:20]
    return MEMORY / f"hadar-{os.getuid()}-{name}.lease"


def _open(path: Path, flags: int) -> int:
    """One's own plain file."""
    descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
        os.close(descriptor)
        raise OSError(f"{path} is another's")
    return descriptor
