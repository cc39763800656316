"""Hadar: gangs go where they cost least, at prices that the whole queue sets.

``prices = "fluid"`` takes them from the fluid optimum: what a second of each kind of device is
worth when all the work left is divided at its best. Jobs that would otherwise end late choose
first; the others take the kind where a step costs them least, or wait, or fill what is left over.
``prices = "paper"`` keeps Eq. 5-7 and the payoffs of Algorithm 2, with what it needs to work.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from hadar_cli.core.policies.market import Market
from hadar_cli.core.policies.registry import register
from hadar_cli.core.policies.takers import Takers
from hadar_cli.core.pricing import FluidPrices, fluid_prices, paper_prices
from hadar_cli.core.queue import Allocation, BoolArray, Decision, FloatArray, IntArray, Queue
from hadar_cli.errors import InputError, nearest

CHOICES = {
    "prices": ("fluid", "paper"),
    "objective": ("balanced", "makespan", "jct", "fairness"),
}

FIRST, NEXT, LAST = 0, 1, 2  # tiers of the order in which jobs choose


@dataclass(frozen=True)
class HadarMemory:
    """The last decision's prices, its market, and the order in which jobs chose there."""

    prices: FluidPrices
    market: Market
    order: IntArray

    @cached_property
    def takers(self) -> Takers:
        return self.market.takers(self.order)


