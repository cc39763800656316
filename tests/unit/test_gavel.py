"""Gavel: its two programs by hand, its priorities, and when it solves again."""

from dataclasses import replace

import numpy as np
import pytest

from hadar_cli.core.policies.baselines.gavel import Gavel, GavelMakespan, max_min_shares
from tests.support.queues import chance_queue, queue_of, run_rounds


def test_max_min_gives_equals_equal_shares_of_scarce_devices():
    shares = max_min_shares(np.ones((4, 1)), np.ones((4, 1), int), np.array([2]))
    assert shares == pytest.approx(np.full((4, 1), 0.5))


def test_max_min_lifts_the_worst_off():
    weights = np.array([[4.0, 1.0], [1.0, 1.0]])
    shares = max_min_shares(weights, np.ones((2, 2), int), np.array([1, 1]))
    assert (weights * shares).sum(axis=1).min() == pytest.approx(1.0)


def test_makespan_shares_let_all_end_together():
    queue = chance_queue(3, 30, [4, 4, 4])
    shares = GavelMakespan().shares(queue)
    time_left = queue.remaining / (queue.gang * (queue.rates * shares).sum(axis=1))
    assert time_left.max() == pytest.approx(time_left.min(), rel=1e-6)
    assert ((queue.gang[:, None] * shares).sum(axis=0) <= queue.capacity + 1e-9).all()


@pytest.mark.parametrize("policy", [Gavel(), GavelMakespan()])
def test_jobs_take_turns_by_their_shares(policy):
    queue = queue_of([[1.0]] * 3, capacity=[1], steps=[360.0 * 6] * 3)
    turns = [next(iter(allocations)) for allocations in run_rounds(policy, queue)]
    assert sorted(turns[:3]) == [0, 1, 2]
    assert len(turns) == 18


def test_a_gang_runs_on_one_kind():
    queue = chance_queue(7, 40, [9, 9, 9])
    for allocation in Gavel().allocate(queue).allocations.values():
        assert sum(1 for count in allocation if count) == 1


def test_it_solves_again_only_after_changes_and_not_at_once():
    queue = chance_queue(1, 10, [4, 4])
    first = Gavel().allocate(queue).memory
    same = Gavel().allocate(replace(queue, now_s=1e6), first).memory
    assert same is first
    fewer = queue.permuted(np.arange(9), np.arange(2))
    assert Gavel().allocate(replace(fewer, now_s=1900), first).memory is first
    assert Gavel().allocate(replace(fewer, now_s=1920), first).memory.solved_s == 1920


def test_newcomers_wait_for_the_next_solve_or_for_leftovers():
    queue = queue_of([[1.0]] * 2, capacity=[1])
    first = Gavel().allocate(queue.permuted(np.array([0]), np.array([0])))
    assert Gavel().allocate(queue, first.memory).allocations == {0: (1,)}
    roomy = replace(queue, capacity=np.array([2]))
    assert Gavel().allocate(roomy, first.memory).allocations == {0: (1,), 1: (1,)}


def test_devices_that_come_free_in_a_round_stay_idle():
    assert Gavel().refill(chance_queue(1, 5, [2])) == {}


def test_devices_that_come_free_are_given_away_if_it_is_told_to():
    queue = queue_of([[1.0]] * 3, capacity=[2])
    decision = Gavel(refills=True).allocate(queue)
    (stays, ended), (waits,) = decision.allocations, {0, 1, 2} - decision.allocations.keys()
    left = queue.only(np.array([stays, waits]))
    later = replace(left, running={stays: (1,)})
    assert Gavel(refills=True).refill(later, decision.memory) == {waits: (1,)}
    assert Gavel().refill(later, decision.memory) == {}
    assert ended not in (stays, waits)


def test_a_gang_wider_than_every_kind_holds_nobody_down():
    queue = queue_of([[1.0, 1.0]] * 3, capacity=[2, 2], gang=[4, 1, 1])
    shares = Gavel().shares(queue)
    assert (shares[1:].sum(axis=1) > 0.5).all()
    assert Gavel().allocate(queue).allocations[0] == (2, 2)


@pytest.mark.parametrize("policy", [Gavel(), GavelMakespan()])
def test_an_elastic_gang_takes_what_one_kind_has(policy):
    queue = queue_of([[2.0, 1.0]], capacity=[3, 6], gang=[8], elastic=True)
    (allocation,) = policy.allocate(queue).allocations.values()
    assert allocation in ((3, 0), (0, 6))


@pytest.mark.parametrize("policy", [Gavel(), GavelMakespan()])
def test_an_elastic_gang_wider_than_every_kind_takes_turns_like_others(policy):
    queue = queue_of(
        [[1.0]] * 2, capacity=[2], gang=[4, 2], elastic=np.array([True, False]), steps=[7200.0] * 2
    )
    first = policy.allocate(queue)
    rounds = np.zeros((2, 1))
    rounds[next(iter(first.allocations))] = 1
    second = policy.allocate(replace(queue, now_s=360.0, rounds_on=rounds), first.memory)
    assert first.allocations.keys() | second.allocations.keys() == {0, 1}
