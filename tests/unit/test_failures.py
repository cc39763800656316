"""What becomes of a job whose copies fail, and of the devices on which they do."""

from dataclasses import replace

import pytest

from hadar_cli.core import events
from hadar_cli.core.model import PolicyChoice
from hadar_cli.core.reasons import Absence, Loss
from hadar_cli.engine.ports import CopyOrder, DeviceFree, DeviceTaken, Failed, NodeGone
from hadar_cli.errors import UnfinishedError
from tests.support.worlds import World, make_mix, make_nodes, make_world

LOG = "Traceback:\n  File job.py\nValueError: no data set here\n"


def start(world: World, attempt: str, device: str) -> None:
    world.tracker.record(events.CopyStarted(0.0, attempt, 0, 0, device, 1, 0, ((0, 10),)))
    world.loop._held.busy[device] = attempt


def fail(world: World, attempt: str, device: str, reason: Loss = Loss.EXITED) -> None:
    start(world, attempt, device)
    world.loop._take(Failed(attempt, reason, "it exited with code 1", LOG))


class Failing:
    """Lets orders fail by a rule; all others train as ever."""

    def __init__(self, world: World, rule) -> None:
        self.world, self.rule, self.orders = world, rule, []
        self._start = world.executor.start
        world.executor.start = self.start

    def start(self, order: CopyOrder) -> None:
        self.orders.append(order)
        if reason := self.rule(order):
            failed = Failed(order.attempt, reason, reason.text, LOG)
            self.world.executor._schedule(self.world.executor.now() + 0.5, failed)
        else:
            self._start(order)


def happened(world: World, kind: type) -> list:
    return [event for event in world.journal.events if isinstance(event, kind)]


@pytest.mark.parametrize("policy", ["hadare", "hadar", "gavel", "tiresias", "yarn-cs"])
def test_a_job_that_cannot_work_fails_alone_and_the_others_go_on(policy):
    world = make_world(make_mix([600, 900], policy=PolicyChoice(policy)))
    Failing(world, lambda order: Loss.EXITED if order.job.id == 0 else None)
    with pytest.raises(UnfinishedError) as caught:
        world.loop.run()
    assert str(caught.value).startswith("job 'job-0' failed: on all of ")
    assert "it exited with an error" in str(caught.value)
    lines = [*LOG.strip().splitlines(), "see more by: hadar logs job-0"]
    assert (caught.value.fix or "").splitlines() == [*lines, "mend it, then: hadar resume"]
    assert world.state.jobs[1].is_trained
    assert not world.state.lost_devices  # no device is to blame
    world.state.validate()


@pytest.mark.parametrize("policy", ["hadare", "hadar", "gavel", "tiresias", "yarn-cs"])
def test_a_pair_that_does_not_work_is_avoided_and_the_job_ends_elsewhere(policy):
    world = make_world(make_mix([600, 900], policy=PolicyChoice(policy)))
    bad = "rtx3090"
    failing = Failing(world, lambda o: Loss.EXITED if o.job.id == 0 and bad in o.devices else None)
    world.loop.run()
    assert world.state.finished
    tried = [order for order in failing.orders if order.job.id == 0 and bad in order.devices]
    assert len(tried) <= world.mix.jobs[0].retry + 1
    assert not world.state.lost_devices
    if tried and len(tried) > world.mix.jobs[0].retry:
        assert [(e.job, e.device) for e in happened(world, events.PairAvoided)] == [(0, bad)]


def test_the_next_head_tries_a_failed_job_again_but_not_what_does_not_fit():
    world = make_world(make_mix([600, 900]))
    small = "t400"

    def rule(order: CopyOrder) -> Loss | None:
        if order.device == small and order.job.id == 1:
            return Loss.CANNOT_SPLIT
        return Loss.EXITED if order.job.id == 0 else None

    Failing(world, rule)
    with pytest.raises(UnfinishedError):
        world.loop.run()
    world.loop.wind_up("job 'job-0' failed")
    assert [job.job.id for job in world.state.failed] == [0]
    again = make_world(world.mix, past=world.journal.events)
    assert not again.state.failed
    assert [job.job.id for job in again.state.unfinished] == [0]
    assert {pair for pair in again.state.avoided} <= {(1, small)}
    again.loop.run()
    assert again.state.finished


