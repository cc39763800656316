"""The fold over events counts only what was committed, and refuses what cannot be true."""

from copy import deepcopy
from dataclasses import replace

import pytest

from hadar_cli.core import events
from hadar_cli.core.state import RunState
from tests.support.worlds import make_mix


def started(attempt: str, slices: tuple[tuple[int, int], ...], job: int = 0, generation: int = 0):
    return events.CopyStarted(1.0, attempt, job, 7, "t4", 1, generation, slices)


def finished(attempt: str, slices: tuple[tuple[int, int], ...], **fields: object):
    steps = sum(end - first for first, end in slices)
    return events.CopyFinished(2.0, attempt, steps, slices, 0.1, 1.0, 0.1, "steps", "w", **fields)


@pytest.fixture
def state() -> RunState:
    return RunState(make_mix([100]).jobs)


def test_steps_count_only_once_they_are_committed(state):
    job = state.jobs[0]
    state.apply(started("a", ((0, 60),)))
    assert (len(job.free), len(job.done)) == (40, 0)
    state.apply(finished("a", ((0, 50),)))
    assert (len(job.free), len(job.done)) == (50, 0)
    state.apply(events.WeightsMerged(3.0, 0, 1, "hash", ("a",)))
    assert (len(job.free), len(job.done), job.generation) == (50, 50, 1)


def test_refused_steps_go_back_to_the_pool(state):
    state.apply(started("a", ((0, 50),)))
    state.apply(started("b", ((50, 100),)))
    state.apply(finished("a", ((0, 50),)))
    state.apply(finished("b", ((50, 100),)))
    state.apply(events.WeightsMerged(3.0, 0, 1, "hash", ("a",), (("b", "NaN"),)))
    assert state.jobs[0].free.ranges == ((50, 100),)
    assert state.jobs[0].failures == {"t4": 1}


def test_a_job_is_finished_when_its_last_step_is_committed(state):
    state.apply(started("a", ((0, 100),)))
    state.apply(finished("a", ((0, 100),)))
    assert state.jobs[0].finished_at is None
    state.apply(events.WeightsMerged(3.5, 0, 1, "hash", ("a",)))
    assert state.jobs[0].finished_at == 3.5
    assert not state.unfinished


def test_a_new_head_goes_on_with_what_the_last_one_left(state):
    state.apply(started("a", ((0, 60),)))
    state.apply(started("b", ((60, 80),)))
    state.apply(finished("b", ((60, 80),)))
    state.apply(events.HeadStarted(5.0, 2))
    assert (list(state.jobs[0].active), list(state.jobs[0].handed_in)) == (["a"], ["b"])
    assert len(state.jobs[0].free) == 20


def test_a_head_that_leaves_in_order_leaves_nothing_under_way(state):
    state.apply(started("a", ((0, 60),)))
    state.apply(events.RunStopped(5.0, "interrupted"))
    assert len(state.jobs[0].free) == 100


def test_a_node_s_failure_is_not_held_against_the_job(state):
    state.apply(started("a", ((0, 60),)))
    state.apply(events.CopyLost(2.0, "a", "its node is gone", node_fault=True))
    assert (state.jobs[0].failures, len(state.jobs[0].free)) == ({}, 100)


def test_a_device_that_returns_is_no_longer_lost(state):
    state.apply(events.DeviceLost(1.0, "t4", "gone"))
    state.apply(events.DeviceReturned(2.0, "t4"))
    assert state.lost_devices == {}


def test_a_lost_copy_returns_its_steps(state):
    state.apply(started("a", ((0, 60),)))
    state.apply(events.CopyLost(2.0, "a", "killed"))
    assert len(state.jobs[0].free) == 100


def test_quality_of_generation_zero_is_the_untrained_models(state):
    state.apply(started("a", ((0, 10),)))
    state.apply(finished("a", ((0, 10),), quality={"accuracy": 0.1}))
    state.apply(events.WeightsMerged(3.0, 0, 1, "hash", ("a",)))
    state.apply(started("e", (), generation=1))
    state.apply(finished("e", (), quality={"accuracy": 0.9}))
    assert state.jobs[0].untrained == {"accuracy": 0.1}
    assert state.jobs[0].quality == {"accuracy": 0.9}


