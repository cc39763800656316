"""What machines that are paid by the hour cost a run: of those rented for it, and of its jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hadar_cli.core.measures.timeline import Timeline
from hadar_cli.core.model import Job, Node

LEAST_S = 60.0  # of an instance is charged in any case


@dataclass(frozen=True, slots=True)
class Rental:
    """One instance, from when it was asked for until it was given back; times since the epoch.

    One that is stopped and started again is two rentals.
    """

    instance: str  # "": nobody knows yet, or ever will, whether it was given
    node: str
    type: str
    price_per_hour: float
    since: float
    until: float | None = None  # None: it runs, as far as is known
    is_spot: bool = False
    note: str = ""  # what its owner should know
    ask: str = ""  # the request's name: by it, who asked finds what was given

    @property
    def key(self) -> str:
        return self.ask or self.instance

    def cost(self, now: float) -> float:
        """In dollars, so far."""
        return self.price_per_hour * self.seconds(now) / 3600

    def seconds(self, now: float) -> float:
        end = now if self.until is None else self.until
        return max(LEAST_S, end - self.since)


def spent(rentals: Iterable[Rental], now: float) -> float:
    """In dollars, by all of them so far."""
    return sum(rental.cost(now) for rental in rentals)


@dataclass(frozen=True, slots=True)
class RunCosts:
    """What a run has cost, and on what; in dollars, or whatever the inventory counts in."""

    total: float
    planned: float | None  # by the forecast before the start, with all priced nodes kept throughout
    budget: float | None
    jobs: Mapping[str, float]  # each job's share: the time that its copies had devices
    rest: float  # for starting, waiting and idling
    rentals: tuple[Rental, ...]  # machines that were rented for it

    @property
    def unit(self) -> str:
        return "$" if self.rentals else ""


def costs_of(
    nodes: Sequence[Node],
    jobs: Sequence[Job],
    timeline: Timeline,
    rentals: Sequence[Rental],
    planned_s: float | None,
    now: float,
) -> RunCosts | None:
    """None for a run whose machines have no price."""
    priced = {node.name: node for node in nodes if node.price_per_hour is not None}
    if not priced and not rentals:
        return None
    own = [node for node in priced.values() if not node.aws]
    total = spent(rentals, now) + sum(map(_rate, own)) * timeline.ends_at
    per_second = {
        device.name: _rate(node) / len(node.devices)
        for node in priced.values()
        for device in node.devices
    }
    shares = dict.fromkeys((job.name for job in jobs), 0.0)
    names = {job.id: job.name for job in jobs}
    for device, spans in timeline.spans.items():
        for span in spans:
            shares[names[span.job]] += per_second.get(device, 0.0) * span.seconds
    rate = sum(_rate(node) for node in priced.values() if node.enabled)
    return RunCosts(
        total=total,
        planned=None if planned_s is None else rate * planned_s,
        budget=next((node.aws.budget for node in nodes if node.aws), None),
        jobs=shares,
        rest=max(0.0, total - sum(shares.values())),
        rentals=tuple(rentals),
    )


def _rate(node: Node) -> float:
    """A second's price."""
    return (node.price_per_hour or 0.0) / 3600