def test_out_of_memory_means_smaller_micro_batches_first():
    world = make_world(make_mix([600]), make_nodes({"large": 1.0, "small": 0.8}))
    fits = 4  # pieces of the batch

    def rule(order: CopyOrder) -> Loss | None:
        is_small = order.device == "small" and order.micro_batches < fits
        return Loss.OUT_OF_MEMORY if is_small else None

    failing = Failing(world, rule)
    world.loop.run()
    assert world.state.finished
    pieces = [order.micro_batches for order in failing.orders if order.device == "small"]
    assert pieces[:2] == [1, 2] and set(pieces[2:]) == {4}
    assert {order.micro_batches for order in failing.orders if order.device == "large"} == {1}
    assert not happened(world, events.PairAvoided)
    assert world.state.jobs[0].failures == {}  # nobody is to blame


def test_a_card_too_small_for_a_single_sample_is_avoided_and_the_other_one_trains():
    world = make_world(make_mix([1500, 300]), make_nodes({"large": 1.0, "small": 0.8}))
    failing = Failing(
        world,
        lambda o: Loss.OUT_OF_MEMORY if o.device == "small" and o.job.id == 0 else None,
    )
    world.loop.run()
    assert world.state.finished
    pieces = [o.micro_batches for o in failing.orders if o.device == "small" and o.job.id == 0]
    assert pieces == [1, 2, 4, 8, 16]  # its batch is of 16 samples
    [avoided] = happened(world, events.PairAvoided)
    assert (avoided.job, avoided.device, avoided.reason) == (0, "small", Loss.OUT_OF_MEMORY)
    assert any(order.device == "small" and order.job.id == 1 for order in failing.orders)


@pytest.mark.parametrize("policy", ["hadare", "hadar", "gavel", "tiresias", "yarn-cs"])
def test_a_job_is_not_given_to_cards_with_less_memory_than_it_needs(policy):
    mix = make_mix([600, 600], policy=PolicyChoice(policy))
    jobs = (replace(mix.jobs[0], min_vram_gb=8.0), mix.jobs[1])
    nodes = tuple(
        replace(node, gpus=(replace(node.gpus[0], vram_gb=vram),))
        for node, vram in zip(make_nodes(), (24, 24, 4, 4, 2), strict=True)
    )
    world = make_world(replace(mix, jobs=jobs), nodes)
    failing = Failing(world, lambda order: None)
    world.loop.run()
    assert world.state.finished
    used = {device for order in failing.orders if order.job.id == 0 for device in order.devices}
    assert used and used <= {"rtx3090", "titan-rtx"}


def test_a_job_that_fits_no_card_at_all_is_told_at_once():
    mix = make_mix([600])
    world = make_world(replace(mix, jobs=(replace(mix.jobs[0], min_vram_gb=99.0),)))
    with pytest.raises(UnfinishedError, match=r"no device is left for job 'job-0' \(none is large"):
        world.loop.run()


def test_what_is_left_for_lost_devices_only_is_told_with_them():
    mix = make_mix([600, 300])
    nodes = tuple(
        replace(node, gpus=(replace(node.gpus[0], vram_gb=vram),))
        for node, vram in zip(make_nodes(), (24, 4, 4, 4, 2), strict=True)
    )
    world = make_world(
        replace(mix, jobs=(replace(mix.jobs[0], min_vram_gb=8.0), mix.jobs[1])), nodes
    )
    world.executor.lose_device("rtx3090", 0.5)
    with pytest.raises(UnfinishedError, match=r"no device is left for job 'job-0' \(rtx3090: lost"):
        world.loop.run()
    assert world.state.jobs[1].is_trained


def test_a_job_waits_for_the_only_device_it_fits_while_a_smaller_one_is_idle():
    """A large node still waits in Slurm's queue; the small job is over before it starts."""
    mix = make_mix([600, 30])
    nodes = tuple(
        replace(node, gpus=(replace(node.gpus[0], vram_gb=vram),))
        for node, vram in zip(make_nodes(), (24, 4, 4, 4, 2), strict=True)
    )
    world = make_world(
        replace(mix, jobs=(replace(mix.jobs[0], min_vram_gb=8.0), mix.jobs[1])), nodes
    )
    queued = NodeGone(("rtx3090",), "job 7 waits in Slurm's queue", Absence.AWAITED)
    world.executor._schedule(0.0, queued)
    world.executor.return_device("rtx3090", 400.0)
    world.executor.tick_s = 0.5
    world.loop.run()
    assert all(job.is_trained for job in world.state.jobs.values())
    assert len([e for e in happened(world, events.RoundPlanned) if 60.0 < e.t < 400.0]) <= 1


def test_refused_weights_count_against_their_pair_too():
    world = make_world(make_mix([1000]))
    device, record = world.loop._devices[0], world.tracker.record
    start(world, "a", device)
    record(events.CopyFinished(1.0, "a", 10, ((0, 10),), 0.0, 1.0, 0.0, "steps", weights="w"))
    record(events.WeightsMerged(1.0, 0, 1, "", (), (("a", "not finite"),)))
    job = world.state.jobs[0]
    assert job.failures == {device: 1}
    assert job.last_failure and job.last_failure.why == "not finite"
    assert job.last_failure.device == device


