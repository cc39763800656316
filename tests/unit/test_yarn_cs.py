"""YARN's capacity scheduler: first come, first served, to the end."""

import math

from hadar_cli.core.policies.baselines.yarn_cs import YarnCs
from tests.support.queues import queue_of


def test_nothing_is_taken_from_who_runs():
    queue = queue_of([[1.0]] * 2, capacity=[1], arrived_s=[9, 0], running={0: (1,)})
    decision = YarnCs().allocate(queue)
    assert decision.allocations == {0: (1,)}
    assert decision.until_s == math.inf  # nothing changes before a job comes or ends


def test_first_come_first_served():
    queue = queue_of([[1.0]] * 3, capacity=[2], arrived_s=[5, 3, 4])
    assert set(YarnCs().allocate(queue).allocations) == {1, 2}


def test_a_gang_without_room_lets_others_pass_only_with_backfill():
    queue = queue_of([[1.0]] * 3, capacity=[3], gang=[2, 2, 1])
    assert set(YarnCs().allocate(queue).allocations) == {0, 2}
    assert set(YarnCs(backfill=False).allocate(queue).allocations) == {0}


def test_refill_returns_only_the_new():
    queue = queue_of([[1.0]] * 2, capacity=[2], running={0: (1,)})
    assert YarnCs().refill(queue) == {1: (1,)}
