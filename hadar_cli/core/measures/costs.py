"""What machines that are paid by the hour cost a run: of those rented for it, and of its jobs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

LEAST_S = 60.0  # of an instance is charged in any case


@dataclass(frozen=True, slots=True)
class Rental:
    """One instance, from when it was asked for until it was given back; times since the epoch."""

    instance: str
    node: str
    type: str
    price_per_hour: float
    since: float
    until: float | None = None  # None: it runs, as far as is known
    is_spot: bool = False
    note: str = ""  # what its owner should know

    def cost(self, now: float) -> float:
        """In dollars, so far."""
        return self.price_per_hour * self.seconds(now) / 3600

    def seconds(self, now: float) -> float:
        end = now if self.until is None else self.until
        return max(LEAST_S, end - self.since)


def spent(rentals: Iterable[Rental], now: float) -> float:
    """In dollars, by all of them so far."""
    return sum(rental.cost(now) for rental in rentals)
