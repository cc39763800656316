"""Word that this machine will soon be taken away from us, by whoever lent it."""

from __future__ import annotations

import os
import queue
import time
from contextlib import suppress
from pathlib import Path

from hadar_cli.node.contract import METADATA, NOTICE
from hadar_cli.node.metadata import MetadataWatch

_LOOK_EVERY_S = 0.5
_LONGEST = 300


class PreemptionNotices:
    """Looks where whoever keeps the machine for us leaves word, if there is such a place: a file,
    or a cloud's metadata service."""

    def __init__(self) -> None:
        self._path = os.environ.get(NOTICE, "")
        self._looked_at = 0.0
        self._told: queue.SimpleQueue[str] = queue.SimpleQueue()
        if address := os.environ.get(METADATA):
            MetadataWatch(address, self._told.put)

    def news(self) -> str | None:
        """Why the machine goes, once."""
        with suppress(queue.Empty):
            return self._told.get_nowait()[:_LONGEST]
        now = time.monotonic()
        if not self._path or now < self._looked_at + _LOOK_EVERY_S:
            return None
        self._looked_at = now
        try:
            why = Path(self._path).read_text(errors="replace")[:_LONGEST].strip()
        except OSError:
            return None
        if why:  # or else it is being written
            self._path = ""
        return why or None
