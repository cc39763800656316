"""Gangs whose size the policy chooses."""

import numpy as np
import pytest

from hadar_cli.core.model import Job, Mix, PolicyChoice
from hadar_cli.core.policies.gangs.hadar import Hadar
from hadar_cli.core.policies.gangs.queue import Queue
from hadar_cli.simulation.executor import Costs
from hadar_cli.simulation.scenario import Scenario, simulate
from hadar_cli.simulation.speeds import ModelledSpeeds, TableSpeeds, parse_cluster
from hadar_cli.simulation.traces import Throughputs
from tests.support.queues import queue_of


def open_queue(steps: list[float], capacity: list[int], power: float = 0.8, **others) -> Queue:
    """Jobs of any size on one or several equal kinds, n^power times as fast on n devices."""
    sizes = np.arange(1, max(capacity) + 1) ** power
    cube = np.broadcast_to(sizes, (len(steps), len(capacity), len(sizes))).copy()
    for kind, most in enumerate(capacity):
        cube[:, kind, most:] = 0.0
    rates = [[1.0] * len(capacity)] * len(steps)
    return queue_of(rates, capacity=capacity, steps=steps, sized_rates=cube, **others)


def taken(queue: Queue) -> dict[int, int]:
    return {job: sum(a) for job, a in Hadar().allocate(queue).allocations.items()}


def test_alone_a_job_takes_whatever_makes_it_faster():
    assert taken(open_queue([1e6], [16])) == {0: 16}


def test_in_a_crowd_jobs_take_what_wastes_least():
    sizes = taken(open_queue([1e5] * 64, [64]))
    assert sum(sizes.values()) == 64 and max(sizes.values()) <= 8


def test_the_next_to_end_gets_several_times_its_equal_share():
    """heSRPT: 1 / (1 − p) times the share, so five times for p = 0.8; the others get the rest."""
    sizes = taken(open_queue([1e4, 1e5, 1.1e5, 1.2e5, 1.3e5, 1.4e5, 1.5e5, 1.6e5], [64]))
    assert 24 <= sizes[0] <= 40
    assert sum(sizes.values()) == 64


def test_a_job_that_does_not_scale_leaves_the_devices_to_others():
    sizes = taken(open_queue([1e5, 2e5], [8], power=0.02))
    assert sizes[0] == 1 and sizes[1] > 1  # the last one may have what nobody else wants


def test_a_job_that_would_end_late_at_its_widest_has_devices_before_cheaper_ones():
    """It needs three times as long as all the work divided: the others fill what it leaves."""
    sizes = taken(open_queue([4e5, *[1e4] * 20], [16], power=0.5))
    assert sizes[0] == 16
    assert taken(open_queue([1e5, *[1e5] * 20], [16], power=0.5))[0] < 8


def test_a_change_has_to_pay_for_the_start():
    running = {0: (7,)}
    stays = open_queue([2000.0], [8], running=running, restart_s=300.0)
    grows = open_queue([1e7, 1.0], [64], running={0: (4,)}, restart_s=3.0)
    assert taken(stays) == {0: 7}
    assert taken(grows)[0] > 4


def test_a_newcomer_takes_idle_devices_rather_than_those_of_others():
    running = {0: (8, 0)}
    queue = open_queue([1e6, 1e4], [8, 8], running=running, restart_s=1000.0)
    decided = Hadar().allocate(queue).allocations
    assert decided[0] == (8, 0) and decided[1][0] == 0 < decided[1][1]


def test_devices_that_come_free_go_to_open_jobs_that_wait():
    queue = open_queue([1e5, 1e5], [8])
    memory = Hadar().allocate(queue).memory
    later = open_queue([1e5, 1e5], [8], running={0: (5,)})
    assert Hadar().refill(later, memory) == {1: (3,)}


TABLE = Throughputs({("m", n, "v100"): n**0.8 for n in range(1, 9)} | {("f", 2, "v100"): 2.0})


@pytest.mark.parametrize("policy", ["hadar", "gavel", "tiresias"])
def test_sizes_stay_in_their_range_and_the_bound_holds(policy: str) -> None:
    jobs = [
        Job(n, f"m{n}", 3000 + 500 * n, 1, workload="m", gpus=6, sizes=(3, 6)) for n in range(4)
    ]
    jobs.append(Job(4, "f", 2000, 1, workload="f", gpus=2, arrives_s=200.0))
    devices = parse_cluster("v100:8", 4)
    one = Scenario(
        Mix("m", tuple(jobs), slot_s=100.0),
        devices,
        Costs(10.0, 5.0),
        lambda consolidated: TableSpeeds(TABLE, jobs, devices, loses=not consolidated),
    )
    result = simulate(one, PolicyChoice(policy), policy, lambda done: None)
    assert result.unfinished == 0 and result.ttd_s >= result.lower_bound_s
    assert {work.devices for work in result.work} <= (
        {2, 3, 4, 5, 6} if policy == "hadar" else {2, 6}
    )


def test_sizes_may_be_open_where_speeds_are_only_estimated() -> None:
    jobs = [
        Job(n, f"j{n}", 20_000, 64, gpus=4, sizes=(1, 4), shares="proportional") for n in (0, 1)
    ]
    devices = parse_cluster("v100:4,k80:2", 4)
    speeds = ModelledSpeeds(jobs, devices)
    cube = speeds.known().by_size(np.array([0, 1]), ("k80", "v100"), devices)
    assert cube is not None and cube.shape == (2, 2, 4)
    assert (cube[0, 0, 2:] == 0).all()
    names = [device.name for device in devices if device.kind == "v100"]
    # With what the exchange of gradients takes: for steps this short, company costs more than it
    # brings, and one device is best.
    assert cube[0, 1].tolist() == [speeds.gang(0, tuple(names[:n])) for n in (1, 2, 3, 4)]
    assert cube[0, 1].argmax() == 0
    one = Scenario(Mix("m", tuple(jobs)), devices, Costs(10.0, 5.0), lambda _: speeds)
    result = simulate(one, PolicyChoice("hadar"), "hadar", lambda done: None)
    assert result.unfinished == 0
