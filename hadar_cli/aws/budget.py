"""Dollars, enforced before they are spent: price times time, projected."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from hadar_cli.core.measures.costs import Rental, spent
from hadar_cli.core.model import Node
from hadar_cli.errors import HadarError, InputError

FIRST_S = 300.0  # an instance that is started must last: to boot, to train, to hand in
HAND_IN_S = 120.0  # before the money is gone, for copies to hand in
LAST_S = 20.0  # before it is gone, for what has not handed in to be ended all the same
_COUNT_EVERY_S = 1.0


class PaidClock:
    """Seconds since the epoch that run as fast as the faster of this computer's clocks.

    One that is set back, or stands still while the computer sleeps, would have money last longer
    than it does.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._now = self._wall = time.time()
        self._steady = time.monotonic()

    def now(self) -> float:
        with self._lock:
            wall, steady = time.time(), time.monotonic()
            self._now += max(wall - self._wall, steady - self._steady)
            self._wall, self._steady = wall, steady
            return self._now


class Guard:
    """Counts every second, whatever becomes of the nodes' links, as long as anything is rented."""

    def __init__(self, is_needed: Callable[[], bool], count: Callable[[], None]) -> None:
        """``count`` ends what can be paid for no longer; where that fails, it is called again."""
        self._is_needed, self._count = is_needed, count
        self._lock = threading.Lock()
        self._is_there = False

    def begin(self) -> None:
        with self._lock:
            if not self._is_there and self._is_needed():
                self._is_there = True
                threading.Thread(target=self._watch, name="money", daemon=True).start()

    def _watch(self) -> None:
        while self._goes_on():
            try:
                self._count()
            except HadarError:
                continue  # AWS does not answer
            finally:
                time.sleep(_COUNT_EVERY_S)

    def _goes_on(self) -> bool:
        with self._lock:
            self._is_there = self._is_needed()
            return self._is_there


class Budget:
    """What a run may still spend; none: no limit."""

    def __init__(self, limit: float | None) -> None:
        self.limit = limit

    def lasts_s(self, rentals: Sequence[Rental], now: float, more: float = 0.0) -> float:
        """How long all that run now can go on, with ``more`` dollars an hour beside them."""
        if self.limit is None:
            return float("inf")
        rate = more + sum(rental.price_per_hour for rental in rentals if rental.until is None)
        left = self.limit - spent(rentals, now)
        return 3600 * left / rate if rate else (float("inf") if left > 0 else 0.0)

    def in_words(self, rentals: Sequence[Rental], now: float) -> str:
        used = spent(rentals, now)
        spare = "; the rest is kept for handing in" if used < (self.limit or 0.0) else ""
        return f"its budget of ${self.limit:,.2f} is used up: ${used:,.2f} by now{spare}"


def require_budget(nodes: Sequence[Node]) -> None:
    """Refuses, before anything is started, what could not even pay for the first minutes."""
    lent = [node for node in nodes if node.enabled and node.aws]
    limit = next((node.aws.budget for node in lent if node.aws), None)
    if limit is None:
        return
    for node in lent:
        if node.price_per_hour is None:
            raise InputError(
                f"the budget needs a price, and none is known of node {node.name}",
                field="aws.budget",
                fix=f"give node {node.name} its price_per_hour",
            )
    rate = sum(node.price_per_hour or 0.0 for node in lent)
    if (first := rate * FIRST_S / 3600) > limit:
        minutes = FIRST_S / 60
        raise InputError(
            f"${limit:g} are too few: {len(lent)} instances at ${rate:,.2f} an hour cost "
            f"${first:,.2f} in their first {minutes:.0f} minutes",
            field="aws.budget",
            fix=f"raise it to ${first:,.2f} at the least, or list fewer instances",
        )