@pytest.mark.parametrize(
    ("sequence", "complaint"),
    [
        ([started("a", ((0, 9),)), started("a", ((9, 12),))], "started twice"),
        ([started("a", ((0, 9),)), started("b", ((8, 12),))], "done or held"),
        ([started("a", ((0, 9),)), finished("a", ((0, 10),))], "not given"),
        (
            [started("a", ((0, 9),)), finished("a", ((0, 9),)), finished("a", ((0, 9),))],
            "not under way",
        ),
        (
            [
                started("a", ((0, 9),)),
                finished("a", ((0, 9),)),
                events.WeightsMerged(3.0, 0, 2, "hash", ("a",)),
            ],
            "no generation 2",
        ),
        (
            [
                *(started("a", ((0, 9),)), finished("a", ((0, 9),))),
                events.WeightsMerged(3.0, 0, 1, "hash", ("a", "b")),
            ],
            "b",
        ),
        (
            [
                *(started("a", ((0, 9),)), finished("a", ((0, 9),))),
                events.WeightsMerged(3.0, 0, 1, "hash", ("a",), (("a", "NaN"),)),
            ],
            "take and refuse it",
        ),
        (
            [
                *(started("a", ((0, 9),)), finished("a", ((0, 9),))),
                events.WeightsMerged(3.0, 0, 1, "hash", ("a", "a")),
            ],
            "twice",
        ),
        ([started("a", ((0, 9),)), events.CopyLost(2.0, "b", "who?")], "b"),
        ([started("a", ((0, 9),)), events.JobCutShort(2.0, 0, "time")], "at work"),
        ([events.JobCutShort(2.0, 7, "time")], "7"),
        ([events.RunFinished(2.0, float("inf"))], "no finite lower_bound_s"),
        ([events.RunFinished(float("nan"))], "no finite t"),
        ([started("a", ((0, 9),), job=7)], "7"),
    ],
)
def test_impossible_events_are_refused_and_change_nothing(state, sequence, complaint):
    for event in sequence[:-1]:
        state.apply(event)
    state.validate()
    before = deepcopy(vars(state))
    with pytest.raises((ValueError, LookupError), match=complaint):
        state.apply(sequence[-1])
    assert vars(state) == before
    state.validate()


def test_what_was_sent_ahead_counts_only_behind_the_one_that_it_follows(state):
    """Another copy may have made the weights of that generation meanwhile."""
    job = state.jobs[0]
    heir = replace(started("heir", ((50, 60),), generation=1), follows="a")
    state.apply(started("b", ((0, 50),)))
    state.apply(finished("b", ((0, 50),)))
    state.apply(events.WeightsMerged(3.0, 0, 1, "hash", ("b",)))
    assert not job.is_based_on_latest(heir)
    assert job.is_based_on_latest(replace(heir, follows="b"))


def merged(generation: int, *accepted: str, **fields: object) -> events.WeightsMerged:
    return events.WeightsMerged(3.0, 0, generation, f"w{generation}", accepted, **fields)


def with_a_late_copy(state: RunState) -> None:
    """Generation 1 is of one copy alone; then "late" misses the merge of generation 2."""
    for event in (
        *(started("a", ((0, 10),)), finished("a", ((0, 10),)), merged(1, "a")),
        started("b", ((10, 20),), generation=1),
        started("late", ((20, 30),), generation=1),
        *(finished("b", ((10, 20),)), merged(2, "b")),
    ):
        state.apply(event)
        state.validate()


def test_the_steps_of_a_late_copy_are_its_own_until_the_next_merge_counts_them_once(state):
    job = state.jobs[0]
    with_a_late_copy(state)
    assert (len(job.done), len(job.free), len(job.in_hand)) == (20, 70, 10)
    state.apply(finished("late", ((20, 28),)))
    assert (len(job.done), len(job.free), len(job.in_hand)) == (20, 72, 8)
    before = job.effective_steps
    state.apply(merged(3, "late", late={"late": 0.25}))
    state.validate()
    assert (len(job.done), len(job.free), len(job.in_hand)) == (28, 72, 0)
    assert job.effective_steps - before == pytest.approx(0.25 * 8)
    with pytest.raises(ValueError, match="nothing to commit"):
        state.apply(merged(4, "late", late={"late": 0.25}))


def test_what_a_late_copy_began_with_is_known_until_it_is_merged(state):
    job = state.jobs[0]
    with_a_late_copy(state)
    assert sorted(job.generations) == [1, 2]
    assert job.base_of(state.started["late"]).weights == "w1"
    state.apply(started("c", ((30, 40),), generation=2))
    state.apply(finished("c", ((30, 40),)))
    state.apply(merged(3, "c"))
    assert sorted(job.generations) == [1, 3]
    state.apply(finished("late", ((20, 30),)))
    state.apply(merged(4, "late", late={"late": 0.2}))
    assert sorted(job.generations) == [4]


def test_a_late_copy_that_is_lost_returns_its_steps(state):
    with_a_late_copy(state)
    state.apply(events.CopyLost(4.0, "late", "its node is gone"))
    assert state.jobs[0].free.ranges == ((20, 100),)


def test_a_copy_that_is_late_from_before_the_first_merge_has_nothing_to_be_an_update_of(state):
    state.apply(started("late", ((10, 20),)))
    for event in (started("a", ((0, 10),)), finished("a", ((0, 10),)), merged(1, "a")):
        state.apply(event)
    assert not state.jobs[0].may_count(state.started["late"])
    with pytest.raises(ValueError, match="never were the job's"):
        state.apply(finished("late", ((10, 20),)))


def test_weights_that_a_late_copy_is_in_are_not_those_that_its_process_goes_on_from(state):
    job = state.jobs[0]
    with_a_late_copy(state)
    heir = replace(started("heir", ((30, 40),), generation=3), follows="late")
    state.apply(finished("late", ((20, 30),)))
    state.apply(merged(3, "late", late={"late": 0.2}))
    assert job.made_by == ()
    assert not job.may_count(heir)
