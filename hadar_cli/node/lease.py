"""How long workers may go on without a word of the head: a file whose content is the node's time.

The agent renews it in the run's directory, and in memory where there is some to share: a disk
that is full, read-only or stalled is no sign that the head is gone. The newer one of both holds.

Machines may share that disk, and a node may be another machine after a while. Their clocks have
nothing in common: what one of them wrote renews nothing on another, which can tell its age only by
the disk's own time.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
import zlib
from contextlib import suppress
from functools import cache
from pathlib import Path

MEMORY = Path("/dev/shm")  # noqa: S108 - opened with care: any user of the machine can write there
_LONGEST = 40


@cache
def boot() -> int:
    """Of which start of which machine; 0 where that cannot be told."""
    try:
        return zlib.crc32(Path("/proc/sys/kernel/random/boot_id").read_bytes())
    except OSError:
        return 0


class Lease:
    """A run's lease on one node, as whoever renews or watches it holds it."""

    def __init__(self, path: Path) -> None:
        self._path, self._in_memory = path, _in_memory(path)
        self._seen = 0.0  # a logout may empty the memory, and must not end what the disk shows less

    def renew(self) -> None:
        """On the disk; OSError where it takes nothing."""
        part = self._path.with_name(f"{self._path.name}.part")
        part.write_text(f"{boot()} {time.monotonic()!r}")
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
            machine, moment = self._path.read_text().split()
            self._seen = max(self._seen, float(moment) if int(machine) == boot() else 0.0)
        with suppress(OSError, ValueError):
            descriptor = _open(self._in_memory, os.O_RDONLY)
            try:
                self._seen = max(self._seen, float(os.pread(descriptor, _LONGEST, 0)))
            finally:
                os.close(descriptor)
        return self._seen

    def is_fresh(self, for_s: float) -> bool:
        """Whether a head renewed it here within that time."""
        return time.monotonic() < self.renewed_at() + for_s

    def is_fresh_elsewhere(self, for_s: float) -> bool:
        """Whether a head renewed it within that time on another machine with the same disk."""
        try:
            if int(self._path.read_text().split()[0]) == boot():
                return False
            return _disk_now(self._path) < self._path.stat().st_mtime + for_s
        except (OSError, ValueError, IndexError):
            return False

    def end(self) -> None:
        """The head has left in order: nobody need wait for it to expire."""
        self.forget()
        with suppress(OSError):
            self._path.unlink()

    def forget(self) -> None:
        """What is in memory, where no run's directory would take it along."""
        with suppress(OSError):
            self._in_memory.unlink()


def _disk_now(beside: Path) -> float:
    """By the clock that stamps the files there. A new file also has a network's disk look anew."""
    probe = beside.with_name(f"{beside.name}.{os.getpid()}.now")
    probe.touch()
    try:
        return probe.stat().st_mtime
    finally:
        probe.unlink()


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
