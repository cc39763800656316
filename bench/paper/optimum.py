"""What Hadar's greedy choice earns beside the exact optimum of one round, on small queues."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import fmean, median

import numpy as np

from bench.paper.cache import Cache
from bench.paper.exact import best_allocation
from bench.paper.section import Setting, Text
from hadar_cli.core.policies.gangs.hadar import Hadar
from hadar_cli.core.policies.gangs.pricing import PaperPrices, paper_prices
from hadar_cli.core.policies.gangs.queue import Allocation, Queue, gang_rate
from tests.support.queues import chance_queue

TITLE = "Achieved utility beside the exact optimum"
CAPACITIES = ([3, 3, 2], [2, 2, 1], [4, 3, 3])
JOBS = (4, 6, 8, 10, 12)
POLICIES = {"by the paper's prices": Hadar(prices="paper"), "by fluid prices (default)": Hadar()}


@dataclass(frozen=True, slots=True)
class Outcome:
    """Optimal over achieved, one for each queue; α of the paper's theorem for the same queue."""

    utility: dict[str, list[float]]  # by way of pricing
    payoff: list[float]  # by the paper's prices: utility less the bill
    two_alpha: list[float]


Payoff = Callable[[int, Allocation, Allocation], float]


def _utility(queue: Queue, prices: PaperPrices) -> Payoff:
    def utility(j: int, allocation: Allocation, free: Allocation) -> float:
        rate = gang_rate(allocation, queue.rates[j].tolist())
        return prices.utility(j, queue.remaining[j] / rate / queue.slot_s)

    return utility


def _payoff(queue: Queue, prices: PaperPrices) -> Payoff:
    """Algorithm 2's: utility less the bill, at the prices of the load that a job meets."""
    utility, capacity = _utility(queue, prices), queue.capacity.tolist()

    def payoff(j: int, allocation: Allocation, free: Allocation) -> float:
        bill = sum(n * prices.at(r, capacity[r] - free[r]) for r, n in enumerate(allocation) if n)
        return utility(j, allocation, free) - bill

    return payoff


def _earned(queue: Queue, chosen: Mapping[int, Allocation], worth: Payoff) -> float:
    free, total = tuple(queue.capacity.tolist()), 0.0
    for job, allocation in chosen.items():
        total += worth(job, allocation, free)
        free = tuple(f - n for f, n in zip(free, allocation, strict=True))
    return total


def compare(seed: int, queues: int) -> Outcome:
    rng = np.random.default_rng(seed)
    found = Outcome({name: [] for name in POLICIES}, [], [])
    for _ in range(queues):
        capacity = CAPACITIES[rng.integers(len(CAPACITIES))]
        jobs = int(rng.choice(JOBS))
        queue = chance_queue(int(rng.integers(2**31)), jobs, capacity)
        queue = replace(queue, arrived_s=np.zeros(jobs))  # one-shot admission, as the proof has it
        prices = paper_prices(queue)
        utility, payoff = _utility(queue, prices), _payoff(queue, prices)
        best = best_allocation(queue, utility)[0]
        for name, policy in POLICIES.items():
            found.utility[name].append(
                best / _earned(queue, policy.allocate(queue).allocations, utility)
            )
        greedy = Hadar(prices="paper").allocate(queue).allocations
        found.payoff.append(best_allocation(queue, payoff)[0] / _earned(queue, greedy, payoff))
        found.two_alpha.append(2 * max(1.0, math.log(prices.highest / prices.lowest)))
    return found


def measure(setting: Setting, cache: Cache) -> Outcome:
    queues = 60 if setting.quick else 400
    return cache.get(
        f"{queues} queues, seed {setting.seed}", Outcome, lambda: compare(setting.seed, queues)
    )


def write(found: Outcome, text: Text) -> None:
    text.say(
        f"{len(found.payoff)} random queues of 4 to 12 jobs (gangs of 1 to 8) on 5 to 10 devices "
        "of three kinds. The optimum is the exact dynamic program over one round; utility is the "
        "job's least possible time over its time, at the rate that the round gives it. Optimal "
        "over achieved: 1 is perfect."
    )

    def row(name: str, values: list[float]) -> tuple[str, ...]:
        figures = (fmean(values), median(values), float(np.quantile(values, 0.95)), max(values))
        return (name, *(f"{value:.3f}" for value in figures))

    rows = [row(f"utility, {name}", values) for name, values in found.utility.items()]
    rows.append(row("payoff, by the paper's prices", found.payoff))
    rows.append(row("2α, which the paper's theorem allows", found.two_alpha))
    text.table(("optimal ÷ achieved", "mean", "median", "95 %", "worst"), rows)
    text.say(
        "**Why they differ.** The theorem bounds the ratio by 2α = 2·ln(U_max/U_min) for jobs "
        "admitted once; it is a limit, far above what happens. Measured here is one round against "
        "the best for that round, which is all an exact method can do; nothing is claimed for a "
        "whole run, where the default prices look at the end of the queue and give up some of "
        "a single round's utility for it."
    )
