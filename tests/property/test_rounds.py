"""The loop over the simulator, whatever the cluster, the mix and the misfortune."""

from collections import defaultdict
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hadar_cli.core import events
from hadar_cli.core.model import MergeRules
from hadar_cli.core.reasons import Unfit
from hadar_cli.core.state import RunState
from hadar_cli.core.steps import StepSet, all_steps
from hadar_cli.engine.ports import Consolidated, Contribution, HandedIn, Refusal, Report
from hadar_cli.errors import UnfinishedError
from hadar_cli.simulation.executor import Costs
from tests.support.worlds import World, make_mix, make_nodes, make_world

targets = st.lists(st.integers(1, 400), min_size=1, max_size=5)
speeds = st.lists(st.floats(0.1, 1.0), min_size=1, max_size=5)
slots = st.floats(3.0, 20.0)
costs = st.builds(Costs, start_s=st.floats(0, 30), sync_s=st.floats(0, 2))


def world_of(targets: list[int], speeds: list[float], slot_s: float, costs: Costs) -> World:
    nodes = make_nodes({f"d{i}": speed for i, speed in enumerate(speeds)})
    return make_world(make_mix(targets, slot_s), nodes, costs=costs)


def check_steps_conserved(world: World) -> None:
    """Recounts every job from the journal alone: each step accepted once, and all of them."""
    claimed: dict[str, events.CopyFinished] = {}
    job_of: dict[str, int] = {}
    counted: dict[int, StepSet] = defaultdict(StepSet)
    for event in world.journal.events:
        match event:
            case events.CopyStarted():
                job_of[event.attempt] = event.job
            case events.CopyFinished():
                claimed[event.attempt] = event
            case events.WeightsMerged():
                for attempt in event.accepted:
                    assert job_of[attempt] == event.job
                    counted[event.job] |= StepSet.of(claimed.pop(attempt).slices)
    for job in world.mix.jobs:
        assert counted[job.id] == all_steps(job.target_steps)


def check_no_device_used_twice(world: World) -> None:
    holder: dict[str, str] = {}
    following: dict[str, str] = {}
    for event in world.journal.events:
        match event:
            case events.CopyStarted():
                assert holder.get(event.device, "") == event.follows
                holder[event.device] = event.attempt
                following[event.follows] = event.attempt
            case events.CopyFinished() | events.CopyLost():
                device = world.state.device_of(event.attempt)
                if event.attempt not in following:
                    assert holder.pop(device) == event.attempt


@settings(deadline=None, max_examples=40)
@given(targets, speeds, slots, costs)
def test_every_job_ends_with_exactly_its_steps(targets, speeds, slot_s, costs):
    world = world_of(targets, speeds, slot_s, costs)
    world.loop.run()
    check_steps_conserved(world)
    check_no_device_used_twice(world)


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 900), st.floats(0.3, 20), slots, costs)
def test_on_one_device_a_job_trains_its_steps_in_order(target, speed, slot_s, costs):
    """As by hand, however many slots it takes, and whatever is sent ahead of a slot's end."""
    world = world_of([target], [speed], slot_s, costs)
    world.loop.run()
    finished = [e for e in world.journal.events if isinstance(e, events.CopyFinished) and e.steps]
    trained = [step for event in finished for a, b in event.slices for step in range(a, b)]
    assert trained == list(range(target))


@settings(deadline=None, max_examples=40)
@given(targets, speeds, slots, costs, st.data())
def test_lost_devices_cost_nothing_but_time(targets, speeds, slot_s, costs, data):
    world = world_of(targets, speeds, slot_s, costs)
    lost = data.draw(st.sets(st.sampled_from(range(len(speeds)))))
    for number in lost:
        world.executor.lose_device(f"d{number}", at=data.draw(st.floats(0, 100)))
    try:
        world.loop.run()
    except UnfinishedError as error:
        assert "no device is left" in str(error) or "failed" in str(error)
        assert len(lost) == len(speeds) or "failed" in str(error)
        return
    check_steps_conserved(world)
    check_no_device_used_twice(world)


@settings(deadline=None, max_examples=25)
@given(targets, speeds, slots, st.data())
def test_a_journal_cut_anywhere_resumes_to_the_same_exactness(targets, speeds, slot_s, data):
    world = world_of(targets, speeds, slot_s, Costs())
    world.loop.run()
    cut = data.draw(st.integers(0, len(world.journal.events)))
    past = world.journal.events[:cut]
    resumed = make_world(world.mix, world.nodes, past=past)
    if not resumed.state.finished:
        resumed.loop.run()
    resumed.journal.events[:0] = past
    check_steps_conserved(resumed)


@settings(deadline=None, max_examples=20)
@given(targets, speeds, slots)
def test_the_state_is_a_fold_of_the_journal(targets, speeds, slot_s):
    world = world_of(targets, speeds, slot_s, Costs())
    world.loop.run()
    again = RunState(world.mix.jobs)
    for event in world.journal.events:
        again.apply(event)
    assert {j: s.done for j, s in again.jobs.items()} == {
        j: s.done for j, s in world.state.jobs.items()
    }
    assert again.finished


@settings(deadline=None, max_examples=20)
@given(targets, speeds, slots, st.integers(1, 30))
def test_leaving_early_loses_nothing_that_was_trained(targets, speeds, slot_s, looks):
    world = world_of(targets, speeds, slot_s, Costs(start_s=0.1, sync_s=0.0))
    original, looked = world.executor.wait, 0

    def wait(until: float) -> list[Report]:
        nonlocal looked
        looked += 1
        if looked == looks:
            raise KeyboardInterrupt
        return original(until)

    world.executor.wait = wait
    try:
        world.loop.run()
        return  # it was over before the interruption
    except KeyboardInterrupt:
        world.loop.wind_up("interrupted")
    handed_in = [e for e in world.journal.events if isinstance(e, events.CopyFinished)]
    assert sum(len(job.done) for job in world.state.jobs.values()) == sum(
        event.steps for event in handed_in
    )
    lost = [e for e in world.journal.events if isinstance(e, events.CopyLost)]
    assert not lost
    assert isinstance(world.journal.events[-1], events.RunStopped)


@settings(deadline=None, max_examples=20)
@given(targets, speeds, slots, st.randoms(use_true_random=False))
def test_repeated_reports_change_nothing(targets, speeds, slot_s, dice):
    plain = world_of(targets, speeds, slot_s, Costs())
    plain.loop.run()
    world = world_of(targets, speeds, slot_s, Costs())
    original, heard = world.executor.wait, []

    def wait(until: float) -> list[Report]:
        reports = original(until)
        again = [dice.choice(heard)] if heard and reports and dice.random() < 0.5 else []
        heard.extend(report for report in reports if isinstance(report, HandedIn))
        return [*again, *reports]

    world.executor.wait = wait
    world.loop.run()
    assert world.journal.events == plain.journal.events


class RefusesAll:
    """A consolidator to which no weights are good enough, as those of a model that diverged."""

    def consolidate(
        self, inputs: Sequence[Contribution], base: str | None, rules: MergeRules, warmth: float
    ) -> Consolidated:
        refused = (Refusal(copy.attempt, Unfit.NOT_FINITE, "not finite") for copy in inputs)
        return Consolidated("", 0, (), tuple(refused))


def test_a_job_whose_weights_are_always_refused_is_given_up():
    world = world_of([200], [1.0, 0.5], 5.0, Costs())
    world.tracker._consolidator = RefusesAll()
    with pytest.raises(UnfinishedError, match=r"job 'job-0' failed.*not finite"):
        world.loop.run()
