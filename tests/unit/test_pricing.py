"""Prices: the fluid dual against the linear program, Eq. 5 against its own bounds."""

import numpy as np
import pytest

from hadar_cli.core.estimates.fluid import forked_optimum
from hadar_cli.core.policies.gangs.pricing import fluid_prices, paper_prices
from tests.support.queues import chance_queue, queue_of


@pytest.mark.parametrize("jobs", [1, 3, 40, 400])
@pytest.mark.parametrize("seed", [1, 2])
def test_fluid_prices_reach_the_dual_optimum_from_below(jobs, seed):
    queue = chance_queue(seed, jobs, [20, 20, 20])
    optimum = forked_optimum(queue.remaining, queue.rates).makespan_s / 20
    prices = fluid_prices(queue.remaining, queue.rates, queue.capacity)
    assert prices.per_second @ queue.capacity == pytest.approx(1.0)
    assert 0.99 * optimum <= prices.value_s <= optimum * (1 + 1e-9)


def test_a_warm_start_follows_work_that_changes_a_little():
    queue = chance_queue(5, 100, [8, 12, 20])
    start = fluid_prices(queue.remaining, queue.rates, queue.capacity).per_second
    steps = queue.remaining * np.random.default_rng(0).uniform(0.9, 1.0, 100)
    cold = fluid_prices(steps, queue.rates, queue.capacity)
    warm = fluid_prices(steps, queue.rates, queue.capacity, start)
    assert warm.value_s == pytest.approx(cold.value_s, rel=5e-3)


def test_a_kind_where_all_are_fast_is_dear():
    prices = fluid_prices(np.ones(30), np.tile([4.0, 1.0], (30, 1)), np.array([5, 5]))
    assert prices.per_second[0] == pytest.approx(4 * prices.per_second[1], rel=0.01)


def test_what_cannot_run_or_is_not_there_does_not_count():
    rates = np.array([[1.0, 0.0, 9.0], [0.0, 0.0, 5.0]])
    prices = fluid_prices(np.array([10.0, 10.0]), rates, np.array([1, 1, 0]))
    assert prices.per_second[2] == 0
    assert prices.value_s == pytest.approx(10.0, rel=0.01)


def test_equation_5_starts_at_the_lowest_utility_and_ends_at_the_highest():
    prices = paper_prices(chance_queue(3, 20, [4, 6]))
    ladder = [prices.at(1, load) for load in range(7)]
    assert ladder[0] == pytest.approx(prices.lowest)
    assert ladder[-1] == pytest.approx(prices.highest)
    assert ladder == sorted(ladder) and ladder[0] < ladder[-1]


def test_utility_falls_with_the_time_a_job_takes():
    prices = paper_prices(queue_of([[1.0, 2.0]], capacity=[1, 1], steps=[7200], slot_s=360))
    assert prices.utility(0, 10) == pytest.approx(1.0)  # 10 slots is its fastest
    assert prices.utility(0, 20) == pytest.approx(0.5)
