"""What a worker is about, and how long that may last when its order's time is over.

A step, a save or an evaluation may take longer than a slot. Whoever is in the middle of one is let
finish it, within what such a phase took before; a worker that hangs is still ended.
"""

from __future__ import annotations

LOAD, EVALUATE, TRAIN, SAVE = "load", "evaluate", "train", "save"
_KNOWN = (LOAD, EVALUATE, TRAIN, SAVE)
#: of a phase that never ended yet: a first step may compile, a first save may go to a slow disk
UNMEASURED_S = 600.0
_TIMES, _MORE_S = 3.0, 10.0  # of the longest so far
_LONGEST_S = 86_400.0  # whatever a script says


def allowance_s(phase: object, longest_s: object) -> float:
    """How long the phase may go on past its order's time; 0 where a script names no known one."""
    if not isinstance(phase, str) or phase not in _KNOWN:
        return 0.0
    if not isinstance(longest_s, int | float) or not 0 < longest_s < _LONGEST_S:
        return UNMEASURED_S
    return _TIMES * longest_s + _MORE_S


class Phases:
    """The phase that a process is in, and the longest one of each kind so far."""

    def __init__(self) -> None:
        self.now = ""
        self._since = 0.0
        self._longest_s: dict[str, float] = {}

    @property
    def longest_s(self) -> float:
        return self._longest_s.get(self.now, 0.0)

    def enter(self, phase: str, now: float) -> None:
        self.ended(now)
        self.now = phase

    def ended(self, now: float) -> None:
        """One is over, and the next of the same kind begins: a step, mostly."""
        took_s, self._since = now - self._since, now
        if self.now and took_s > self._longest_s.get(self.now, 0.0):
            self._longest_s[self.now] = took_s
