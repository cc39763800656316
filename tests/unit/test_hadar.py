"""Hadar: who chooses first, what a gang takes, and the paper's example."""

from dataclasses import replace

import numpy as np
import pytest

from hadar_cli.core.estimates.gangs import PROPORTIONAL
from hadar_cli.core.policies.gangs.hadar import Hadar
from hadar_cli.core.policies.gangs.queue import gang_rate
from hadar_cli.errors import InputError
from tests.support.queues import chance_queue, queue_of, run_rounds

# The paper's motivational example: 2 V100, 3 P100 and 1 K80; three jobs of 3, 2 and 2 GPUs and
# 80, 30 and 50 epochs. Its X counts epochs of the whole gang in a round.
EXAMPLE_X = np.array([[40, 20, 30], [5, 15, 5], [10, 2, 20]], float)


def example(elastic):
    gang = [3, 2, 2]
    rates = EXAMPLE_X / np.array(gang)[:, None]
    return queue_of(
        rates.tolist(), capacity=[2, 3, 1], gang=gang, steps=[80, 30, 50], elastic=elastic, slot_s=1
    )


@pytest.mark.parametrize("objective", ["balanced", "makespan"])
def test_the_motivational_example_takes_six_rounds_with_whole_gangs(objective):
    """The paper draws five rounds. They need devices lent out one by one: with whole gangs its
    own constraint (all W_j or nothing) leaves the K80 to nobody but a mixed gang at the pace of
    its slowest, and six is what both schedulers reach."""
    assert len(run_rounds(Hadar(objective=objective), example(elastic=False))) == 6


@pytest.mark.parametrize("objective", ["balanced", "makespan"])
def test_the_motivational_example_takes_five_rounds_with_elastic_gangs(objective):
    history = run_rounds(Hadar(objective=objective), example(elastic=True))
    assert len(history) == 5
    used = np.array([np.sum(list(allocations.values()), axis=0) for allocations in history])
    assert (used == [2, 3, 1]).all()  # the paper's 100 % are these


def test_each_takes_the_kind_that_suits_it():
    queue = queue_of([[10, 1], [1, 10]], capacity=[1, 1])
    assert Hadar().allocate(queue).allocations == {0: (1, 0), 1: (0, 1)}


def test_a_critical_job_gets_the_fastest_devices_however_dear():
    # Forty jobs make the first kind five times as dear; job 0 hardly gains there, but needs all
    # the time that there is.
    rates, steps = [[3.0, 2.5], *[[10.0, 2.0]] * 40], [2.9e5, *[3e5] * 40]
    queue = queue_of(rates, capacity=[10, 10], steps=steps)
    assert Hadar().allocate(queue).allocations[0] == (1, 0)
    assert Hadar(objective="jct").allocate(queue).allocations[0] == (0, 1)


def test_short_jobs_wait_for_a_job_that_may_turn_out_to_need_all_the_time():
    steps = [5e4, *[1e3] * 40]
    queue = queue_of([[1.0]] * 41, capacity=[1], steps=steps)
    assert 0 not in Hadar().allocate(queue).allocations
    doubtful = replace(queue, at_worst=np.array([9e4, *[1e3] * 40]))
    assert list(Hadar().allocate(doubtful).allocations) == [0]


def test_cheap_jobs_come_before_dear_ones_of_no_urgency():
    queue = queue_of([[1.0]] * 9, capacity=[1], steps=[9e3] * 8 + [1e3])
    assert list(Hadar().allocate(queue).allocations) == [8]


def test_makespan_takes_the_longest_first():
    queue = queue_of([[1.0]] * 9, capacity=[1], steps=[1e3] * 8 + [2e3])
    assert list(Hadar(objective="makespan").allocate(queue).allocations) == [8]


def test_wide_gangs_do_not_wait_for_the_end():
    # Eight gangs of 8 on 20 devices, two at a time, are most of the work; many small jobs cheaper.
    # Eight of the small ones are short jobs, and leave room for one gang.
    queue = queue_of(
        [[1.0]] * 28, capacity=[20], gang=[8] * 8 + [1] * 20, steps=[8e4] * 8 + [2e4] * 20
    )
    runs = Hadar().allocate(queue).allocations
    assert sum(1 for job in runs if job < 8) == 1
    late = Hadar(objective="jct").allocate(queue).allocations
    assert not any(job < 8 for job in late)


