"""What becomes of a job whose copies fail, and of the devices on which they do."""

import pytest

from hadar_cli.app.ports import Failed, NodeGone
from hadar_cli.core import events
from hadar_cli.errors import UnfinishedError
from tests.support.worlds import World, make_mix, make_world

LOG = "Traceback:\n  File job.py\nValueError: no data set here\n"


def start(world: World, attempt: str, device: str) -> None:
    world.tracker.record(events.CopyStarted(0.0, attempt, 0, 0, device, 1, 0, ((0, 10),)))
    world.loop._held.busy[device] = attempt


def fail(world: World, attempt: str, device: str, **facts: bool) -> None:
    start(world, attempt, device)
    world.loop._take(Failed(attempt, "it exited with code 1", LOG, **facts))


def test_the_end_over_a_failing_job_names_job_device_and_what_to_do_next():
    world = make_world(make_mix([1000]))
    first, second = world.loop._devices[:2]
    retry = world.mix.jobs[0].retry
    for number in range(retry):
        fail(world, f"a{number}", first)
        world.loop._intake.give_up_if_hopeless(f"a{number}")
    fail(world, "last", second)
    with pytest.raises(UnfinishedError) as caught:
        world.loop._intake.give_up_if_hopeless("last")
    told = f"job 'job-0' failed {retry + 1} times in a row, last on {second}: it exited with code 1"
    assert str(caught.value) == told
    lines = [*LOG.strip().splitlines(), "see more by: hadar logs job-0"]
    assert (caught.value.fix or "").splitlines() == lines


def test_refused_weights_are_told_with_their_device_too():
    world = make_world(make_mix([1000]))
    device, record = world.loop._devices[0], world.tracker.record
    start(world, "a", device)
    record(events.CopyFinished(1.0, "a", 10, ((0, 10),), 0.0, 1.0, 0.0, "steps", weights="w"))
    record(events.WeightsMerged(1.0, 0, 1, "", (), (("a", "not finite"),)))
    assert world.state.jobs[0].last_failure == (device, "not finite", "")


def test_a_device_that_is_unfit_is_left_alone_at_once_and_the_job_is_not_blamed():
    world = make_world(make_mix([1000]))
    device, *others = world.loop._devices
    fail(world, "a", device, node_fault=True, unfit=True)
    assert world.state.lost_devices == {device: "it exited with code 1"}
    assert world.state.jobs[0].failures == 0
    world.loop.run()
    assert world.state.finished
    trained = [e for e in world.journal.events if isinstance(e, events.CopyStarted)]
    assert {copy.device for copy in trained if copy.attempt != "a"} <= set(others)


def test_a_run_without_any_device_names_its_jobs_and_why_each_device_is_lost():
    world = make_world(make_mix([100] * 5))
    for device in world.loop._devices:
        world.loop._take(NodeGone((device,), f"{device} is no more"))
    with pytest.raises(UnfinishedError) as caught:
        world.loop.run()
    told = str(caught.value)
    assert told.startswith("no device is left for job 'job-0', 'job-1', 'job-2', 2 more (")
    assert all(f"{device}: {device} is no more" in told for device in world.loop._devices)
