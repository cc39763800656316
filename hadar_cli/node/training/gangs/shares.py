"""Who takes how much of a mini-batch: least time for the slowest, from measured costs.

Pure arithmetic on plain numbers: every member does it for itself and comes to the same result.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

_RECENT, _ENOUGH = 8, 3  # steps at the most, and at the least, that a cost is the median of
_APART = 1.15  # sizes of a share that tell a fixed cost from one a sample
_GAIN = 0.03  # less is not worth moving samples for
_LOOKS = (3, 6, 10, 16)  # after so many measured steps,
_EVERY = 8  # and then every so often

Shares = tuple[float, ...]


def divide(samples: int, shares: Sequence[float]) -> list[int]:
    """So many samples by these shares, in whole numbers that add up: the largest rests win."""
    total = sum(shares)
    exact = [samples * share / total for share in shares]
    # A share that was a whole number must stay one, whatever the division makes of it.
    whole = [int(part + 1e-6) for part in exact]
    rests = sorted(range(len(shares)), key=lambda i: (whole[i] - exact[i], i))
    for i in rests[: samples - sum(whole)]:
        whole[i] += 1
    return whole


@dataclass(frozen=True, slots=True)
class Cost:
    """The seconds of a step with b samples: ``fixed + each * b``."""

    fixed: float
    each: float
    most: float = float("inf")  # samples that fit the member's memory

    def seconds(self, samples: float) -> float:
        return self.fixed + self.each * samples


def solve(batch: int, costs: Sequence[Cost]) -> list[int]:
    """The shares of the batch, in samples, whose slowest is fastest; 0: a member does not help."""
    level = _level(batch, costs)
    taken = [_filled(cost, level, int) for cost in costs]
    while sum(taken) > batch:  # rounding errors
        taken[
            max(range(len(costs)), key=lambda i: (bool(taken[i]), costs[i].seconds(taken[i])))
        ] -= 1
    for _ in range(batch - int(sum(taken))):
        free = [i for i in range(len(costs)) if taken[i] < costs[i].most] or range(len(costs))
        taken[min(free, key=lambda i: (costs[i].seconds(taken[i] + 1), i))] += 1
    return [int(samples) for samples in taken]


def _level(batch: int, costs: Sequence[Cost]) -> float:
    """The time in which all members together do the batch."""
    low, high = 0.0, max(cost.seconds(batch) for cost in costs)
    for _ in range(60):
        middle = (low + high) / 2
        if sum(_filled(cost, middle, float) for cost in costs) < batch:
            low = middle
        else:
            high = middle
    return low


def _filled(cost: Cost, seconds: float, kind: type[int] | type[float]) -> float:
    return min(cost.most, kind(max(0.0, (seconds - cost.fixed) / cost.each)))


class Measurements:
    """What one member's steps took, by the samples they had."""

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}  # by samples, the latest last

    def note(self, samples: int, seconds: float) -> None:
        recent = self._seconds.pop(samples, deque(maxlen=_RECENT))
        recent.append(seconds)
        self._seconds[samples] = recent

    def cost(self, most: float) -> Cost | None:
        """A line through the latest size and one that is far enough from it; else through zero."""
        known = [(b, median(took)) for b, took in self._seconds.items() if len(took) >= _ENOUGH]
        if not known:
            return None
        here, took = known[-1]
        for there, took_there in reversed(known[:-1]):
            if max(here, there) >= _APART * min(here, there):
                each = (took - took_there) / (here - there)
                if 0.0 < each * here <= took:
                    return Cost(took - each * here, each, most)
        return Cost(0.0, took / max(1, here), most)


class Balance:
    """The gang's shares, moved where that makes its steps shorter."""

    def __init__(self, shares: Shares) -> None:
        self.shares = shares
        self._measured = [Measurements() for _ in shares]
        self._steps = 0

    def note(self, samples: Sequence[int], seconds: Sequence[float]) -> None:
        """One step of every member; a time below 0 was not measured."""
        for measured, count, took in zip(self._measured, samples, seconds, strict=True):
            if took > 0.0:
                measured.note(count, took)
        self._steps += all(took > 0.0 for took in seconds)

    def better(self, batch: int, most: Sequence[float]) -> Shares | None:
        """Other shares of such a batch, where they are worth it and it is time to look."""
        is_early = self._steps < _LOOKS[-1]
        if self._steps not in _LOOKS if is_early else self._steps % _EVERY:
            return None
        known = [m.cost(cap) for m, cap in zip(self._measured, most, strict=True)]
        costs = [cost for cost in known if cost is not None]
        if len(costs) < len(known):
            return None
        now, then = divide(batch, self.shares), solve(batch, costs)
        if is_early:  # too soon to leave somebody out
            then = _with_all(then)
        if _slowest(then, costs) > (1.0 - _GAIN) * _slowest(now, costs):
            return None
        self.shares = tuple(samples / batch for samples in then)
        return self.shares


def _with_all(samples: list[int]) -> list[int]:
    found = list(samples)
    for i, count in enumerate(samples):
        if not count and max(found) > 1:
            found[found.index(max(found))] -= 1
            found[i] = 1
    return found


def _slowest(samples: Sequence[int], costs: Sequence[Cost]) -> float:
    """A member that takes no sample is not waited for: the head takes it out."""
    took = [c.seconds(b) if b <= c.most else math.inf for b, c in zip(samples, costs, strict=True)]
    return max(seconds for seconds, count in zip(took, samples, strict=True) if count)
