"""Word that this machine will soon be taken away from us, by whoever lent it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from hadar_cli.node.contract import NOTICE

_LOOK_EVERY_S = 0.5
_LONGEST = 300


class Notices:
    """Looks at the file in which whoever keeps the machine for us leaves word, if there is one."""

    def __init__(self) -> None:
        self._path = os.environ.get(NOTICE, "")
        self._looked_at = 0.0

    def news(self) -> str | None:
        """Why the machine goes, once."""
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
