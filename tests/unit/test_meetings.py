"""How often copies meet: as often as pays, never past the slot, and not for one alone."""

import pytest

from hadar_cli.app.meetings import Meetings
from hadar_cli.core.model import EVERY_SLOT, MergeRules


def meetings(**rules: object) -> Meetings:
    return Meetings(MergeRules(**rules), slot_s=100.0)  # type: ignore[arg-type]


def test_a_merge_may_take_a_twentieth_of_the_time():
    them = meetings()
    them.learn(0, cost_s=0.5)
    assert them.call(0, begins=0.0, ends=100.0, slowest=10.0, copies=3) == pytest.approx(10.0)


def test_meetings_divide_what_is_left_of_the_slot_evenly():
    them = meetings()
    them.learn(0, cost_s=0.5)
    assert them.call(0, begins=75.0, ends=100.0, slowest=10.0, copies=2) == pytest.approx(87.5)
    assert them.call(0, begins=94.0, ends=100.0, slowest=10.0, copies=2) == pytest.approx(100.0)


def test_until_a_merge_was_timed_the_slot_is_quartered():
    assert meetings().call(0, 0.0, 100.0, slowest=10.0, copies=2) == pytest.approx(25.0)


def test_one_copy_has_nobody_to_meet_before_the_slot_ends():
    them = meetings(every_s=5.0)
    assert them.call(0, 0.0, 100.0, slowest=10.0, copies=1) == pytest.approx(100.0)
    assert them.call(0, 0.0, 100.0, slowest=10.0, copies=2) == pytest.approx(5.0)


def test_the_papers_way_is_once_a_slot():
    them = meetings(every_s=EVERY_SLOT)
    them.learn(0, cost_s=0.01)
    assert them.call(0, 0.0, 100.0, slowest=10.0, copies=5) == pytest.approx(100.0)


def test_the_slowest_copy_gets_a_step_done_between_meetings():
    them = meetings()
    them.learn(0, cost_s=0.01)
    assert them.call(0, 0.0, 100.0, slowest=0.05, copies=2) == pytest.approx(20.0)


def test_costs_are_each_jobs_own_and_the_newest_weighs_half():
    them = meetings()
    them.learn(0, cost_s=1.0)
    them.learn(0, cost_s=0.0)
    assert them.call(0, 0.0, 100.0, slowest=10.0, copies=2) == pytest.approx(10.0)
    assert them.call(1, 0.0, 100.0, slowest=10.0, copies=2) == pytest.approx(25.0)


def test_patience_ends_some_time_after_the_meeting_was_due():
    them = meetings(every_s=10.0)
    due = them.call(0, 0.0, 100.0, slowest=10.0, copies=2)
    quick = them.overdue_at(0, start_cost_s=0.0)
    them.learn(0, cost_s=4.0)
    assert due < quick < them.overdue_at(0, start_cost_s=0.0)
    assert them.overdue_at(0, start_cost_s=3.0) > them.overdue_at(0, start_cost_s=0.0)


def test_a_meeting_expected_after_the_next_one_takes_its_place():
    them = meetings()
    them.expect(0, 10.0)
    them.expect(0, 20.0)
    assert them.due(0) == 10.0
    them.close(0)
    assert them.due(0) == 20.0
    them.close(0)
    assert them.due(0) is None


def test_copies_on_devices_too_slow_to_make_up_for_a_merge_do_not_pay():
    them = meetings()
    assert them.copies_that_pay(0, [10.0, 5.0]) is None
    them.learn(0, cost_s=1.0)
    assert them.copies_that_pay(0, [10.0, 5.0, 1.0]) == 3
    assert them.copies_that_pay(0, [10.0, 0.2]) == 1
    them.learn(1, cost_s=300.0)  # three slots for a merge
    assert them.copies_that_pay(1, [10.0, 5.0, 1.0]) == 1


def test_under_the_square_root_fewer_copies_pay():
    them = meetings(lr_scale="sqrt")
    them.learn(0, cost_s=1.0)
    assert them.copies_that_pay(0, [10.0, 9.0]) == 2
    assert them.copies_that_pay(0, [10.0, 2.0]) == 1
