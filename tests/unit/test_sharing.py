"""Which way many devices are used: alone, sharing steps, or as copies that are merged."""

from dataclasses import replace

import pytest

from hadar_cli.core.estimates.goodput import ONE
from hadar_cli.core.estimates.throughput import GangSpeed, RateModel
from hadar_cli.core.events import WeightsMerged
from hadar_cli.core.model import Gpu, Job, Launch, Mix, Node
from hadar_cli.core.policies.hadare import HadarE
from hadar_cli.core.policies.job_queue import JobQueue
from hadar_cli.core.policies.port import ClusterView, JobView
from hadar_cli.core.state import RunState
from tests.support.worlds import make_world

T4 = Gpu("T4", 65.0, 16.0)
TWO_NODES = (Node("a", "a", gpus=(T4, T4)), Node("b", "b", gpus=(T4, T4)))
HERE = tuple(Node(name, "local", gpus=(T4,)) for name in ("x", "y", "z"))
JOB = Job(0, "job", 1000, 32, shares="proportional", launch=Launch(workload="weather"))


def plan(
    nodes: tuple[Node, ...], view: JobView, step_s: float = 0.5, queue: tuple[Job, ...] = ()
) -> list[tuple[str, ...]]:
    devices = tuple(device for node in nodes for device in node.devices)
    rates = RateModel([view.job], devices)
    for device in devices:
        rates.observe(view.job.id, device.name, 100, 100 * step_s)
    names = tuple(device.name for device in devices)
    waiting = JobQueue.of(list(RunState(queue).jobs.values()))
    seen = ClusterView(
        0.0, 60.0, 60.0, names, lambda: [view], rates, cluster=devices, queue=waiting
    )
    return sorted(stint.devices for stint in HadarE().plan(seen))


def job(**fields) -> JobView:
    return replace(JobView(JOB, 1000, 1000, may_share=True), **fields)


def test_a_copy_is_a_node_whose_devices_share_steps():
    assert plan(TWO_NODES, job()) == [("a:0", "a:1"), ("b:0", "b:1")]


def test_in_the_solo_phase_all_that_reach_each_other_share_steps():
    assert plan(TWO_NODES, job(solo_steps=250)) == [("a:0", "a:1")]
    networked = tuple(replace(node, network="lab") for node in TWO_NODES)
    assert plan(networked, job(solo_steps=250)) == [("a:0", "a:1", "b:0", "b:1")]
    assert plan(HERE, job(solo_steps=250)) == [("x", "y", "z")]


def test_after_it_nodes_of_one_machine_are_merged():
    assert plan(HERE, job()) == [("x",), ("y",), ("z",)]


def test_a_lone_job_is_not_merged_where_sharing_is_nearly_as_fast():
    networked = tuple(replace(node, network="lab") for node in TWO_NODES)
    assert plan(networked, job(), queue=(JOB,)) == [("a:0", "a:1", "b:0", "b:1")]
    other = replace(JOB, id=1)
    nodes = [("a:0", "a:1"), ("b:0", "b:1")]
    assert plan(networked, job(), queue=(JOB, other)) == nodes, "the others want devices, too"
    assert plan(TWO_NODES, job(), queue=(JOB,)) == nodes, "they do not reach each other"
    forked = replace(JOB, fork=4)
    assert plan(networked, job(job=forked), queue=(forked,)) == nodes, "who asks for copies"
    merged = replace(JOB, mode="merge")
    alone = [("a:0",), ("a:1",), ("b:0",), ("b:1",)]
    view = job(job=merged, may_share=False)
    assert plan(networked, view, queue=(merged,)) == alone
    assert plan(networked, job(), 0.09, queue=(JOB,)) == alone, "its steps are too short"


def test_a_lone_job_is_merged_where_sharing_takes_much_longer():
    script = replace(JOB, launch=Launch(script="train.py"))  # of 10 MB, as far as anybody knows
    networked = tuple(replace(node, network="lab") for node in TWO_NODES)
    for step_s, gangs in ((0.6, [2, 2]), (1.5, [4])):
        found = plan(networked, job(job=script), step_s, queue=(script,))
        assert [len(gang) for gang in found] == gangs


