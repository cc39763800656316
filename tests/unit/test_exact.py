"""The oracle, and how near the greedy choice comes to it."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from bench.paper.exact import allocations, best_allocation
from hadar_cli.core.policies.gangs.hadar import Hadar
from hadar_cli.core.policies.gangs.pricing import paper_prices
from hadar_cli.core.policies.gangs.queue import gang_rate
from tests.support.queues import chance_queue, queue_of


def rate(queue, j, allocation):
    return gang_rate(allocation, queue.rates[j].tolist())


def test_it_finds_what_trying_everything_finds():
    queue = chance_queue(11, 4, [2, 3])
    total, chosen = best_allocation(queue, lambda j, a, free: rate(queue, j, a))
    everything = [[(0, 0), *allocations(queue, j, (2, 3))] for j in range(4)]
    best = max(
        sum(rate(queue, j, a) for j, a in enumerate(pick))
        for pick in product(*everything)
        if (np.sum(pick, axis=0) <= [2, 3]).all()
    )
    assert total == pytest.approx(best)
    assert sum(rate(queue, job, a) for job, a in chosen.items()) == pytest.approx(total)


def test_it_leaves_out_whoever_is_in_the_way():
    queue = queue_of([[0.1], [5.0], [0.2]], capacity=[2], gang=[2, 2, 2])
    assert best_allocation(queue, lambda j, a, free: rate(queue, j, a)) == (10.0, {1: (2,)})


def test_gangs_are_whole_unless_elastic():
    strict = queue_of([[1.0, 1.0]], capacity=[2, 2], gang=[3])
    assert {sum(a) for a in allocations(strict, 0, (2, 2))} == {3}
    elastic = queue_of([[1.0, 1.0]], capacity=[2, 2], gang=[3], elastic=True)
    assert {sum(a) for a in allocations(elastic, 0, (2, 2))} == {1, 2, 3}


def test_it_is_for_small_queues():
    with pytest.raises(ValueError, match="13 jobs"):
        best_allocation(chance_queue(1, 13, [2]), lambda j, a, free: 1.0)


def payoffs(queue):
    """Algorithm 2's: utility less the bill, at the prices of the load that a job meets."""
    prices, capacity = paper_prices(queue), queue.capacity.tolist()

    def payoff(j, allocation, free):
        slots = queue.remaining[j] / rate(queue, j, allocation) / queue.slot_s
        bill = sum(n * prices.at(r, capacity[r] - free[r]) for r, n in enumerate(allocation) if n)
        return prices.utility(j, slots) - bill

    return payoff


def test_the_greedy_choice_earns_most_of_the_best_payoff():
    shares = []
    for seed in range(10):
        queue = replace(chance_queue(seed, 8, [3, 3, 2]), arrived_s=np.zeros(8))
        payoff = payoffs(queue)
        free, greedy = tuple(queue.capacity.tolist()), 0.0
        for job, allocation in Hadar(prices="paper").allocate(queue).allocations.items():
            greedy += payoff(job, allocation, free)
            free = tuple(f - n for f, n in zip(free, allocation, strict=True))
        shares.append(greedy / best_allocation(queue, payoff)[0])
    assert np.mean(shares) > 0.7
