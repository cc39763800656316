"""A script that stops early ends its job, finished, with the steps it has."""

from dataclasses import replace

import pytest

from hadar_cli.core import events
from hadar_cli.core.measures.metrics import summarise
from hadar_cli.core.model import Job, Mix
from hadar_cli.core.state import RunState
from hadar_cli.engine.ports import HandedIn
from hadar_cli.report.words import describe
from tests.support.worlds import make_world

PATIENT = Job(0, "patient", 100_000, 16, workload="m")
OTHER = Job(1, "other", 300, 16, workload="m")


def stopping_after(world, hand_ins: int) -> None:
    """Has job 0's copies hand in so often, and then say that their script has had enough."""
    wait, seen = world.executor.wait, []

    def changed(until: float):
        for report in wait(until):
            is_mine = isinstance(report, HandedIn) and world.state.started[report.attempt].job == 0
            if is_mine and report.result.steps:
                seen.append(report)
                if len(seen) == hand_ins:
                    report = replace(report, result=replace(report.result, stopped="script"))
            yield report

    world.executor.wait = lambda until: list(changed(until))


@pytest.mark.parametrize("hand_ins", [1, 2, 5])
def test_the_job_is_finished_after_the_merge_and_the_others_do_all_their_steps(hand_ins):
    world = make_world(Mix("two", (PATIENT, OTHER), slot_s=25.0))
    stopping_after(world, hand_ins)
    world.loop.run()
    patient, other = world.state.jobs.values()
    assert other.cut_short is None and len(other.done) == 300
    assert patient.is_trained and patient.weights and 0 < len(patient.done) < 100_000
    assert not patient.active and not patient.handed_in
    (cut,) = [e for e in world.journal.events if isinstance(e, events.JobCutShort)]
    assert cut.why == f"stopped early by its script at step {len(patient.done):,}"
    assert cut.why in describe(cut, world.state)
    after = world.journal.events[world.journal.events.index(cut) :]
    assert not any(isinstance(e, events.CopyStarted) and e.job == 0 and e.slices for e in after)
    devices = [device for node in world.nodes for device in node.devices]
    summary = summarise("run", world.mix, devices, world.journal.events)
    assert summary.state == "finished" and summary.jobs[0].steps_done == len(patient.done)


def test_a_head_that_ends_between_merge_and_end_is_made_up_for():
    world = make_world(Mix("one", (PATIENT,), slot_s=25.0))
    stopping_after(world, 2)
    world.loop.run()
    past = world.journal.events
    end = next(i for i, e in enumerate(past) if isinstance(e, events.JobCutShort))
    again = make_world(Mix("one", (PATIENT,), slot_s=25.0), past=past[:end])
    again.loop.run()
    assert again.state.jobs[0].cut_short == world.state.jobs[0].cut_short


def finished(stopped: str, steps: int = 10) -> list[events.Event]:
    slices = ((0, steps),) if steps else ()
    weights = "w" if steps else None
    return [
        events.CopyStarted(1.0, "a", 0, 1, "x", 1, 0, ((0, 10),)),
        events.CopyFinished(9.0, "a", steps, slices, 0.0, 8.0, 0.0, stopped, weights),
    ]


def test_a_copy_that_is_refused_is_not_believed():
    state = RunState([PATIENT], finished("script"))
    assert state.jobs[0].is_used_up(9.0)
    state.apply(events.WeightsMerged(10.0, 0, 1, "", (), (("a", "NaN"),)))
    assert not state.jobs[0].is_used_up(10.0)


def test_only_the_word_for_it_ends_a_job():
    assert not RunState([PATIENT], finished("end")).jobs[0].is_used_up(9.0)


def test_a_script_that_ends_before_its_first_step_has_failed():
    world = make_world(Mix("one", (PATIENT,), slot_s=25.0))
    wait = world.executor.wait

    def nothing(until: float):
        for report in wait(until):
            if isinstance(report, HandedIn):
                told = replace(report.result, steps=0, slices=(), stopped="script")
                report = replace(report, result=told, weights=None)
            yield report

    world.executor.wait = lambda until: list(nothing(until))
    with pytest.raises(Exception, match="ended before its first step"):
        world.loop.run()
