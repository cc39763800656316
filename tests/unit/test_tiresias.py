"""Tiresias: least attained service in two steps, blind to kinds."""

import numpy as np

from hadar_cli.core.policies.baselines.tiresias import Tiresias
from tests.support.queues import queue_of


def test_jobs_that_have_had_their_share_fall_behind():
    queue = queue_of([[1.0]] * 2, capacity=[1], attained_s=np.array([5000.0, 10.0]))
    assert list(Tiresias().allocate(queue).allocations) == [1]
    assert list(Tiresias(threshold_s=9000).allocate(queue).allocations) == [0]


def test_within_a_queue_the_first_come_goes_first():
    queue = queue_of([[1.0]] * 3, capacity=[1], arrived_s=[5, 3, 4])
    assert list(Tiresias().allocate(queue).allocations) == [1]


def test_it_takes_the_generally_faster_kind_even_where_that_is_slower():
    queue = queue_of([[1, 2], [9, 1], [9, 1]], capacity=[3, 3])
    assert Tiresias().allocate(queue).allocations == {0: (1, 0), 1: (1, 0), 2: (1, 0)}


def test_never_where_a_job_cannot_run():
    queue = queue_of([[0, 1], [9, 1], [9, 1]], capacity=[1, 1])
    assert Tiresias().allocate(queue).allocations == {0: (0, 1), 1: (1, 0)}


def test_refill_leaves_the_running_alone():
    queue = queue_of([[1.0]] * 3, capacity=[2], running={0: (1,)})
    assert Tiresias().refill(queue) == {1: (1,)}


def test_a_decision_holds_until_the_first_job_falls_to_the_second_queue():
    """Job 1 lacks the least, but waits; job 0 gains two device-seconds a second."""
    attained = np.array([3000.0, 3590.0, 5000.0])
    queue = queue_of([[1.0]] * 3, capacity=[2], gang=[2, 1, 1], attained_s=attained, now_s=50.0)
    decision = Tiresias().allocate(queue)
    assert list(decision.allocations) == [0]
    assert decision.until_s == 50.0 + 600.0 / 2
    assert not decision.outlasts_refills
    alone = queue_of([[1.0]], capacity=[1], attained_s=attained[2:])
    assert Tiresias().allocate(alone).until_s == np.inf
