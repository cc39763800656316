"""Emulated speed: a step is stretched until it took its processor time divided by the speed.

Pacing by the processor time that steps really use, not by wall time, keeps the ratio between
emulated devices while they share a machine, as long as all of them together fit its cores.
"""

from __future__ import annotations

import statistics
import time
from collections import deque

# A step later than this is reported as missed, and the schedule restarts from it.
_TOLERANCE_S = 0.25


class Pace:
    """Call ``step_done`` after every step; it sleeps as long as the emulated device would work."""

    def __init__(self, speed: float) -> None:
        self._speed = speed
        self._recent_cpu_s: deque[float] = deque(maxlen=64)
        self.missed = 0
        self.resume()

    def resume(self) -> None:
        """Starts the clock anew, after time that was not training."""
        self._cpu_mark = time.process_time()
        self._due = time.monotonic()

    def step_done(self) -> None:
        cpu = time.process_time()
        self._recent_cpu_s.append(cpu - self._cpu_mark)
        self._due += statistics.median(self._recent_cpu_s) / self._speed
        ahead = self._due - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
        elif ahead < -_TOLERANCE_S:
            self.missed += 1
            self._due = time.monotonic()
        self._cpu_mark = time.process_time()
