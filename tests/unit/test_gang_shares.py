"""Who takes how much of a mini-batch."""

import random
from itertools import product

import pytest

from hadar_cli.node.training.gangs.cutting import Cutter
from hadar_cli.node.training.gangs.shares import Balance, Cost, divide, solve

LAB = (0.8, 0.42, 0.12, 1.0, 0.45)


def test_samples_are_divided_by_shares_and_none_is_lost():
    rng = random.Random(3)
    for _ in range(300):
        shares = [rng.random() for _ in range(rng.randint(1, 6))]
        samples = rng.randint(0, 300)
        parts = divide(samples, shares)
        assert sum(parts) == samples
        exact = [samples * share / sum(shares) for share in shares]
        assert all(abs(part - wish) < 1.0 for part, wish in zip(parts, exact, strict=True))


def test_what_was_solved_comes_back_when_it_is_divided():
    for batch in (7, 32, 240):
        parts = solve(batch, [Cost(0.01, 1 / speed) for speed in LAB])
        assert divide(batch, [part / batch for part in parts]) == parts


def test_no_other_shares_are_faster():
    rng = random.Random(5)
    for _ in range(30):
        costs = [Cost(rng.choice([0, 1, 3]) * rng.random(), rng.random() + 0.1) for _ in range(3)]
        found = solve(9, costs)
        slowest = max(c.seconds(b) for b, c in zip(found, costs, strict=True) if b)
        for parts in product(range(10), repeat=3):
            if sum(parts) == 9:
                other = max(c.seconds(b) for b, c in zip(parts, costs, strict=True) if b)
                assert slowest <= other + 1e-9


def test_a_member_whose_fixed_cost_is_too_high_gets_nothing():
    assert solve(10, [Cost(0.0, 0.1), Cost(5.0, 0.01)]) == [10, 0]


def test_memory_limits_a_share():
    assert solve(10, [Cost(0.0, 0.1, most=3), Cost(0.0, 1.0)]) == [3, 7]


def play(costs, shares, batch, steps, noise=0.0):
    """The shares that a gang comes to whose members really have these costs."""
    rng, balance = random.Random(1), Balance(tuple(shares))
    for _ in range(steps):
        parts = divide(batch, balance.shares)
        took = [
            c.seconds(b) * (1 + noise * rng.random()) for b, c in zip(parts, costs, strict=True)
        ]
        balance.note(parts, took)
        balance.better(batch, [float("inf")] * len(costs))
    return divide(batch, balance.shares)


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_equal_shares_move_to_the_fastest(noise):
    costs = [Cost(0.02, 0.01 / speed) for speed in LAB]
    best = max(c.seconds(b) for b, c in zip(solve(240, costs), costs, strict=True))
    found = play(costs, [0.2] * 5, 240, 64, noise)
    assert max(c.seconds(b) for b, c in zip(found, costs, strict=True)) < (1.06 + noise) * best


def test_good_shares_stay():
    costs = [Cost(0.0, 1 / speed) for speed in LAB]
    shares = [speed / sum(LAB) for speed in LAB]
    assert play(costs, shares, 240, 64, 0.02) == divide(240, shares)


def test_a_member_that_does_not_help_is_left_out_in_the_end():
    costs = [Cost(0.0, 0.01), Cost(0.0, 0.01), Cost(3.0, 0.01)]
    assert play(costs, [0.3, 0.3, 0.4], 100, 12)[2] >= 1  # not before that is certain
    assert play(costs, [0.3, 0.3, 0.4], 100, 64)[2] == 0


def cutters(shares, least=1):
    return [Cutter(rank, tuple(shares), least) for rank in range(len(shares))]


@pytest.mark.parametrize("batch", [1, 2, 7, 64])
@pytest.mark.parametrize("least", [1, 2])
def test_all_samples_of_a_batch_are_trained_on_once(batch, least):
    members = cutters(LAB, least)
    parts = [cutter.cut(batch) for cutter in members]
    counted = [cutter.next_part() for cutter in members]
    assert sum(part.samples for part in counted) == batch
    covered = [
        i
        for one, part in zip(parts, counted, strict=True)
        if part.samples
        for i in range(one.start, one.stop)
    ]
    assert covered == list(range(batch))
    assert all(one.stop - one.start >= min(least, batch) for one in parts)


def test_new_shares_hold_for_all_from_the_same_batch_on():
    members = cutters((0.5, 0.5))
    for cutter, ahead in zip(members, (2, 6), strict=True):
        cutter.begin()
        for _ in range(ahead):
            cutter.cut(10)
        cutter.next_part()
    ahead = max(cutter.ahead for cutter in members)
    for cutter in members:
        cutter.change((0.8, 0.2), ahead)
        for _ in range(12):
            cutter.cut(10)
    first, second = ([cutter.next_part().samples for _ in range(9)] for cutter in members)
    assert [a + b for a, b in zip(first, second, strict=True)] == [10] * 9
    assert first[4:6] == [5, 8]