def test_a_gang_wider_than_every_kind_has_its_turn():
    # It is the cheapest, so the four single jobs, which would each fit, wait.
    queue = queue_of(
        [[1.0, 1.0]] * 5, capacity=[2, 2], gang=[4, 1, 1, 1, 1], steps=[1e3, *[1e5] * 4]
    )
    assert Hadar(objective="jct").allocate(queue).allocations == {0: (2, 2)}


def test_jobs_of_equal_length_take_turns_only_as_often_as_starts_allow():
    """One device, two jobs that need all the time there is: the longer goes first, unless the
    other runs and a start costs more than the difference is worth."""
    queue = queue_of([[1.0]] * 2, capacity=[1], steps=[1.0e5, 1.001e5], running={0: (1,)})
    assert list(Hadar(objective="makespan").allocate(queue).allocations) == [1]
    slow = replace(queue, restart_s=10.0)  # a turn is the root of 10 s × 200,100 s, 1,415 s
    assert list(Hadar(objective="makespan").allocate(slow).allocations) == [0]
    behind = replace(slow, remaining=np.array([0.98e5, 1.001e5]))
    assert list(Hadar(objective="makespan").allocate(behind).allocations) == [1]


def test_a_job_gives_way_only_to_one_that_is_shorter_by_two_starts():
    queue = queue_of([[1.0]] * 2, capacity=[1], steps=[1000, 900], running={0: (1,)})
    assert list(Hadar(objective="jct").allocate(queue).allocations) == [1]
    slow = replace(queue, restart_s=60.0)
    assert list(Hadar(objective="jct").allocate(slow).allocations) == [0]


def test_a_job_about_to_end_does_not_move():
    # The other kind is three times as fast, and idle; a start there takes a minute.
    queue = queue_of([[1.0, 3.0]], capacity=[1, 1], running={0: (1, 0)}, restart_s=60.0)
    assert Hadar(objective="jct").allocate(queue).allocations == {0: (0, 1)}
    ending = replace(queue, remaining=np.array([80.0]))
    assert Hadar(objective="jct").allocate(ending).allocations == {0: (1, 0)}
    assert Hadar().allocate(ending).allocations == {0: (1, 0)}


def test_cheap_jobs_go_before_a_long_one_that_has_time_to_spare():
    # Twelve jobs on one device; the long one needs 88 % of the time, the short one a hundredth.
    steps = [88e3, *[1.1e3] * 10, 1e3]
    queue = queue_of([[1.0]] * 12, capacity=[1], steps=steps)
    assert list(Hadar().allocate(queue).allocations) == [11]
    tight = queue_of([[1.0]] * 12, capacity=[2], steps=steps)  # now it needs all the time
    assert next(iter(Hadar().allocate(tight).allocations)) == 0


def test_while_jobs_still_come_a_long_one_is_not_critical():
    queue = queue_of([[1.0]] * 9, capacity=[2], steps=[9e5, *[3e4] * 8])
    assert 0 in Hadar().allocate(queue).allocations
    open_ended = replace(queue, arrivals_s=1e6)
    assert 0 not in Hadar().allocate(open_ended).allocations


def test_of_equals_those_that_run_go_on_where_they_are():
    queue = queue_of([[1.0, 1.0]] * 12, capacity=[1, 1], running={5: (1, 0), 7: (0, 1)})
    decision = Hadar().allocate(queue)
    assert decision.allocations == {5: (1, 0), 7: (0, 1)}


def test_leftover_devices_of_several_kinds_make_a_gang():
    queue = queue_of([[2.0, 1.0]], capacity=[2, 2], gang=[4])
    assert Hadar().allocate(queue).allocations == {0: (2, 2)}


def test_spread_rates_count_for_mixed_gangs():
    spread = np.array([[0.0, 0.0]])
    queue = queue_of([[2.0, 1.0]], capacity=[2, 2], gang=[4], spread_rates=spread)
    assert Hadar().allocate(queue).allocations == {}  # it would not move at all


def test_a_gang_takes_slower_devices_together_rather_than_faster_ones_apart():
    spread = np.array([[3.0, 3.0, 1.0]])
    queue = queue_of([[10.0, 10.0, 4.0]], capacity=[1, 1, 2], gang=[2], spread_rates=spread)
    assert Hadar().allocate(queue).allocations == {0: (0, 0, 2)}


