"""The tracker forks, checks and commits; lies and latecomers change nothing."""

from dataclasses import replace

import pytest

from hadar_cli.core import events
from hadar_cli.core.model import PAPER_MERGE
from hadar_cli.core.policies.port import Stint
from hadar_cli.engine.ports import CopyResult, HandedIn
from hadar_cli.engine.tracker import copy_id
from tests.support.worlds import make_mix, make_world


def result(steps: int, slices: tuple[tuple[int, int], ...]) -> CopyResult:
    return CopyResult(steps, slices, 0.1, 1.0, 0.1, "steps")


@pytest.fixture
def world():
    return make_world(make_mix([100, 100, 100]))


def test_copies_carry_the_papers_ids(world):
    # max_job_count × i + parent_job_id with three jobs; t4 is the fourth device.
    order = world.tracker.hand_out(Stint(2, "t4", 10), 5.0, [10])
    assert order.copy == copy_id(2, 4, 3) == 14


def test_orders_never_share_steps(world):
    one = world.tracker.hand_out(Stint(0, "t4", 60), 5.0, [60])
    two = world.tracker.hand_out(Stint(0, "a2000", 60), 5.0, [60, 60])
    assert one.steps.ranges == ((0, 60),)
    assert two.steps.ranges == ((60, 100),)


def test_a_copy_that_was_sent_ahead_has_what_the_one_before_it_left_undone(world):
    one = world.tracker.hand_out(Stint(0, "t4", 60), 5.0, [60])
    two = world.tracker.hand_out(Stint(0, "t4", 20), 5.0, [20], follows=one.attempt)
    assert (one.num_copies, two.num_copies) == (1, 1), "it is alone: its dropout goes on"
    world.tracker.handed_in(HandedIn(one.attempt, result(50, ((0, 50),)), "w"))
    world.tracker.commit(world.state.jobs[0])
    assert world.state.jobs[0].free.ranges == ((80, 100),)
    world.tracker.handed_in(HandedIn(two.attempt, result(25, ((50, 75),)), "w"))
    world.tracker.commit(world.state.jobs[0])
    assert world.state.jobs[0].done.ranges == ((0, 75),)
    world.state.validate()


@pytest.mark.parametrize(
    ("claim", "weights", "why"),
    [
        (result(20, ((0, 20),)), "w", "not given"),
        (result(5, ((0, 10),)), "w", "reports 5 steps but lists 10"),
        (result(10, ((0, 6), (4, 8))), "w", "inconsistent"),
        (result(-1, ()), "w", "reports -1 steps"),
        (result(10, ((0, 10),)), None, "left no weights"),
    ],
)
def test_a_lying_copy_is_lost_not_counted(world, claim, weights, why):
    order = world.tracker.hand_out(Stint(0, "t4", 10), 5.0, [10])
    world.tracker.handed_in(HandedIn(order.attempt, claim, weights))
    lost = world.journal.events[-1]
    assert isinstance(lost, events.CopyLost)
    assert why in lost.why
    assert len(world.state.jobs[0].free) == 100


def test_a_repeated_result_matches_nothing(world):
    order = world.tracker.hand_out(Stint(0, "t4", 10), 5.0, [10])
    report = HandedIn(order.attempt, result(10, ((0, 10),)), "w")
    world.tracker.handed_in(report)
    world.tracker.commit(world.state.jobs[0])
    before = list(world.journal.events)
    world.tracker.handed_in(report)
    world.tracker.handed_in(HandedIn("e9-r9-c9-9", report.result, "w"))
    assert world.journal.events == before
    assert len(world.state.jobs[0].done) == 10


def test_everything_is_journalled_before_it_is_applied(world):
    class FullDisk:
        def append(self, event: events.Event) -> None:
            raise OSError("disk full")

    world.tracker._journal = FullDisk()
    with pytest.raises(OSError, match="disk full"):
        world.tracker.hand_out(Stint(0, "t4", 10), 5.0, [10])
    assert not world.state.started


def test_an_event_that_the_state_refuses_never_reaches_the_journal(world):
    order = world.tracker.hand_out(Stint(0, "t4", 10), 5.0, [10])
    before = list(world.journal.events)
    twice = replace(before[-1], slices=((10, 20),))
    assert twice.attempt == order.attempt
    with pytest.raises(ValueError, match="started twice"):
        world.tracker.record(twice)
    assert world.journal.events == before
    again = make_world(world.mix, past=world.journal.events)  # as `hadar resume` reads it
    assert list(again.state.jobs[0].active) == [order.attempt]


def test_learning_rate_is_scaled_by_effective_copies_after_warm_up():
    world = make_world(make_mix([1000]))
    tracker, job = world.tracker, world.state.jobs[0]
    first = tracker.hand_out(Stint(0, "t4", 500), 5.0, [100, 100])
    assert first.lr_scale == 1.0  # nothing is done yet: the scale warms up with the steps
    tracker.handed_in(HandedIn(first.attempt, result(500, ((0, 500),)), "w"))
    tracker.commit(job)
    warmed = tracker.hand_out(Stint(0, "t4", 100), 5.0, [100, 100])
    assert warmed.lr_scale == pytest.approx(2.0)
    uneven = tracker.hand_out(Stint(0, "a2000", 100), 5.0, [80, 30, 10])
    assert uneven.lr_scale == pytest.approx(120**2 / (80**2 + 30**2 + 10**2))


@pytest.mark.parametrize("evaluates", [True, False])
def test_only_a_job_that_evaluates_waits_for_its_quality_at_the_end(evaluates):
    world = make_world(make_mix([100]))
    tracker, job = world.tracker, world.state.jobs[0]
    first = tracker.hand_out(Stint(0, "t4", 100), 5.0, [100])
    untrained = {"accuracy": 0.1} if evaluates else None
    done = CopyResult(100, ((0, 100),), 0.1, 1.0, 0.1, "steps", quality=untrained)
    tracker.handed_in(HandedIn(first.attempt, done, "first"))
    tracker.commit(job)
    assert bool(world.state.unmeasured) is evaluates
    order = tracker.hand_out_side_task(job, "t4", 9.0, "evaluate")
    assert (order.evaluate, order.weights) == (True, job.weights)
    answer = CopyResult(0, (), 0.1, 0.0, 0.0, "steps", quality={"accuracy": 0.8})
    tracker.handed_in(HandedIn(order.attempt, answer, None))
    assert not world.state.unmeasured
    assert job.quality == {"accuracy": 0.8}


def test_the_papers_merge_leaves_the_learning_rate_alone():
    world = make_world(make_mix([1000], merge=PAPER_MERGE))
    assert world.tracker.hand_out(Stint(0, "t4", 10), 5.0, [50, 50]).lr_scale == 1.0
