"""Sets of steps as sorted, disjoint ranges: a step counts once because a set holds it once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

Range = tuple[int, int]  # first step, end (exclusive)


@dataclass(frozen=True, slots=True)
class StepSet:
    """An immutable set of step numbers."""

    ranges: tuple[Range, ...] = ()

    @classmethod
    def of(cls, ranges: Iterable[Range]) -> StepSet:
        """Joins touching ranges; overlapping ones are an error, for a step done twice is a lie."""
        ranges = tuple(ranges)
        if len(ranges) == 1 and ranges[0][0] < ranges[0][1]:
            return cls(ranges)
        joined: list[Range] = []
        for first, end in sorted(r for r in ranges if r[0] < r[1]):
            if joined and first < joined[-1][1]:
                raise ValueError(f"step {first} is in two ranges")
            if joined and first == joined[-1][1]:
                joined[-1] = (joined[-1][0], end)
            else:
                joined.append((first, end))
        return cls(tuple(joined))

    def __len__(self) -> int:
        count = 0
        for first, end in self.ranges:
            count += end - first
        return count

    def __or__(self, other: StepSet) -> StepSet:
        """The union of two disjoint sets."""
        if not (self.ranges and other.ranges):
            return self if self.ranges else other
        return StepSet.of(self.ranges + other.ranges)

    def __sub__(self, other: StepSet) -> StepSet:
        left: list[Range] = []
        for first, end in self.ranges:
            for hole_first, hole_end in other._touching(first, end):
                if first < hole_first:
                    left.append((first, hole_first))
                first = max(first, hole_end)
            if first < end:
                left.append((first, end))
        return StepSet(tuple(left))

    def __le__(self, other: StepSet) -> bool:
        return all([other._holds(first, end) for first, end in self.ranges])

    def first(self, count: int) -> StepSet:
        """The ``count`` smallest steps."""
        taken: list[Range] = []
        for first, end in self.ranges:
            if count <= 0:
                break
            taken.append((first, min(end, first + count)))
            count -= end - first
        return StepSet(tuple(taken))

    def _touching(self, first: int, end: int) -> tuple[Range, ...]:
        """The ranges that share a step with this one."""
        ranges = self.ranges
        start = bisect_left(ranges, (first, first))
        if start and ranges[start - 1][1] > first:
            start -= 1
        return ranges[start : bisect_left(ranges, (end, end), start)]

    def _holds(self, first: int, end: int) -> bool:
        """Whether all of this range is here; then it is in one of ours, for they do not touch."""
        touching = self._touching(first, end)
        return len(touching) == 1 and touching[0][0] <= first and end <= touching[0][1]


def all_steps(target: int) -> StepSet:
    return StepSet.of([(0, target)])
