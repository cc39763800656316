"""Clocks run only while nothing moves, and nobody waits for what is too long on its way."""

from __future__ import annotations

import pytest

from hadar_cli.core.policies.port import Stint
from hadar_cli.engine.ports import CopyOrder, CopyResult, HandedIn, Moving
from tests.support.worlds import World, make_mix, make_nodes, make_world

FAST, FAR = "fast", "far"
MB = 1 << 20


@pytest.fixture
def world() -> World:
    """Two devices of 20 steps a second that are to meet at 25 s."""
    return make_world(make_mix([10_000], slot_s=100.0), make_nodes({FAST: 1.0, FAR: 1.0}))


@pytest.fixture
def orders(world) -> dict[str, CopyOrder]:
    world.tracker.plan_round([])
    world.loop.meetings.call(0, 0.0, 100.0, slowest=20.0, copies=2)
    orders = {d: world.tracker.hand_out(Stint(0, d, 750), 25.0, [1, 1]) for d in (FAST, FAR)}
    for order in orders.values():
        world.loop._held.hold(order)
    return orders


def pass_to(world: World, now: float) -> bool:
    """Whether the meeting goes on without somebody then."""
    world.executor._now = now
    closed = world.loop._report_handler.close_overdue_meetings()
    world.loop.validate()
    return closed


def move(world: World, order: CopyOrder, times: range, per_s: int, total: int) -> bool:
    """Bytes arrive from the first of these seconds to the last; whether that was too slow."""
    is_given_up = False
    for number, second in enumerate(times):
        world.executor._now = float(second)
        report = Moving(order.attempt, number * per_s, total, is_result=True)
        world.loop._report_handler.take(report)
        is_given_up |= pass_to(world, float(second))
    return is_given_up


def hand_in(world: World, order: CopyOrder, steps: int) -> None:
    result = CopyResult(steps, order.steps.first(steps).ranges, 0.0, 25.0, 0.1, "deadline")
    world.loop._report_handler.take(HandedIn(order.attempt, result, "w" * 64, True, True))


def test_who_is_silent_is_late_after_a_while(world, orders):
    world.executor._now = 25.0
    hand_in(world, orders[FAST], 500)
    assert not pass_to(world, 26.0)
    assert pass_to(world, 60.0)
    assert world.loop._held.late == {orders[FAR].attempt}


def test_whose_weights_are_on_their_way_is_not(world, orders):
    world.executor._now = 25.0
    hand_in(world, orders[FAST], 500)
    assert not move(world, orders[FAR], range(26, 46), per_s=10 * MB, total=200 * MB)
    hand_in(world, orders[FAR], 500)
    assert len(world.state.jobs[0].done) == 1000


def test_if_all_take_long_nobody_is_late(world, orders):
    for order in orders.values():
        world.loop._report_handler.take(Moving(order.attempt, 0, 9, True))
    for second in range(26, 200):
        for order in orders.values():
            assert not move(world, order, range(second, second + 1), MB, 10_000 * MB)
    assert not world.loop._held.late


def test_nobody_waits_longer_than_what_comes_is_worth(world, orders):
    """500 steps are on their way for 200 s, in which the device that waits would do 4,000."""
    world.executor._now = 25.0
    hand_in(world, orders[FAST], 500)
    assert move(world, orders[FAR], range(26, 60), per_s=MB, total=200 * MB)
    assert len(world.state.jobs[0].done) == 500


def test_once_it_stands_still_the_clock_goes_on(world, orders):
    world.executor._now = 25.0
    hand_in(world, orders[FAST], 500)
    assert not move(world, orders[FAR], range(26, 36), per_s=10 * MB, total=200 * MB)
    assert pass_to(world, 90.0)


def test_an_order_that_took_long_to_arrive_shifts_its_end(world, orders):
    for second in range(20):
        world.executor._now = float(second)
        world.loop._report_handler.take(Moving(orders[FAR].attempt, second, 20, is_result=False))
    world.executor._now = 25.0
    hand_in(world, orders[FAST], 500)
    assert not pass_to(world, 46.0)  # it was given 25 s, from 20 s on
    assert pass_to(world, 90.0)


@pytest.mark.parametrize("warm", [False, True])
def test_what_measuring_a_model_takes_is_no_cost_of_starting_or_handing_in(world, orders, warm):
    before = world.loop._held.start_cost_s
    world.executor._now = 200.0
    slices = orders[FAR].steps.first(500).ranges
    result = CopyResult(500, slices, 152.0, 25.0, 0.1, "deadline", evaluate_s=150.0)
    world.loop._report_handler.take(HandedIn(orders[FAR].attempt, result, "w" * 64, warm, True))
    assert world.loop._held.start_cost_s <= before
    cost_s = world.loop.meetings._device_cost_s[0][FAR]
    assert cost_s == pytest.approx(200.0 - 25.0 - (150.0 if warm else 152.0))
