"""Every registered policy through the loop, on any small cluster, with any small batch of gangs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hadar_cli import policies
from hadar_cli.core import events
from hadar_cli.core.model import Device, Job, Mix, PolicyChoice
from hadar_cli.core.state import RunState
from hadar_cli.core.steps import StepSet, all_steps
from hadar_cli.engine.ports import Observers
from hadar_cli.engine.rounds import RoundLoop
from hadar_cli.engine.tracker import Tracker
from hadar_cli.simulation.executor import Costs, NoWeights, SimulatedExecutor
from hadar_cli.simulation.scenario import Scenario, simulate
from hadar_cli.simulation.speeds import TableSpeeds, parse_cluster
from hadar_cli.simulation.traces import SPREAD, Throughputs
from tests.support.worlds import MemoryJournal

KINDS = ("v100", "p100", "k80")
SLOT_S = 60.0


@st.composite
def batches(draw: st.DrawFn) -> tuple[tuple[Job, ...], Throughputs, tuple[Device, ...]]:
    """Jobs that every policy can run: some kind holds the gang whole, and has a rate for it."""
    counts = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    kinds = KINDS[: len(counts)]
    rates: dict[tuple[str, int, str], float] = {}
    jobs = []
    for number in range(draw(st.integers(1, 7))):
        home = draw(st.sampled_from(range(len(kinds))))
        gang = draw(st.integers(1, counts[home]))
        for r, kind in enumerate(kinds):
            rate = draw(st.floats(0.5, 20.0)) if r == home or draw(st.booleans()) else 0.0
            rates[f"m{number}", gang, kind] = rate * gang
            rates[f"m{number}", gang, kind + SPREAD] = rate * gang * draw(st.floats(0.3, 1.0))
        jobs.append(
            Job(
                number,
                f"m{number}",
                draw(st.integers(1, 4000)),
                16,
                workload=f"m{number}",
                gpus=gang,
                elastic=draw(st.booleans()),
                arrives_s=draw(st.sampled_from([0.0, 30.0, 60.0, 500.0])),
            )
        )
    text = ",".join(f"{kind}:{count}" for kind, count in zip(kinds, counts, strict=True))
    devices = parse_cluster(text, gpus_per_node=draw(st.integers(1, 4)))
    return tuple(jobs), Throughputs(rates), devices


def run(
    policy: str, jobs: tuple[Job, ...], table: Throughputs, devices: tuple[Device, ...], lost: str
) -> tuple[RunState, list[events.Event]]:
    speeds = TableSpeeds(table, jobs, devices, loses=True)
    scheduler = policies.create(PolicyChoice(policy))
    executor = SimulatedExecutor(speeds.gang, Costs(5.0, 1.0), prolongs=not scheduler.forks)
    if lost:
        executor.lose_device(lost, at=100.0)
    state, journal = RunState(jobs), MemoryJournal()
    mix, names = Mix("any", jobs, slot_s=SLOT_S), [device.name for device in devices]
    tracker = Tracker(mix, names, state, journal, NoWeights(), executor.now, Observers())
    loop = RoundLoop(mix, devices, scheduler, executor, tracker, speeds, Observers())
    tracker.record(events.HeadStarted(0.0, 1))
    loop.run()
    return state, journal.events


def check_gang(job: Job, event: events.CopyStarted) -> None:
    width = len(set(event.devices))
    assert width == job.gpus or (job.elastic and 1 <= width <= job.gpus)


def check(state: RunState, happened: list[events.Event], forks: bool) -> None:
    """Recounts from the journal alone: devices, gangs and steps."""
    holder: dict[str, str] = {}
    started: dict[str, events.CopyStarted] = {}
    finished: dict[str, events.CopyFinished] = {}
    counted: dict[int, StepSet] = defaultdict(StepSet)
    for event in happened:
        match event:
            case events.CopyStarted():
                started[event.attempt] = event
                held = {holder[device] for device in event.devices if device in holder}
                assert held <= {event.follows}, "a device is used twice"
                holder |= dict.fromkeys(event.devices, event.attempt)
                assert event.t >= state.jobs[event.job].job.arrives_s
                if not forks:
                    check_gang(state.jobs[event.job].job, event)
                    others = [a for a in holder.values() if started[a].job == event.job]
                    assert set(others) == {event.attempt}, "a job runs in two places"
            case events.CopyFinished() | events.CopyLost():
                if isinstance(event, events.CopyFinished):
                    finished[event.attempt] = event
                followed = {copy.follows for copy in started.values()}
                for device in started[event.attempt].devices:
                    if event.attempt not in followed:
                        assert holder.pop(device) == event.attempt
            case events.WeightsMerged():
                for attempt in event.accepted:
                    counted[event.job] |= StepSet.of(finished.pop(attempt).slices)
    for job_id, job_state in state.jobs.items():
        assert counted[job_id] == job_state.done == all_steps(job_state.job.target_steps)
        assert job_state.free == StepSet()


@pytest.mark.parametrize("policy", policies.names())
@settings(deadline=None, max_examples=25)
@given(batch=batches())
def test_every_job_ends_whole_and_exact(policy, batch):
    jobs, table, devices = batch
    state, happened = run(policy, jobs, table, devices, lost="")
    check(state, happened, policies.create(PolicyChoice(policy)).forks)


@pytest.mark.parametrize("policy", policies.names())
@settings(deadline=None, max_examples=15)
@given(batch=batches())
def test_a_lost_device_that_nobody_needs_costs_nothing_but_time(policy, batch):
    jobs, table, devices = batch
    spare = Device("v100-spare", "spare", 0, devices[0].gpu)
    state, happened = run(policy, jobs, table, (*devices, spare), lost=spare.name)
    check(state, happened, policies.create(PolicyChoice(policy)).forks)


@settings(deadline=None, max_examples=30)
@given(batch=batches())
def test_free_steps_are_those_that_nobody_did_or_holds(batch):
    jobs, table, devices = batch
    _, happened = run("hadare", jobs, table, devices, lost="")
    state = RunState(jobs)
    for event in happened:
        state.apply(event)
        for job in state.jobs.values():
            assert job.free == all_steps(job.job.target_steps) - job.done - job.in_hand


@given(batch=batches())
def test_no_spread_gang_is_faster_than_the_table_says(batch):
    jobs, table, devices = batch
    loses = TableSpeeds(table, jobs, devices, loses=True)
    never = TableSpeeds(table, jobs, devices, loses=False)
    names = tuple(device.name for device in devices)
    for job in jobs:
        assert loses.gang(job.id, names) <= never.gang(job.id, names) * (1 + 1e-9)
    assert np.array_equal(loses.pools()[0], never.pools()[0])


@pytest.mark.parametrize("policy", sorted(set(policies.names()) - {"hadare"}))
@settings(deadline=None, max_examples=25)
@given(batch=batches())
def test_no_gang_policy_beats_its_bound(policy, batch):
    jobs, table, devices = batch
    scenario = Scenario(
        Mix("any", jobs, slot_s=SLOT_S),
        devices,
        Costs(0.0, 0.0),
        lambda consolidated: TableSpeeds(table, jobs, devices, loses=not consolidated),
    )
    result = simulate(scenario, PolicyChoice(policy), policy, lambda done: None)
    assert result.ttd_s is not None and result.lower_bound_s is not None
    assert result.ttd_s >= result.lower_bound_s * (1 - 1e-6)


@pytest.mark.parametrize("policy", policies.names())
@settings(deadline=None, max_examples=15)
@given(batch=batches(), more=st.integers(1, 4))
def test_a_bigger_cluster_never_loses_a_job(policy, batch, more):
    jobs, table, devices = batch
    spares = tuple(
        replace(devices[i % len(devices)], name=f"spare-{i}", node="spare") for i in range(more)
    )
    state, happened = run(policy, jobs, table, (*devices, *spares), lost="")
    check(state, happened, policies.create(PolicyChoice(policy)).forks)


@st.composite
def unequal_batches(draw: st.DrawFn) -> tuple[tuple[Job, ...], Throughputs, tuple[Device, ...]]:
    """No two devices are alike, nor two jobs: no choice is left to the order they are listed in."""
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    kinds = [f"gpu{i}" for i in range(draw(st.integers(1, 5)))]
    jobs = tuple(
        Job(i, f"m{i}", int(rng.integers(50, 4000)), 16, workload=f"m{i}", arrives_s=7.0 * i)
        for i in range(draw(st.integers(1, 5)))
    )
    rates = {(job.name, 1, kind): float(rng.uniform(1, 20)) for job in jobs for kind in kinds}
    return jobs, Throughputs(rates), parse_cluster(",".join(f"{kind}:1" for kind in kinds), 1)


@pytest.mark.parametrize("policy", policies.names())
@settings(deadline=None, max_examples=25)
@given(batch=unequal_batches(), random=st.randoms(use_true_random=False))
def test_other_names_and_another_order_change_nothing(policy, batch, random):
    jobs, table, devices = batch
    ids = random.sample(range(100), len(jobs))
    others = [replace(job, id=id_) for job, id_ in zip(jobs, ids, strict=True)]
    names = random.sample("abcdefgh", len(devices))
    places = [replace(d, name=n, node=n) for d, n in zip(devices, names, strict=True)]
    if policy != "hadare":  # of several optima, it takes the one that the order suggests
        random.shuffle(others)
        random.shuffle(places)
    before, _ = run(policy, jobs, table, devices, lost="")
    after, _ = run(policy, tuple(others), table, tuple(places), lost="")
    assert ends(after) == pytest.approx(ends(before), abs=1e-3)


def ends(state: RunState) -> dict[str, float | None]:
    return {job.job.name: job.finished_at for job in state.jobs.values()}