def test_refill_gives_what_came_free_to_the_waiting_only():
    queue = queue_of([[1.0, 1.0]] * 3, capacity=[1, 1])
    decision = Hadar().allocate(queue)
    (waiting,) = {0, 1, 2} - set(decision.allocations)
    staying = next(iter(decision.allocations))
    later = queue_of(
        [[1.0, 1.0]] * 3, capacity=[1, 1], running={staying: decision.allocations[staying]}
    )
    later = later.permuted(np.array([staying, waiting]), np.arange(2))
    more = Hadar().refill(later, decision.memory)
    assert list(more) == [waiting] and sum(more[waiting]) == 1


def test_a_decision_lasts_for_a_share_of_the_time_the_queue_needs():
    queue = chance_queue(1, 50, [1, 1, 1], now_s=1000.0)
    first = Hadar().allocate(queue)
    assert first.until_s == pytest.approx(1000.0 + 0.01 * first.memory.prices.value_s)
    closer = Hadar(objective="makespan").allocate(queue)
    assert closer.until_s == pytest.approx(1000.0 + 0.002 * closer.memory.prices.value_s)


def test_refill_looks_at_jobs_that_came_after_the_decision_too():
    queue = queue_of([[1.0, 1.0]] * 4, capacity=[2, 2])
    decision = Hadar().allocate(queue.only(np.arange(2)))
    later = replace(queue, running=decision.allocations)
    assert set(Hadar().refill(later, decision.memory)) == {2, 3}


def test_memory_starts_the_next_prices():
    queue = chance_queue(1, 50, [5, 5, 5])
    first = Hadar().allocate(queue)
    assert first.memory.prices.per_second @ queue.capacity == pytest.approx(1.0)
    again = Hadar().allocate(queue, first.memory)
    assert again.memory.prices.value_s == pytest.approx(first.memory.prices.value_s, rel=1e-3)


def test_paper_prices_turn_away_jobs_that_do_not_pay():
    queue = chance_queue(2, 40, [4, 4, 4])
    chosen = Hadar(prices="paper").allocate(queue).allocations
    assert 0 < len(chosen) < 40
    assert all(
        gang_rate(allocation, queue.rates[job].tolist()) > 0 for job, allocation in chosen.items()
    )


def test_unknown_choices_are_the_users_to_mend():
    with pytest.raises(InputError, match="did you mean 'makespan'") as caught:
        Hadar(objective="makspan")
    assert caught.value.field == "policy.objective"


def test_a_job_moves_only_for_a_clearly_better_price():
    # Many jobs like [2, 1] set prices at two to one; job 0 is nearly, job 1 far from indifferent.
    rates = [[2.1, 1.0], [9.0, 1.0], *[[2.0, 1.0]] * 40]
    steps = [1e4, 1e4, *[1e5] * 40]
    queue = queue_of(rates, capacity=[4, 4], steps=steps, running={0: (0, 1), 1: (0, 1)})
    runs = Hadar().allocate(queue).allocations
    assert runs[0] == (0, 1) and runs[1] == (1, 0)


def test_idle_devices_go_to_whoever_is_faster_there():
    # Two equal jobs, two kinds; the dear kind would stand idle beside the cheap one.
    queue = queue_of([[3.0, 1.0]] * 2, capacity=[2, 2], running={0: (0, 1), 1: (0, 1)})
    runs = Hadar(objective="jct").allocate(queue).allocations
    assert runs == {0: (1, 0), 1: (1, 0)}
    dear = replace(queue, restart_s=1e6)
    assert Hadar(objective="jct").allocate(dear).allocations == {0: (0, 1), 1: (0, 1)}


def test_who_has_waited_for_longer_than_is_fair_goes_first():
    # Both would take 1,000 s alone. The second came early, and its time is up.
    queue = queue_of(
        [[1.0]] * 2, capacity=[1], steps=[900, 1000], arrived_s=[9.9e3, 0.0], now_s=1e4, met=2
    )
    assert list(Hadar(objective="jct").allocate(queue).allocations) == [0]
    assert list(Hadar(objective="fairness").allocate(queue).allocations) == [1]
    assert list(Hadar().allocate(queue).allocations) == [1]


def test_a_gang_of_unequal_shares_takes_the_fastest_it_can_get():
    queue = queue_of([[10.0, 4.0, 1.0]], capacity=[1, 1, 2], gang=[3])
    equal = Hadar().allocate(queue).allocations[0]
    assert gang_rate(equal, [10.0, 4.0, 1.0]) == 3.0  # the slowest holds all up
    queue = replace(queue, proportional=np.array([True]))
    shared = Hadar().allocate(queue).allocations[0]
    assert shared == (1, 1, 1)
    assert gang_rate(shared, [10.0, 4.0, 1.0], PROPORTIONAL) == 15.0
