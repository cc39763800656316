"""The head's disk: a real directory, and what of it would survive a loss of power.

Only what was synced is safe: a file's bytes by a sync of the file, its name by one of its folder.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from tests.faults.misfortune import HeadKilledError, Misfortune


class Disk:
    """Stands in for ``os.fsync``; kills the head at it, fails it, and knows what is safe."""

    def __init__(self, root: Path, misfortune: Misfortune) -> None:
        self.root, self._misfortune = root, misfortune
        self._safe_bytes: dict[int, int] = {}  # inode -> length on the disk
        self._safe_names: dict[int, dict[str, int]] = {}  # folder's inode -> name -> inode
        self.is_watched = False
        self.loses_power = False
        self.dies_in: int | None = None  # so many syncs the head dies, whatever else there is

    @contextmanager
    def mounted(self) -> Iterator[None]:
        with patch("os.fsync", self.sync):
            yield

    def sync(self, descriptor: int) -> None:
        kind = self._strike()
        if kind == "disk full":
            raise OSError(errno.ENOSPC, "No space left on device")
        is_late = kind is not None and self._misfortune.dice.random() < 0.5
        if kind is None or is_late:
            self._make_safe(os.fstat(descriptor), descriptor)
        if kind:
            self.loses_power = kind == "power lost at a sync"
            raise HeadKilledError(kind)

    def _strike(self) -> str | None:
        if not self.is_watched:
            return None
        kinds = ["head killed at a sync", "power lost at a sync", "disk full"]
        if self.dies_in is not None:
            self.dies_in -= 1
            if self.dies_in < 0:
                self.dies_in = None
                self._misfortune.fired[kinds[0]] += 1
                return kinds[0]
        return self._misfortune.struck(kinds)

    def _make_safe(self, status: os.stat_result, descriptor: int) -> None:
        if stat.S_ISDIR(status.st_mode):
            with os.scandir(descriptor) as entries:
                self._safe_names[status.st_ino] = {e.name: e.inode() for e in entries}
        else:
            self._safe_bytes[status.st_ino] = status.st_size

    def crash(self) -> None:
        """After a kill every byte is still there; after a loss of power only the safe ones."""
        if self.loses_power:
            for folder in (self.root, self.root / "objects", self.root / "models"):
                self._forget_unsafe(folder)
        self.loses_power = False

    def _forget_unsafe(self, folder: Path) -> None:
        safe = self._safe_names.get(folder.stat().st_ino, {})
        dice = self._misfortune.dice
        for path in sorted(folder.iterdir()):
            status = path.stat()
            if not path.is_file() or path.name in ("lock", "run.json"):
                continue
            if path.name not in safe and dice.random() < 0.5:  # a name replaced is never without
                path.unlink()
                continue
            least = min(self._safe_bytes.get(status.st_ino, 0), status.st_size)
            os.truncate(path, dice.randint(least, status.st_size))
