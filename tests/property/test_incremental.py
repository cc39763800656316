"""What is kept from one look to the next is what a fresh look would find."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hadar_cli.core.arrays import RowIndex
from hadar_cli.core.model import Job, Mix, PolicyChoice
from hadar_cli.core.policies.gangs.backfill import WaitingLines
from hadar_cli.core.policies.gangs.cluster_devices import ClusterDevices
from hadar_cli.core.policies.gangs.market import Market
from hadar_cli.core.policies.gangs.placement import Placed, place
from hadar_cli.core.policies.gangs.scheduler import GangScheduler
from hadar_cli.core.policies.job_queue import Arrivals
from hadar_cli.core.policies.port import ClusterView
from hadar_cli.core.state import RunState
from hadar_cli.simulation.executor import Costs
from hadar_cli.simulation.scenario import Scenario, simulate
from hadar_cli.simulation.speeds import ModelledSpeeds, parse_cluster
from tests.support.queues import chance_queue

SOME = st.sets(st.integers(0, 9), max_size=3)  # last digits of jobs
SITE = ClusterDevices.uniform(["fast", "slow"], [8, 6], [4, 4])


@given(
    ids=st.lists(st.integers(0, 10**12) | st.integers(0, 50), unique=True, max_size=30),
    asked=st.lists(st.integers(0, 60), max_size=30),
)
def test_rows_are_those_of_a_dictionary(ids, asked):
    row = {job: at for at, job in enumerate(ids)}
    found = RowIndex(np.array(ids, dtype=np.int64)).rows_of([*asked, *ids])
    assert found.tolist() == [row.get(job, -1) for job in [*asked, *ids]]


@given(wishes=st.lists(st.tuples(SOME, SOME, st.lists(st.integers(1, 4), max_size=4)), max_size=8))
def test_a_placement_that_was_followed_is_that_of_a_fresh_look(wishes):
    placed, gangs_now, number = Placed(SITE, {}), {}, 0
    for leaving, restarting, coming in wishes:
        gangs_now = {job: gang for job, gang in gangs_now.items() if job % 10 not in leaving}
        for job in [job for job in gangs_now if job % 10 in restarting]:
            gangs_now[job] = gangs_now.pop(job)[::-1]
        for width in coming:
            names = [name for name in SITE.home if name not in sum(gangs_now.values(), ())]
            if len(names) >= width:
                gangs_now[number] = tuple(names[-width:])
                number += 1
        placed.follow(gangs_now)
        fresh = Placed(SITE, gangs_now)
        assert list(placed.gangs.items()) == list(fresh.gangs.items())
        assert list(placed.allocations.items()) == list(fresh.allocations.items())
        assert placed.open == fresh.open
        in_turn = [sorted(one.taken, key=one.taken.__getitem__) for one in (placed, fresh)]
        assert in_turn[0] == in_turn[1]
    allocations = {**placed.allocations, 1000: (1, 0)}
    if len([name for name in placed.open if name.startswith("fast")]):
        assert place(SITE, placed.gangs, allocations, placed.gangs).keys() == allocations.keys()


@given(data=st.data(), jobs=st.integers(1, 150), seed=st.integers(0, 99))
def test_who_backfills_is_found_as_if_all_pairs_were_sorted(data, jobs, seed):
    rng = np.random.default_rng(seed)
    ratio = rng.choice([1.0, 1.1, 1.5, np.inf], (jobs, 2))
    gang, order = rng.choice([1, 2, 4], jobs), rng.permutation(jobs)
    waits = rng.random(jobs) < rng.choice([0.02, 0.5])
    free = data.draw(st.lists(st.integers(0, 5), min_size=2, max_size=2))
    fitting = [
        (ratio[j, kind], place_, kind, j)
        for place_, j in enumerate(order.tolist())
        for kind in (0, 1)
        if waits[j] and gang[j] <= free[kind] and ratio[j, kind] < np.inf
    ]
    best = min(fitting, default=None)
    found = WaitingLines(ratio, gang, order).nearest(waits, free)
    assert found == (best and (best[3], best[2]))


@given(
    seed=st.integers(0, 9999),
    jobs=st.integers(1, 60),
    capacity=st.lists(st.integers(1, 12), min_size=1, max_size=3),
)
def test_jobs_that_choose_all_at_once_choose_as_one_after_another(seed, jobs, capacity):
    rng = np.random.default_rng(seed)
    queue = chance_queue(seed, jobs, capacity, elastic=seed % 3 == 0)
    left, running = np.array(capacity), {}
    for job in rng.permutation(jobs)[: jobs // 2].tolist():  # some on several kinds, or too few
        gang = np.minimum(rng.integers(0, 4, len(capacity)), left)
        gang = gang * (rng.random(len(capacity)) < 0.6)
        if 0 < gang.sum() <= queue.gang[job]:
            running[job] = tuple(gang.tolist())
            left = left - gang
    queue = replace(queue, running=running)
    limit, choosy, order = rng.uniform(1, 2, jobs), rng.uniform(1, 1.5), rng.permutation(jobs)
    prices = rng.uniform(0.01, 1, len(capacity))
    at_once, in_turn = Market(queue, prices, capacity), Market(queue, prices, capacity)
    at_once.settle(order, limit, choosy)
    for j in order[~in_turn.is_outsize[order]].tolist():
        in_turn.take(j, in_turn.kept(j, float(limit[j])) or in_turn.cheapest(j, choosy))
    assert list(at_once.taken.items()) == list(in_turn.taken.items())
    assert at_once.free == in_turn.free


class Checked(GangScheduler):
    """A scheduler whose queue is compared with the jobs it was made of."""

    asked = 0

    def _queue(self, view: ClusterView, running: Any) -> Any:
        Checked.asked += 1
        queue, done = super()._queue(view, running), view.progress()
        jobs = [view.queue.job(number) for number in view.queue.ids.tolist()]
        assigned = super()._allocations(view.running)
        assert queue.ids.tolist() == [job.id for job in jobs]
        assert queue.gang.tolist() == [job.gpus for job in jobs]
        assert queue.arrived_s.tolist() == [job.arrives_s for job in jobs]
        left = [view.queue.remaining(job.id) - done.get(job.id, 0) for job in jobs]
        assert queue.remaining.tolist() == left
        assert all(job.arrives_s <= view.now_s for job in jobs)
        assert queue.is_running().tolist() == [job.id in running for job in jobs]
        if view.seconds < view.slot_s:
            assert list(running.items()) == list(assigned.items())
            held = np.array([*assigned.values(), (0,) * len(queue.kinds)]).sum(axis=0)
            assert queue.free() == (queue.capacity - held).tolist()
        return queue


@settings(deadline=None, max_examples=30)
@given(
    lengths=st.lists(
        st.tuples(st.integers(1, 400), st.integers(1, 3), st.integers(0, 300)), min_size=1
    ),
    policy=st.sampled_from(["hadar", "tiresias", "yarn-cs"]),
    prolongs=st.booleans(),
    is_lossy=st.booleans(),
)
def test_a_policy_is_told_what_is_true(lengths, policy, prolongs, is_lossy):
    devices = parse_cluster("v100:3,k80:2", 2)
    jobs = tuple(
        Job(7 * i, f"job{i}", 300 * steps, 32, gpus=gpus, arrives_s=float(at))
        for i, (steps, gpus, at) in enumerate(lengths)
    )
    losses = ((devices[0].name, 120.0),) if is_lossy else ()
    mix = Mix("some", jobs, slot_s=60.0)
    scenario = Scenario(mix, devices, Costs(1.0, 0.1), lambda _: ModelledSpeeds(jobs, devices))
    scenario = replace(scenario, prolongs=prolongs, losses=losses)
    with patch("hadar_cli.policies.GangScheduler", Checked), patch.object(Checked, "asked", 0):
        result = simulate(scenario, PolicyChoice(policy), policy, lambda done: None)
        assert Checked.asked > 0
    assert (result.problem, result.unfinished) == (None, 0)


@given(times=st.lists(st.floats(0.0, 100.0), min_size=1), data=st.data())
def test_a_roster_has_who_came_and_did_not_end(times, data):
    state = RunState([Job(i, f"job{i}", 10, 32, arrives_s=at) for i, at in enumerate(times)])
    arrivals = Arrivals(state)
    for now_s in sorted(data.draw(st.lists(st.floats(0.0, 120.0), max_size=6))):
        here = [i for i, at in enumerate(times) if at <= now_s and i not in state.ended]
        assert arrivals.at(now_s).ids.tolist() == here
        assert arrivals.at(now_s) is arrivals.at(now_s)
        if here:
            state.ended.append(data.draw(st.sampled_from(here)))
