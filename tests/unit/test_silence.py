"""A machine of which nothing is heard: nobody waits for it, and nobody stands back for it."""

from hadar_cli.core import events
from hadar_cli.engine.ports import CopyResult, HandedIn, NodeSilent
from tests.support.worlds import World, make_mix, make_world


def with_copies() -> tuple[World, list[str]]:
    """Two copies of one job under way, each on a device of its own."""
    world = make_world(make_mix([1000]))
    devices = list(world.loop._devices[:2])
    for number, device in enumerate(devices):
        steps = ((100 * number, 100 * number + 100),)
        # Attempts are named after their devices here.
        world.tracker.record(events.CopyStarted(0.0, device, 0, number, device, 1, 0, steps))
    for order in world.tracker.under_way():
        world.loop._held.hold(order)
    world.loop.meetings.expect(0, 5.0)
    return world, devices


def test_only_the_copies_of_a_silent_machine_are_given_up_soon_after_the_meeting():
    world, (silent, _) = with_copies()
    report_handler, job = world.loop._report_handler, world.state.jobs[0]
    report_handler.take(NodeSilent((silent,)))
    world.executor.wait(5.5)
    assert not report_handler._overdue(job)
    world.executor.wait(6.5)
    assert [copy.attempt for copy in report_handler._overdue(job)] == [silent]
    report_handler.take(NodeSilent((silent,), is_over=True))
    assert not report_handler._overdue(job)


def test_a_copy_that_nobody_waits_for_takes_no_other_copys_place():
    world, (silent, heard) = with_copies()
    loop = world.loop
    view = loop._views.of(loop._devices, 10.0)
    assert view.jobs()[0].copies_active == 2
    loop._held.late.add(silent)
    view = loop._views.of(loop._devices, 10.0)
    assert view.jobs()[0].copies_active == 1
    assert view.busy_s[silent] == 10.0  # and nobody counts on it within the slot
    assert view.busy_s[heard] < 10.0


def test_a_device_on_which_copy_after_copy_fails_is_left_alone_while_there_are_others():
    world, (bad, _) = with_copies()
    held = world.loop._held
    assert not any(held.fails_too_often(bad, 0) for _ in range(9))  # it may be the job's fault
    assert held.fails_too_often(bad, 1)
    for device in set(world.loop._devices) - {bad}:
        world.tracker.record(events.DeviceLost(0.0, device, "gone"))
    assert not held.fails_too_often(bad, 2)


def test_a_run_that_is_stopped_says_what_was_not_handed_in():
    world, devices = with_copies()
    world.loop._held.progress[devices[0]] = 7
    world.loop.wind_up("interrupted")
    stopped = world.journal.events[-1]
    assert isinstance(stopped, events.RunStopped)
    assert stopped.not_handed_in == {devices[0]: 7, devices[1]: 0}


def test_measuring_the_model_is_no_cost_of_handing_in():
    world, (device, _) = with_copies()
    world.executor.wait(8.0)
    result = CopyResult(100, ((0, 100),), 6.0, 1.0, 0.0, "steps", evaluate_s=6.0)
    world.loop._report_handler.take(HandedIn(device, result, "w", warm=True, stays=True))
    assert world.loop.meetings._device_cost_s[0] == {device: 1.0}
