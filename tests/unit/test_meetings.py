"""How often copies meet: as often as pays, never past the slot, and not for one alone."""

import pytest

from hadar_cli.core.estimates.suitability import Suitability
from hadar_cli.core.estimates.throughput import RateModel
from hadar_cli.core.events import CopyFinished, CopyLost, CopyStarted
from hadar_cli.core.model import EVERY_SLOT, Device, Job, MergeRules, Mix
from hadar_cli.core.state import RunState
from hadar_cli.core.steps import StepSet
from hadar_cli.engine.meetings import Meetings
from hadar_cli.engine.occupancy import Occupancy
from hadar_cli.engine.ports import Moving
from hadar_cli.engine.views import Views
from hadar_cli.simulation.executor import Costs
from tests.support.worlds import SPEEDS, World, make_mix, make_nodes, make_world


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


def test_a_device_behind_a_slow_link_is_too_dear_and_a_slow_device_is_not():
    them = meetings()
    devices, rates = ["near", "far", "slow"], [10.0, 9.0, 0.1]
    assert them.too_dear(0, rates, devices) == {}
    them.learn(0, cost_s=1.0)
    for device, cost_s in (("near", 0.5), ("far", 300.0), ("slow", 0.5)):
        them.learn_device(0, device, cost_s)
    assert them.too_dear(0, rates, devices) == {"far": 300.0}
    assert them.too_dear(1, rates, devices) == {}


def test_of_two_alike_the_one_behind_a_slow_link_is_too_dear():
    """The far one is half of all that is known: it must not make itself the usual."""
    them = Meetings(MergeRules(), slot_s=15.0)
    for device, cost_s in (("far", 17.0), ("near", 3.0), ("far", 28.0)):
        them.learn_device(0, device, cost_s)
    for cost_s in (17.0, 16.0):
        them.learn(0, cost_s)
    assert list(them.too_dear(0, [9.3, 9.4], ["far", "near"])) == ["far"]
    assert list(them.too_dear(0, [9.4, 9.3], ["far", "near"])) == ["far"]


def views_of(them: Meetings, forks: bool = True, jobs: int = 1) -> tuple[Views, RunState]:
    devices = [Device(name, name, 0, None, None) for name in ("far", "near")]
    mix = Mix("m", tuple(Job(i, f"job-{i}", 1000, batch_size=8) for i in range(jobs)))
    state = RunState(mix.jobs)
    suitability, rates = Suitability(devices, state), RateModel(mix.jobs, devices)
    held = Occupancy([device.name for device in devices], state)
    return Views(mix, suitability, state, rates, held, them, lambda: 0.0, forks), state


@pytest.mark.parametrize(("left", "copies"), [(110, 1), (1000, 2)])
def test_a_job_is_forked_as_long_as_a_merge_wins_more_than_it_costs(left, copies):
    """A merge that takes as long as 100 steps wins nothing where one device does 110."""
    them = Meetings(MergeRules(), slot_s=1e6)
    views, state = views_of(them)
    them.learn(0, cost_s=100 / views.of(["near"], 15.0).rates.rate(0, "near"))
    state.jobs[0].generation = 2
    state.jobs[0].done = StepSet.of([(0, 1000 - left)] if left < 1000 else [])
    assert views.of(["near"], 15.0).jobs()[0].copies_that_pay == copies


@pytest.mark.parametrize(("forks", "dear"), [(True, {"far": 300.0}), (False, {})])
def test_nothing_is_too_dear_for_a_job_that_nobody_forks(forks, dear):
    them = meetings()
    them.learn(0, cost_s=1.0)
    them.learn_device(0, "near", 0.5)
    them.learn_device(0, "far", 300.0)
    views, state = views_of(them, forks)
    state.jobs[0].generation = 2
    assert views.too_dear(state.jobs[0]) == dear


def test_a_slow_link_is_reckoned_with_before_its_first_hand_in():
    """By its rate and the size of the weights, once anybody has handed in."""
    rates, devices = [9.4, 9.3], ["far", "near"]
    for size, dear in ((57_000_000, ["far"]), (500_000, [])):
        them = Meetings(MergeRules(), slot_s=15.0)
        them.links["far"] = 4e6
        them.learn(0, 0.5, size)
        assert list(them.too_dear(0, rates, devices)) == dear
    views, state = views_of(them)
    state.jobs[0].generation = 1
    them.learn(0, 0.5, 57_000_000)
    assert "far" in views.too_dear(state.jobs[0])


