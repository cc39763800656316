"""Brings home what a job left as soon as it ends, while the others still train.

It has connections of its own, so nothing that trains waits for it, and it tells no problems: when
the run ends, ``bring_home`` looks at everything once more and tells what is still missing.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hadar_cli.core.model import Job
from hadar_cli.errors import HadarError
from hadar_cli.nodes.connection import Connection
from hadar_cli.nodes.supply.outputs import bring_job

_LEAVE_S = 5.0


class EarlyOutputs:
    """One thread that fetches, job after job; ``connect`` makes a connection to a node by name."""

    def __init__(self, connect: Callable[[str], Connection], folder: Path) -> None:
        self._connect, self._folder = connect, folder
        self._wanted: queue.SimpleQueue[tuple[Job, str] | None] = queue.SimpleQueue()
        self._now: Connection | None = None
        self._is_over = False
        self._thread: threading.Thread | None = None

    def fetch(self, job: Job, node: str) -> None:
        """Soon, and not before those asked for earlier."""
        self._wanted.put((job, node))
        if not self._thread:
            self._thread = threading.Thread(target=self._work, daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """Nothing is fetched afterwards; a job that is half way is left as it was before."""
        self._is_over = True
        self._wanted.put(None)
        if self._thread:
            self._thread.join(_LEAVE_S)
            if self._thread.is_alive() and (now := self._now):
                now.abort()
                self._thread.join()

    def _work(self) -> None:
        while (wanted := self._wanted.get()) and not self._is_over:
            job, node = wanted
            with suppress(HadarError, OSError):
                self._now = self._connect(node)
                try:
                    bring_job(self._now, job, self._folder / job.name)
                finally:
                    self._now.close()
