"""Lower bounds: small cases by hand, and what must hold between them."""

import numpy as np
import pytest

from hadar_cli.core.estimates.fluid import forked_optimum, gang_optimum


def bound(steps, rates, gang, capacity, elastic=None):
    elastic = None if elastic is None else np.array(elastic)
    return gang_optimum(steps, np.array(rates, float), np.array(gang), np.array(capacity), elastic)


def test_forked_jobs_use_every_device_at_once():
    plan = forked_optimum([30.0], np.array([[1.0, 2.0]]))
    assert plan.makespan_s == pytest.approx(10.0)
    assert plan.seconds == pytest.approx(np.array([[10.0, 10.0]]))


def test_a_gang_runs_in_one_place_at_a_time():
    assert bound([30.0], [[1.0, 2.0]], [1], [1, 1]).makespan_s == pytest.approx(15.0)


def test_gangs_share_pools():
    # Two gangs of 2 on one pool of 3: 2 × 2 × 100 device-seconds on 3 devices.
    assert bound([200.0, 200.0], [[1.0], [1.0]], [2, 2], [3]).makespan_s == pytest.approx(400 / 3)


def test_each_goes_where_it_is_relatively_faster():
    plan = bound([10.0, 10.0], [[10.0, 1.0], [1.0, 10.0]], [1, 1], [1, 1])
    assert plan.makespan_s == pytest.approx(1.0)
    assert plan.seconds == pytest.approx(np.eye(2))


def test_a_gang_does_not_count_on_a_kind_too_small_for_it():
    assert bound([40.0], [[100.0, 1.0]], [4], [2, 4]).makespan_s == pytest.approx(10.0)


def test_a_mixed_gang_can_leave_a_better_kind_to_others():
    # One of the first kind and one of the second hold job 0 while job 1 has the other second.
    assert bound([2.0, 1.0], [[1.0, 1.0], [0.0, 1.0]], [2, 1], [1, 2]).makespan_s <= 1.0 + 1e-9


def test_an_elastic_gang_counts_on_a_kind_too_small_for_it():
    # Two fast devices do 200 steps a second; four slow ones, where the whole gang fits, do 4.
    assert bound([400.0], [[100.0, 1.0]], [4], [2, 4], [False]).makespan_s == pytest.approx(100.0)
    elastic = bound([400.0], [[100.0, 1.0]], [4], [2, 4], [True]).makespan_s
    assert elastic == pytest.approx(400 / 202)  # two slow ones beside them


def test_work_that_runs_nowhere_never_ends():
    assert bound([1.0], [[0.0]], [1], [1]).makespan_s == float("inf")
    assert forked_optimum([1.0], np.zeros((1, 2))).makespan_s == float("inf")


def test_no_work_takes_no_time():
    assert forked_optimum([], np.zeros((0, 3))).makespan_s == 0
    assert bound([0.0], [[1.0]], [1], [1]).makespan_s == 0


def test_forking_never_needs_longer():
    rng = np.random.default_rng(4)
    rates, steps = rng.uniform(0.1, 5, (12, 3)), rng.uniform(1, 1e6, 12)
    gangs = bound(steps, rates, np.ones(12, int), [1, 1, 1])
    assert forked_optimum(steps, rates).makespan_s <= gangs.makespan_s * (1 + 1e-9)