def test_a_device_that_is_left_out_costs_the_others_nothing():
    """Neither a hand-in at the end of a solo phase that nobody waits for, nor any order."""

    def orders(speeds: dict[str, float]) -> list[tuple[float, str, int, bool]]:
        costs = Costs(start_s=1.0, sync_s=0.8)
        world = make_world(
            make_mix([600], 15.0), make_nodes(speeds), rate=lambda *_: 9.7, costs=costs
        )
        world.loop.meetings.links["far"] = 4e6
        world.loop.meetings.learn(0, 0.5, 57_000_000)
        world.loop.train()
        started = [e for e in world.journal.events if isinstance(e, CopyStarted)]
        return [(e.t, e.device, e.quota, bool(e.follows)) for e in started]

    assert orders({"far": 0.45, "near": 0.5}) == orders({"near": 0.5})


@pytest.mark.parametrize(
    ("links", "jobs", "far"),
    [
        ({"far": 4e6}, 1, ["far"]),
        ({"far": 4e6, "near": 110e6}, 1, ["far"]),
        ({"far": 4e6}, 2, []),  # each device has one: nobody waits for the other
        ({"far": 4e6, "near": 5e6}, 1, []),
        ({"far": 80e6}, 1, []),
        ({}, 1, []),
    ],
)
def test_a_lone_job_begins_where_the_way_home_is_short(links, jobs, far):
    them = meetings()
    them.links.update(links)
    views, state = views_of(them, jobs=jobs)
    assert list(views.too_dear(state.jobs[0])) == far


def test_a_device_that_was_too_dear_is_tried_again_some_day():
    them = meetings()
    them.learn(0, cost_s=1.0)
    them.learn_device(0, "near", 0.5)
    them.learn_device(0, "far", 300.0)
    merges = 0
    while them.too_dear(0, [10.0, 9.0], ["near", "far"]):
        them.learn(0, cost_s=1.0)
        merges += 1
        assert merges < 1000
    assert merges > 10


def test_what_is_too_dear_is_told_once():
    them = meetings()
    assert them.newly_dear(0, {"far": 3.0}) == [("far", 3.0)]
    assert them.newly_dear(0, {"far": 3.1}) == []
    assert them.newly_dear(0, {}) == []
    assert them.newly_dear(0, {"far": 3.0}) == [("far", 3.0)]


def test_a_step_longer_than_the_slot_is_waited_for():
    quick, slow = meetings(every_s=10.0), meetings(every_s=10.0)
    quick.call(0, 0.0, 100.0, slowest=10.0, copies=2)
    due = slow.call(0, 0.0, 100.0, slowest=1 / 40, copies=2)
    assert slow.overdue_at(0, 0.0) == pytest.approx(due + 45.0)
    assert quick.overdue_at(0, 0.0) == pytest.approx(due + 5.1)


def test_whoever_is_asked_to_hand_in_has_the_time_that_its_step_and_hand_ins_take():
    them = meetings()
    assert them.hand_in_s(0, "far", rate=10.0) == 120.0  # nothing is known yet
    them.learn(0, cost_s=1.0)
    them.learn_device(0, "far", cost_s=40.0)
    assert them.hand_in_s(0, "near", rate=0.1) == pytest.approx(3 * (5 + 1 + 10))
    assert them.hand_in_s(0, "far", rate=10.0) == pytest.approx(3 * (5 + 40 + 0.1))
    them.learn_device(0, "far", cost_s=4000.0)
    assert them.hand_in_s(0, "far", rate=10.0) == 600.0


def test_one_word_of_a_result_says_nothing_of_how_long_it_travels():
    them = meetings()
    them.moved(Moving("quick", 9, 9, is_result=True), 50.0)
    for second in range(5):
        them.moved(Moving("slow", second + 1, 5, is_result=True), 50.0 + second)
    assert them.arriving_s("quick") == 0.0 and them.arriving_s("slow") == 4.0
    assert them.arriving_s("nobody") == 0.0


def test_a_copy_three_times_slower_than_expected_costs_the_others_little():
    """It hands in with the others what it has done by then: nobody waits, and its work counts."""

    def shares(slowed: bool) -> dict[str, float]:
        """Of the time, that each device trains."""
        worlds: list[World] = []

        def rate(job: int, gang: tuple[str, ...]) -> float:
            is_slow = slowed and gang[0] == "titan-rtx" and worlds and worlds[0].executor.now() > 60
            return 20.0 * SPEEDS[gang[0]] / (3 if is_slow else 1)

        world = make_world(make_mix([6000], 30.0), rate=rate, costs=Costs(start_s=1.0, sync_s=0.5))
        worlds.append(world)
        world.loop.train()
        happened, started = world.journal.events, world.state.started
        assert not any(isinstance(event, CopyLost) for event in happened)
        busy_s = dict.fromkeys(SPEEDS, 0.0)
        for event in happened:
            if isinstance(event, CopyFinished):
                busy_s[started[event.attempt].device] += event.train_s
        return {device: seconds / world.executor.now() for device, seconds in busy_s.items()}

    usual, slowed = shares(False), shares(True)
    assert all(slowed[device] >= 0.98 * usual[device] for device in SPEEDS)
