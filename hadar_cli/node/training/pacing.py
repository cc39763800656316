"""Emulated speed: a step is stretched until it took its processor time divided by the speed.

Pacing by the processor time that steps really use, not by wall time, keeps the ratio between
emulated devices while they share a machine, as long as all of them together fit its cores.

A process's first step also loads libraries and chooses kernels: a start, which takes a slow GPU's
host no longer than a fast one's. It is not stretched.
"""

from __future__ import annotations

import statistics
import time
from collections import deque
from collections.abc import Callable

# A step later than this is reported as missed, and the schedule restarts from it.
_TOLERANCE_S = 0.25


class Pace:
    """Call ``step_done`` after every step; it sleeps as long as the emulated device would work."""

    def __init__(
        self,
        speed: float,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
        sleep: Callable[[float], None] = time.sleep,
        thread_clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self._thread_clock = thread_clock
        self._speed, self._clock, self._cpu_clock, self._sleep = speed, clock, cpu_clock, sleep
        self._recent_cpu_s: deque[float] = deque(maxlen=64)
        self._is_first = True
        self.missed = 0
        self.resume()

    def resume(self) -> None:
        """Starts the clock anew, after time that was not training."""
        self._cpu_mark = self._cpu_clock()
        self._thread_mark = self._thread_clock()
        self._due = self._clock()

    def catch_up(self) -> None:
        """In the middle of a gang's step: sleeps until the emulated device would be as far.

        Threads that exchange gradients meanwhile are not the device's work.
        """
        if self._is_first:
            return
        worked = self._thread_clock() - self._thread_mark
        self._wait_until_due(worked / self._speed)
        self._thread_mark = self._thread_clock()

    def pass_over(self) -> None:
        """What the thread has done since it caught up was the exchange's work, not the device's."""
        self._thread_mark = self._thread_clock()

    def go_on(self) -> None:
        """The gang has exchanged its gradients: time that was waited is nobody's work."""
        self._is_first = False
        self.resume()

    def step_done(self) -> None:
        if self._is_first:
            self._is_first = False
            self.resume()
            return
        cpu = self._cpu_clock()
        self._recent_cpu_s.append(cpu - self._cpu_mark)
        self._wait_until_due(statistics.median(self._recent_cpu_s) / self._speed)
        self._cpu_mark = self._cpu_clock()

    def _wait_until_due(self, seconds: float) -> None:
        self._due += seconds
        ahead = self._due - self._clock()
        if ahead > 0:
            self._sleep(ahead)
        elif ahead < -_TOLERANCE_S:
            self.missed += 1
            self._due = self._clock()