def test_a_job_fails_alone_also_where_its_last_order_had_been_sent_ahead():
    world = make_world(make_mix([600]), make_nodes({"only": 1.0}))
    for number in range(world.mix.jobs[0].retry):
        fail(world, f"a{number}", "only")
    start(world, "last", "only")
    ahead = events.CopyStarted(
        0.0, "ahead", 0, 0, "only", 1, 1, ((10, 20),), follows="last", inherits=True
    )
    world.tracker.record(ahead)
    world.loop._take(Failed("last", Loss.BAD_CLAIM, "it reports steps that it was not given"))
    assert happened(world, events.PairAvoided) and not world.state.failed
    world.loop._take(Failed("ahead", Loss.STALE, "the others went on without it"))
    assert [job.job.id for job in world.state.failed] == [0]
    assert "it reports steps that it was not given" in happened(world, events.JobFailed)[0].why


def test_a_cancelled_job_whose_last_copy_fails_is_over_and_has_not_failed():
    world = make_world(make_mix([600]), make_nodes({"only": 1.0}))
    for number in range(world.mix.jobs[0].retry):
        fail(world, f"a{number}", "only")
    start(world, "last", "only")
    world.tracker.record(events.JobsCancelled(0.0, (0,), "1"))
    world.loop._take(Failed("last", Loss.EXITED, "it exited with code 1", LOG))
    assert world.state.jobs[0].ending == "cancelled" and not happened(world, events.JobFailed)


def test_a_device_that_is_unfit_is_left_alone_at_once_and_the_job_is_not_blamed():
    world = make_world(make_mix([1000]))
    device, *others = world.loop._devices
    fail(world, "a", device, Loss.NO_TORCH)
    lost = world.state.lost_devices[device]
    assert (lost.why, lost.reason) == ("it exited with code 1", Absence.UNFIT)
    assert world.state.jobs[0].failures == {}
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


def test_a_night_without_network_stops_no_run_before_an_hour_is_over():
    world = make_world(make_mix([3000]))
    world.executor.tick_s = 0.5
    names = tuple(device.name for node in world.nodes for device in node.devices)
    world.executor._schedule(5.0, NodeGone(names, "nothing was heard of it", Absence.AWAY))
    world.executor.return_device(names[1], 3000.0)
    world.loop.run()
    assert world.state.jobs[0].is_trained
    assert len([e for e in happened(world, events.RoundPlanned) if 60.0 < e.t < 3000.0]) <= 1

    world = make_world(make_mix([3000]))
    world.executor._schedule(5.0, NodeGone(names, "nothing was heard of it", Absence.AWAY))
    with pytest.raises(UnfinishedError, match=r"no device is left .*nothing was heard of it"):
        world.loop.run()
    assert world.executor.now() >= 3600.0


def lose_all(world: World, reason: Absence) -> list[str]:
    names = [device.name for node in world.nodes for device in node.devices]
    for name in names:
        world.tracker.lose_device(name, reason, "a colleague")
    return names


def test_while_every_device_is_a_colleagues_nothing_is_planned_and_then_all_is_trained():
    world = make_world(make_mix([300]))
    world.executor.tick_s = 0.5
    names = lose_all(world, Absence.TAKEN)
    world.executor._schedule(3600.0, DeviceFree(names[0]))
    world.loop.run()
    assert world.state.jobs[0].is_trained
    waited = [e for e in happened(world, events.RoundPlanned) if e.t < 3600.0]
    assert len(waited) == 1  # the journal of a long night stays short


def test_a_run_on_cards_of_which_nobody_can_tell_who_uses_them_says_so_at_once():
    world = make_world(make_mix([300]))
    world.executor.tick_s = 0.5
    lose_all(world, Absence.UNTOLD)
    with pytest.raises(UnfinishedError, match=r"no device is left for job 'job-0' .*a colleague"):
        world.loop.run()


def test_cards_that_were_used_before_are_waited_for_when_nobody_can_tell_for_a_moment():
    world = make_world(make_mix([3000]))
    world.executor.tick_s = 0.5
    names = [device.name for node in world.nodes for device in node.devices]
    for name in names:
        world.executor._schedule(5.0, DeviceTaken(name, "nvidia-smi is slow", Absence.UNTOLD))
        world.executor._schedule(60.0, DeviceFree(name))
    world.loop.run()
    assert world.state.jobs[0].is_trained