@pytest.mark.parametrize("view", [job(solo_steps=250), job()], ids=["solo", "forked"])
def test_steps_shorter_than_the_exchange_are_not_shared_unless_asked_for(view):
    assert all(len(devices) == 1 for devices in plan(TWO_NODES, view, step_s=0.005))
    asked = replace(view, job=replace(JOB, mode="share"))
    assert all(len(devices) == 2 for devices in plan(TWO_NODES, asked, step_s=0.005))


def test_a_small_model_s_steps_are_shared_and_a_network_is_dearer_than_a_machine():
    script = replace(JOB, launch=Launch(script="train.py"))  # of 10 MB, as far as anybody knows
    networked = tuple(replace(node, network="lab") for node in TWO_NODES)
    for step_s, one, here, lab in ((0.09, JOB, 1, 1), (0.1, JOB, 3, 4), (0.1, script, 3, 2)):
        view = job(job=one, solo_steps=250)
        assert [len(gang) for gang in plan(HERE, view, step_s)] == [here]
        assert [len(gang) for gang in plan(networked, view, step_s)] == [lab]


def test_what_a_checkpoint_weighs_and_an_exchange_took_decides():
    devices = tuple(device for node in HERE for device in node.devices)
    script = replace(JOB, launch=Launch(script="train.py"))
    rates, gang = RateModel([script], devices), ("x", "y", "z")
    for device in devices:
        rates.observe(0, device.name, 100, 3.0)
    unknown = rates.gang(0, gang)
    rates.observe_size(0, 400_000, has_optimizer=True)
    assert rates.gang(0, gang) > 1.5 * unknown
    rates.observe_gang(GangSpeed(0, gang, ONE, 100, 2.5))
    assert rates.gang(0, gang) == pytest.approx(40.0)
    rates.observe_size(0, 400_000_000, has_optimizer=True)
    assert rates.gang(0, gang) == pytest.approx(40.0), "what was measured stays"


def test_who_cannot_share_does_not():
    assert plan(TWO_NODES, job(may_share=False, solo_steps=250)) in ([("a:0",)], [("a:1",)])


def test_a_gang_that_proved_slow_is_given_up():
    devices = tuple(device for node in HERE for device in node.devices)
    rates = RateModel([JOB], devices)
    for device in devices:
        rates.observe(0, device.name, 100, 50.0)
    promised = rates.gang(0, ("x", "y", "z"))
    for _ in range(3):
        rates.observe_gang(GangSpeed(0, ("x", "y", "z"), ONE, 100, 100 / (0.2 * promised)))
    assert rates.gang(0, ("x", "y", "z")) < rates.rate(0, "x")
    names = tuple(device.name for device in devices)
    seen = ClusterView(
        0.0, 60.0, 60.0, names, lambda: [job(solo_steps=250)], rates, cluster=devices
    )
    assert [len(stint.devices) for stint in HadarE().plan(seen)] == [1]


def test_a_run_of_one_job_is_shared_to_its_end_and_one_of_two_is_merged():
    nodes = tuple(
        Node(
            name,
            name,
            gpus=(replace(T4, model=name, tflops=50 * s),),
            emulated_speed=s,
            network="n",
        )
        for name, s in (("x", 1.0), ("y", 0.8), ("z", 0.5))
    )
    jobs = tuple(replace(JOB, id=i, name=f"job{i}", target_steps=900) for i in range(2))

    def merged(*those: Job) -> list[int]:
        speeds = {"x": 2.0, "y": 1.6, "z": 1.0}
        mix = Mix("m", those, slot_s=60.0)
        world = make_world(mix, nodes, rate=lambda job, gang: 0.8 * sum(speeds[d] for d in gang))
        world.loop.train()
        happened = [e for e in world.journal.events if isinstance(e, WeightsMerged)]
        assert all(len(world.state.jobs[job.id].done) == 900 for job in those)
        return [len(merge.accepted) for merge in happened]

    assert set(merged(jobs[0])) == {1}
    assert max(merged(*jobs)) > 1
