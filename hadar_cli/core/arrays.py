"""Arrays by the kind of number they hold, and rows of a table by the ids of its jobs."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

FloatArray: TypeAlias = NDArray[np.float64]
IntArray: TypeAlias = NDArray[np.int64]
BoolArray: TypeAlias = NDArray[np.bool_]

_SPARSE = 8  # ids spread over this many times their number are searched for, not looked up


class RowIndex:
    """Answers with arrays; ids that are not in the table have the row -1."""

    def __init__(self, ids: NDArray[np.int64]) -> None:
        self._first = int(ids.min()) if len(ids) else 0
        span = int(ids.max()) - self._first + 1 if len(ids) else 0
        self._table: IntArray | None = None
        if span <= _SPARSE * len(ids) + 1024:
            self._table = np.full(span + 1, -1)  # the last row is that of all other ids
            self._table[ids - self._first] = np.arange(len(ids))
        else:
            self._order: IntArray = np.argsort(ids)
            self._sorted = ids[self._order]

    def rows(self, ids: NDArray[np.int64]) -> IntArray:
        if self._table is not None:
            at = ids - self._first
            if at.min(initial=0) < 0 or at.max(initial=0) >= len(self._table):
                at[(at < 0) | (at >= len(self._table))] = -1
            return self._table[at]
        at = np.searchsorted(self._sorted, ids).clip(max=len(self._sorted) - 1)
        found: IntArray = np.where(self._sorted[at] == ids, self._order[at], -1)
        return found

    def rows_of(self, ids: Collection[int]) -> IntArray:
        """The same for the keys of a dictionary and the like."""
        return self.rows(np.fromiter(ids, np.int64, len(ids)))
