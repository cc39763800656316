"""Who takes devices that nobody else wants: waiting gangs, those nearest to their best price first.

Prices hold from one decision to the next, and so does this order; devices that come free in
between find who takes them by a look at the front of a few sorted lines.
"""

from __future__ import annotations

import numpy as np

from hadar_cli.core.arrays import BoolArray, FloatArray, IntArray

_GLANCE = 64  # jobs looked at first; eight times as many each time that none of them waits


class WaitingLines:
    """A line of gangs for every kind of device and width.

    ``ratio`` is what a step costs on each kind, over what it costs where it is cheapest. ``order``
    has the jobs that may stand in line, and decides between equals.
    """

    def __init__(self, ratio: FloatArray, gang: IntArray, order: IntArray) -> None:
        self._ratio, self._gang, self._order = ratio, gang, order
        self._place = np.zeros(len(gang), dtype=np.int64)
        self._place[order] = np.arange(len(order))
        self._lines: dict[int, dict[int, IntArray]] = {}

    def nearest(self, waits: BoolArray, free: list[int]) -> tuple[int, int] | None:
        """The job that waits, and the kind with room for all of it, of the lowest ratio."""
        best = None
        for kind, room in enumerate(free):
            if room:
                for width, line in self._lines_for(kind).items():
                    j = _first(line, waits) if width <= room else None
                    if j is not None:
                        found = float(self._ratio[j, kind]), int(self._place[j]), kind, j
                        best = found if best is None else min(best, found)
        return best and (best[3], best[2])

    def _lines_for(self, kind: int) -> dict[int, IntArray]:
        if kind not in self._lines:
            ratio = self._ratio[self._order, kind]
            able = self._order[ratio < np.inf]
            line = able[np.argsort(ratio[ratio < np.inf], kind="stable")]
            width = self._gang[line]
            widths = np.flatnonzero(np.bincount(width)).tolist()
            self._lines[kind] = {w: line[width == w] for w in widths}
        return self._lines[kind]


def _first(line: IntArray, waits: BoolArray) -> int | None:
    """The first in line who waits."""
    begin, size = 0, _GLANCE
    while begin < len(line):
        there = waits[line[begin : begin + size]]
        at = int(there.argmax())
        if there[at]:
            return int(line[begin + at])
        begin, size = begin + size, 8 * size
    return None
