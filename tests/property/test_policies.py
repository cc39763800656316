"""What holds for every gang policy, whatever the queue and the cluster."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hadar_cli.core.policies.baselines.gavel import Gavel, GavelMakespan
from hadar_cli.core.policies.baselines.tiresias import Tiresias
from hadar_cli.core.policies.baselines.yarn_cs import YarnCs
from hadar_cli.core.policies.gangs.cluster_devices import ClusterDevices
from hadar_cli.core.policies.gangs.hadar import Hadar
from hadar_cli.core.policies.gangs.placement import place
from hadar_cli.core.policies.gangs.pricing import fluid_prices, paper_prices
from tests.support.queues import chance_queue, run_rounds

POLICIES = {
    "hadar": Hadar(),
    "hadar:objective=makespan": Hadar(objective="makespan"),
    "hadar:objective=jct": Hadar(objective="jct"),
    "hadar:objective=fairness": Hadar(objective="fairness"),
    "hadar:prices=paper": Hadar(prices="paper"),
    "gavel": Gavel(),
    "gavel-makespan": GavelMakespan(),
    "tiresias": Tiresias(),
    "yarn-cs": YarnCs(),
}
each_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())

seeds = st.integers(0, 10_000)
capacities = st.lists(st.integers(1, 12), min_size=1, max_size=4)
some = settings(max_examples=15, deadline=None)


def check(queue, allocations, running=()):
    """Nobody twice, no more than there is, whole gangs, and only where a job can run."""
    gang = dict(zip(queue.ids.tolist(), queue.gang.tolist(), strict=True))
    row = {job: j for j, job in enumerate(queue.ids.tolist())}
    used = np.sum([*allocations.values(), (0,) * len(queue.kinds)], axis=0)
    assert (used <= queue.capacity).all()
    for job, allocation in allocations.items():
        if queue.elastic[row[job]]:
            assert 0 < sum(allocation) <= gang[job]
        else:
            assert sum(allocation) == gang[job]
        assert all(queue.rates[row[job], r] > 0 for r, n in enumerate(allocation) if n)


@each_policy
@some
@given(seeds, st.integers(0, 40), capacities, st.booleans())
def test_no_overbooking_and_gangs_are_whole(policy, seed, jobs, capacity, elastic):
    queue = chance_queue(seed, jobs, capacity, elastic=elastic)
    decision = policy.allocate(queue)
    check(queue, decision.allocations)
    later = replace(queue, now_s=360.0, running=decision.allocations)
    again = policy.allocate(later, decision.memory)
    check(later, again.allocations)

    gone = next(iter(again.allocations), None)
    stay = {job: a for job, a in again.allocations.items() if job != gone}
    left = np.flatnonzero(queue.ids != (-1 if gone is None else gone))
    midway = replace(later, running=stay).permuted(left, np.arange(len(capacity)))
    more = policy.refill(midway, again.memory)
    assert not set(more) & set(stay)
    check(midway, stay | more)


@each_policy
@some
@given(seeds, st.integers(1, 25), capacities)
def test_the_order_of_jobs_and_kinds_changes_nothing(policy, seed, jobs, capacity):
    queue = chance_queue(seed, jobs, capacity)
    rng = np.random.default_rng(seed)
    columns = rng.permutation(len(capacity))
    other = queue.permuted(rng.permutation(jobs), columns)
    expected = {
        job: tuple(allocation[c] for c in columns)
        for job, allocation in policy.allocate(queue).allocations.items()
    }
    assert policy.allocate(other).allocations == expected


@each_policy
@some
@given(seeds, st.integers(1, 12), capacities)
def test_every_feasible_job_ends(policy, seed, jobs, capacity):
    queue = chance_queue(seed, jobs, capacity)
    assert run_rounds(policy, queue)  # which fails if it does not end


@each_policy
@some
@given(seeds, st.integers(1, 12), capacities)
def test_a_bigger_cluster_never_loses_a_job(policy, seed, jobs, capacity):
    queue = chance_queue(seed, jobs, capacity)
    bigger = replace(queue, capacity=queue.capacity + 2)
    done = {job for allocations in run_rounds(policy, bigger) for job in allocations}
    assert done == set(queue.ids.tolist())


@some
@given(seeds, st.integers(1, 30), st.lists(st.integers(1, 12), min_size=2, max_size=4))
def test_fluid_prices_grow_with_the_load_of_their_kind(seed, jobs, capacity):
    """More work that only runs on one kind never makes that kind cheaper beside the others."""
    queue = chance_queue(seed, jobs, capacity)
    only_first = np.zeros((1, len(capacity)))
    only_first[0, 0] = 1.0
    rates = np.vstack([queue.rates, only_first])
    total = float((queue.remaining / queue.rates.max(axis=1)).sum())
    shares = []
    for extra in (0.0, total, 5 * total):
        steps = np.append(queue.remaining, extra)
        prices = fluid_prices(steps, rates, queue.capacity).per_second * queue.capacity
        shares.append(prices[0])
    assert shares[0] <= shares[1] + 0.02 and shares[1] <= shares[2] + 0.02


@some
@given(seeds, st.integers(1, 30), capacities)
def test_paper_prices_grow_with_the_load(seed, jobs, capacity):
    prices = paper_prices(chance_queue(seed, jobs, capacity))
    for kind, most in enumerate(capacity):
        ladder = [prices.at(kind, load) for load in range(most + 1)]
        assert all(a <= b for a, b in pairwise(ladder))


@some
@given(seeds, st.integers(1, 30), capacities, st.integers(1, 4))
def test_a_placement_holds_each_device_once_and_moves_nobody_for_nothing(
    seed, jobs, capacity, per_node
):
    queue = chance_queue(seed, jobs, capacity)
    devices = ClusterDevices.uniform(queue.kinds, capacity, [per_node] * len(capacity))
    allocations = Hadar().allocate(queue).allocations
    seats = place(devices, {}, allocations)
    taken = [name for names in seats.values() for name in names]
    assert len(taken) == len(set(taken))
    assert {job: devices.counts[names] for job, names in seats.items()} == allocations
    assert place(devices, seats, allocations) == seats
