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

from hadar_cli.core.arrays import BoolArray, FloatArray, IntArray
from hadar_cli.core.policies.gangs.backfill import WaitingLines
from hadar_cli.core.policies.gangs.job_order import JobOrder, order_jobs
from hadar_cli.core.policies.gangs.market import Market
from hadar_cli.core.policies.gangs.pricing import FluidPrices, fluid_prices, paper_prices
from hadar_cli.core.policies.gangs.queue import Allocation, Decision, Queue
from hadar_cli.core.policies.gangs.sizes import Sizes, thrifty_rates
from hadar_cli.core.policies.port import register
from hadar_cli.errors import InputError, unknown

CHOICES = {
    "prices": ("fluid", "paper"),
    "objective": ("balanced", "makespan", "jct", "fairness"),
}

PATIENCE = 0.17  # this much dearer than the best, a job still keeps its devices
RESTLESSNESS = 0.1  # for this much more speed it moves to devices that stand idle
CHOOSINESS = 0.02  # this much dearer, it takes new ones rather than wait
# The longer the queue, the slower it changes; towards the end every slot counts.
RETHINK = 0.01  # of the time the queue needs: then all is decided again, come what may


@dataclass(frozen=True)
class HadarMemory:
    """The last decision's prices, its market, and the order in which jobs chose there."""

    prices: FluidPrices
    market: Market
    order: IntArray

    @cached_property
    def waiting_lines(self) -> WaitingLines:
        return self.market.waiting_lines(self.order)


@register
@dataclass(frozen=True, slots=True)
class Hadar:
    """``reserve`` is a share of the time the queue needs that long jobs do not plan with.

    More of it favours the end of the last job, less the mean completion time.
    """

    name: ClassVar[str] = "hadar"
    prices: str = "fluid"
    objective: str = "balanced"
    reserve: float = 0.125

    def __post_init__(self) -> None:
        for field, known in CHOICES.items():
            value = getattr(self, field)
            if value not in known:
                problem = f"there is no {field} {value!r}"
                raise unknown(problem, str(value), known, field=f"policy.{field}")
        if not 0 <= self.reserve < 1:
            problem = f"{self.reserve} is not a share of the time"
            raise InputError(problem, field="policy.reserve", fix="from 0 to less than 1, e.g. 0.1")

    def allocate(self, queue: Queue, memory: HadarMemory | None = None) -> Decision:
        if not len(queue):
            return Decision({}, memory)
        if self.prices == "paper":
            return Decision(self._by_payoff(queue, queue.capacity.tolist(), {}))
        start = memory.prices.per_second if memory else None
        prices = fluid_prices(queue.remaining, thrifty_rates(queue), queue.capacity, start)
        sizes = Sizes(queue, prices.per_second)
        market = Market(sizes.wanted(), prices.per_second, queue.capacity.tolist())
        ordered = order_jobs(market, self.objective, self.reserve, prices.value_s, sizes.widest_s)
        # A move has to pay for the start, out of what the job has left.
        limit = 1 + PATIENCE + queue.restart_s / np.maximum(market.home_s, 1e-9)
        _choose(market, sizes, ordered, limit)
        order = ordered.order
        given = order[~sizes.is_open[order]] if sizes.is_any_open else order
        market.backfill(given)
        market.upgrade(given, 1 + RESTLESSNESS)
        sizes.fill(market, order)
        # Longest first, jobs of almost equal length have to take turns: they need a closer look.
        rethink = 0.2 * RETHINK if self.objective == "makespan" else RETHINK
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
        if queue.sized_rates is not None:
            return self._refill_open(queue, free, memory)
        # Who waits now waited then, with the same work to do, unless it came since.
        waits = memory.market.waiting(queue)
        if waits is None:
            market = Market(queue, memory.prices.per_second, free)
            order = order_jobs(market, self.objective, self.reserve, memory.prices.value_s).order
            market.backfill(order[~queue.is_running()[order]])
        else:
            market = memory.market.reopened(free)
            market.deal(waits, memory.waiting_lines, memory.order)
        return market.taken

    def _refill_open(
        self, queue: Queue, free: list[int], memory: HadarMemory
    ) -> dict[int, Allocation]:
        """The same where some leave their size open."""
        sizes = Sizes(queue, memory.prices.per_second)
        market = Market(sizes.wanted(), memory.prices.per_second, free)
        value_s = memory.prices.value_s
        order = order_jobs(market, self.objective, self.reserve, value_s, sizes.widest_s).order
        waiting = order[~queue.is_running()[order]]
        market.backfill(waiting[~sizes.is_open[waiting]])
        sizes.fill(market, waiting)
        return market.taken

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
                    payoff *= 1 + PATIENCE
                if payoff > 0 and (merit := (payoff, rate, option.count(0))) > best:
                    best, choice = merit, option  # of equals the gang on the fewest kinds
            market.take(j, choice)
        return market.taken


def _choose(market: Market, sizes: Sizes, jobs: JobOrder, limit: FloatArray) -> None:
    """Critical jobs, gangs wider than any kind and open sizes choose alone, others all at once."""
    alone = jobs.is_critical | market.is_outsize | sizes.is_any_open
    for group in _stretches(jobs.order, alone):
        if not alone[group[0]]:
            market.settle(group, limit, 1 + CHOOSINESS)
            continue
        for j in group.tolist():
            if not any(market.free):
                return
            if sizes.is_any_open:
                sizes.give(market, j, bool(jobs.is_critical[j]))
            if sizes.is_open[j]:
                continue
            if jobs.is_critical[j]:
                market.take(j, market.fastest(j, jobs.worth_s))
            else:
                own = market.kept(j, float(limit[j]))
                market.take(j, own or market.cheapest(j, 1 + CHOOSINESS))


def _stretches(order: IntArray, flag: BoolArray) -> list[IntArray]:
    """Neighbours in this order of whom all have the flag, or none has."""
    changes = np.flatnonzero(np.diff(flag[order])) + 1
    return np.split(order, changes) if len(order) else []
