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
from pathlib import Path

_RECENT = 64  # steps whose median is the device's pace: a busy machine's moods are not its own
# A step later than this is reported as missed, and the schedule restarts from it.
_TOLERANCE_S = 0.25


def processor_waits() -> float:
    """Seconds that this thread has been ready to run and others had the processors."""
    try:
        return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0  # not told on this system


class Pace:
    """Call ``step_done`` after every step; it sleeps as long as the emulated device would work."""

    def __init__(
        self,
        speed: float,
        clock: Callable[[], float] = time.monotonic,
        cpu_clock: Callable[[], float] = time.process_time,
        sleep: Callable[[float], None] = time.sleep,
        thread_clock: Callable[[], float] = time.thread_time,
        waits: Callable[[], float] = processor_waits,
    ) -> None:
        self._thread_clock, self._waits = thread_clock, waits
        self._speed, self._clock, self._cpu_clock, self._sleep = speed, clock, cpu_clock, sleep
        self._recent_cpu_s: deque[float] = deque(maxlen=_RECENT)
        self._stage = self._samples = 0  # of a gang's step
        self._recent_stages_s: dict[int, deque[float]] = {}
        self._waited_s = waits()
        self._is_first = True
        self.missed = 0
        self.resume()

    def resume(self) -> None:
        """Starts the clock anew, after time that was not training."""
        self._cpu_mark = self._cpu_clock()
        self._thread_mark = self._thread_clock()
        self._due = self._clock()

    def begin_step(self, samples: int) -> None:
        """A gang's step begins, of so many samples: its stages take what they took before."""
        self._stage = 0
        if samples != self._samples:
            self._samples = samples
            self._recent_stages_s.clear()

    def catch_up(self) -> None:
        """At the next stage of a gang's step: sleeps until the emulated device would be as far.

        Threads that exchange gradients meanwhile are not the device's work.
        """
        if self._is_first:
            return
        recent = self._recent_stages_s.setdefault(self._stage, deque(maxlen=_RECENT))
        recent.append(self._thread_clock() - self._thread_mark)
        self._stage += 1
        self._wait_until_due(statistics.median(recent) / self._speed)
        self._thread_mark, self._waited_s = self._thread_clock(), self._waits()

    def pass_over(self) -> None:
        """What the thread has done since it caught up was the exchange's work, not the device's."""
        self._thread_mark = self._thread_clock()

    def go_on(self) -> None:
        """The gang has exchanged its gradients: time that was waited is nobody's work.

        The device goes on at once. What its process waited for a processor is this machine's time.
        """
        self._is_first = False
        self.resume()
        self._due -= self._waits() - self._waited_s

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
