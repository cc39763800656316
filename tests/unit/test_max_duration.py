"""``max_duration``: a job that has trained for that long ends with what it has."""

from dataclasses import replace

import pytest

from hadar_cli import policies
from hadar_cli.core import events
from hadar_cli.core.measures.metrics import summarise
from hadar_cli.core.model import Job, Mix, PolicyChoice
from hadar_cli.core.state import RunState
from hadar_cli.report.words import describe
from hadar_cli.simulation.executor import Costs
from hadar_cli.simulation.scenario import Scenario, simulate
from hadar_cli.simulation.speeds import ModelledSpeeds, parse_cluster
from tests.support.worlds import make_world

LONG = Job(0, "long", 100_000, 16, workload="m", max_duration_s=60.0)
SHORT = Job(1, "short", 300, 16, workload="m")


@pytest.mark.parametrize("policy", policies.names())
def test_a_job_ends_when_its_time_is_over_and_the_others_do_all_their_steps(policy):
    devices = parse_cluster("v100:1,k80:1", 1)
    rates = ModelledSpeeds((LONG, SHORT), devices)
    pools, counts = rates.pools()
    top = (pools @ counts)[0]
    long = replace(LONG, target_steps=int(1000 * top))
    mix = Mix("two", (long, replace(SHORT, target_steps=int(20 * top))), slot_s=25.0)
    scenario = Scenario(mix, devices, Costs(1.0, 0.1), lambda _: ModelledSpeeds(mix.jobs, devices))
    result = simulate(scenario, PolicyChoice(policy), policy, lambda done: None)
    assert (result.problem, result.unfinished) == (None, 0)
    assert 60.0 * 0.9 < max(result.finished_s) < 600.0


def test_what_it_trained_is_kept_told_and_counted():
    world = make_world(Mix("two", (LONG, SHORT), slot_s=25.0))
    world.loop.run()
    long, short = world.state.jobs.values()
    assert short.cut_short is None and len(short.done) == 300
    assert long.is_trained and long.weights and 0 < len(long.done) < 100_000
    assert long.trained_s == pytest.approx(60.0, abs=3.0)
    assert long.free.ranges == () and not long.active

    (cut,) = [e for e in world.journal.events if isinstance(e, events.JobCutShort)]
    assert "100,000 steps" in describe(cut, world.state) and "60 s" in describe(cut, world.state)
    devices = [device for node in world.nodes for device in node.devices]
    summary = summarise("run", world.mix, devices, world.journal.events)
    assert summary.state == "finished" and summary.jobs[0].steps_done == len(long.done)
    assert [note.job for note in summary.notes if note.what == "cut short"] == ["long"]


def test_waiting_does_not_count_and_copies_at_once_count_once():
    state = RunState([LONG])
    job = state.jobs[0]
    state.apply(events.CopyStarted(10.0, "a", 0, 1, "x", 1, 0, ((0, 10),)))
    state.apply(events.CopyStarted(12.0, "b", 0, 2, "y", 1, 0, ((10, 20),)))
    assert job.trained_by(15.0) == 5.0
    state.apply(events.CopyLost(20.0, "a", "gone"))
    state.apply(events.CopyFinished(25.0, "b", 10, ((10, 20),), 0.0, 9.0, 0.0, "steps", "w"))
    assert job.trained_by(1000.0) == job.trained_s == 15.0


def test_a_job_at_work_is_not_cut_short():
    state = RunState([LONG])
    state.apply(events.CopyStarted(10.0, "a", 0, 1, "x", 1, 0, ((0, 10),)))
    with pytest.raises(ValueError, match="cannot be cut short"):
        state.apply(events.JobCutShort(20.0, 0, "its time is over"))