@register
@dataclass(frozen=True, slots=True)
class Hadar:
    """``critical``, ``theta``, ``wide`` and ``rethink`` are shares of the time the queue needs.

    Raising the first three favours the mean completion time, lowering them the end of the last job.
    """

    name: ClassVar[str] = "hadar"
    prices: str = "fluid"
    objective: str = "balanced"
    critical: float = 0.8  # jobs this long even on their fastest devices choose first
    theta: float = 1.0  # then jobs this long on their cheapest, longest first
    wide: float = 0.5  # with them gangs that pack badly and together take this long
    loyalty: float = 0.85  # discount on the cost of jobs that run already
    patience: float = 0.17  # this much dearer than the best, a job still keeps its devices
    restlessness: float = 0.1  # for this much more speed it moves to devices that stand idle
    choosiness: float = 0.02  # this much dearer, it takes new ones rather than wait
    # The longer the queue, the slower it changes; towards the end every slot counts.
    rethink: float = 0.01  # of the time the queue needs: then all is decided again, come what may

    def __post_init__(self) -> None:
        for field, known in CHOICES.items():
            value = getattr(self, field)
            if value not in known:
                hint = nearest(str(value), known)
                raise InputError(
                    f"there is no {field} {value!r}"
                    + (f"; did you mean {hint!r}?" if hint else ""),
                    field=f"policy.{field}",
                    fix=f"use one of: {', '.join(known)}",
                )

    def allocate(self, queue: Queue, memory: HadarMemory | None = None) -> Decision:
        if not len(queue):
            return Decision({}, memory)
        if self.prices == "paper":
            return Decision(self._by_payoff(queue, queue.capacity.tolist(), {}))
        start = memory.prices.per_second if memory else None
        prices = fluid_prices(queue.remaining, queue.rates, queue.capacity, start)
        market = Market(queue, prices.per_second, queue.capacity.tolist())
        is_critical, order = self._order(market, prices.value_s)
        for j in order.tolist():
            if not any(market.free):
                break
            if is_critical[j]:
                market.take(j, market.fastest(j))
            else:
                own = market.kept(j, 1 + self.patience)
                market.take(j, own or market.cheapest(j, 1 + self.choosiness))
        market.backfill(order)
        market.upgrade(order, 1 + self.restlessness)
        # Longest first, jobs of almost equal length have to take turns: they need a closer look.
        rethink = 0.2 * self.rethink if self.objective == "makespan" else self.rethink
        until_s = queue.now_s + rethink * prices.value_s
        return Decision(market.taken, HadarMemory(prices, market, order), until_s)

    def refill(self, queue: Queue, memory: HadarMemory | None = None) -> dict[int, Allocation]:
        """The second pass alone, on the devices that came free."""
        free = queue.free()
        if len(queue) <= len(queue.running) or not any(free):
            return {}
        if self.prices == "paper":
            return self._by_payoff(queue, free, dict(queue.running))
        if memory is None:
            return {}
        # Who waits now waited then, with the same work to do, unless it came since.
        waits = memory.market.waiting(queue)
        if waits is None:
            market = Market(queue, memory.prices.per_second, free)
            order = self._order(market, memory.prices.value_s)[1]
            market.backfill(order[~queue.is_running()[order]])
        else:
            market = memory.market.reopened(free)
            market.deal(waits, memory.takers, memory.order)
        return market.taken

    def _order(self, market: Market, fluid_s: float) -> tuple[BoolArray, IntArray]:
        """Who is critical, and all jobs in the order in which they choose."""
        queue = market.queue
        runs = queue.is_running()
        horizon = max(fluid_s, float(market.shortest_s.max()))
        is_patient = self.objective in ("jct", "fairness")  # they wait until it is the last moment
        is_critical = market.shortest_s >= (1.0 if is_patient else self.critical) * horizon
        # A margin for those that run, or jobs of equal length would swap places every round.
        late = np.where(runs, 1.1 * market.home_s + 2 * queue.slot_s, market.home_s)
        if self.objective == "balanced":
            is_late = (market.home_s >= self.theta * horizon) | self._is_wide(market, horizon)
            tier = np.where(is_critical, FIRST, np.where(is_late, NEXT, LAST))
        elif self.objective == "makespan":
            tier = np.where(is_critical, FIRST, NEXT)
        else:
            tier = np.where(is_critical, FIRST, LAST)
        cost = market.cost * np.where(runs, self.loyalty, 1.0)
        last = -_unfairness(market, runs) if self.objective == "fairness" else cost
        within = np.choose(tier, [-market.shortest_s, -late, last])
        return is_critical, np.lexsort((queue.ids, queue.arrived_s, within, tier))

    def _is_wide(self, market: Market, horizon: float) -> BoolArray:
        """Gangs that do not divide the cluster evenly and whose work takes much of the time left.

        Twenty devices hold two gangs of eight and waste four: left to the end, such gangs cannot
        fill the cluster, while narrow jobs beside them can at any time.
        """
        queue, strict = market.queue, ~market.queue.elastic
        # What all gangs of each width cost, and then all that are at least as wide.
        cost = np.bincount(queue.gang[strict], market.cost[strict])
        narrowest = len(cost)
        everything, work = float(market.prices @ queue.capacity), 0.0
        for width in np.flatnonzero(cost)[::-1].tolist():
            worth = float(market.prices @ (queue.capacity // width * width))
            work += cost[width]
            if 0 < worth < 0.999 * everything and work >= self.wide * horizon * worth:
                narrowest = width
        return strict & (queue.gang >= narrowest)

    def _by_payoff(
        self, queue: Queue, free: list[int], seated: dict[int, Allocation]
    ) -> dict[int, Allocation]:
        """Algorithm 2 made greedy: the most utility for a device and slot first, while it pays."""
        prices = paper_prices(queue)
        worth = 1 / ((prices.age + prices.t_min) * queue.gang)
        market = Market(queue, np.ones(len(free)), free)
        for j in np.lexsort((queue.ids, queue.arrived_s, -worth)).tolist():
            if queue.ids[j] in seated:
                continue
            if not any(market.free):
                break
            taken = [int(c) - f for c, f in zip(queue.capacity, market.free, strict=True)]
            market.reprice([prices.at(r, load) for r, load in enumerate(taken)])
            best: tuple[float, float, int] = (0.0, 0.0, 0)
            choice = None
            for option in market.options(j):
                rate = market.rate(j, option)
                slots = float(queue.remaining[j]) / rate / queue.slot_s
                payoff = prices.utility(j, slots) - market.bill(option)
                if option == queue.running.get(int(queue.ids[j])):
                    payoff *= 1 + self.patience
                if payoff > 0 and (merit := (payoff, rate, option.count(0))) > best:
                    best, choice = merit, option  # of equals the gang on the fewest kinds
            market.take(j, choice)
        return market.taken


def _unfairness(market: Market, runs: BoolArray) -> FloatArray:
    """Finish-time fairness: the time from arrival to end over that with 1/n of the cluster."""
    queue = market.queue
    share = queue.rates @ (queue.capacity / len(queue))
    alone = queue.target / np.maximum(np.minimum(share, market.top_rate), 1e-300)
    waited = queue.now_s - queue.arrived_s
    ratio: FloatArray = (waited + market.shortest_s) / np.maximum(alone, 1e-9)
    return np.where(runs, 1.1 * ratio, ratio)
