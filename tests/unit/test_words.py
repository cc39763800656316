"""Events in words, and a run told by them."""

from __future__ import annotations

import math

import pytest

from hadar_cli.core import events
from hadar_cli.core.reasons import Absence, Loss
from hadar_cli.core.state import RunState
from hadar_cli.report.format import brief, clock, count, fit, listed
from hadar_cli.report.live.sparkline import Series, heat, sparkline
from hadar_cli.report.log import RunLog
from hadar_cli.report.words import describe, is_news
from tests.support.worlds import make_mix, make_world

RUN = (
    events.HeadStarted(0.0, 1),
    events.RoundPlanned(0.0, 1, ((0, "d", 60), (1, "e", 10))),
    events.CopyStarted(0.0, "a", 0, 2, "d", 1, 0, ((0, 60),)),
    events.CopyStarted(0.0, "b", 0, 4, "e", 1, 0, ((60, 90),)),
    events.CopyFinished(5.0, "a", 60, ((0, 60),), 1, 4, 0, "steps", "w"),
    events.CopyFinished(5.0, "b", 20, ((60, 80),), 1, 4, 0, "deadline", "v"),
    events.WeightsMerged(6.0, 0, 1, "m", ("a", "b")),
)


def told(*happened: events.Event, steps: tuple[int, ...] = (100, 10)) -> list[str]:
    """What describe says of each event, after a run's beginning."""
    state = RunState(make_mix(steps).jobs)
    words = []
    for event in (*RUN, *happened):
        state.apply(event)
        words.append(describe(event, state))
    return words[-len(happened) :] if happened else words


def test_every_event_has_its_words() -> None:
    assert told() == [
        "started: 2 jobs, 110 steps",
        "round 1: 2 jobs on 2 devices",
        "d trains job-0: 60 steps",
        "e trains job-0: 30 steps",
        "d handed in 60 steps of job-0",
        "e handed in 20 steps of job-0",
        "merged 2 copies of job-0: 80 of 100 steps counted so far, 50 effective",
    ]


def test_what_ends_and_resumes_a_run() -> None:
    assert told(
        events.RunStopped(7.0, "interrupted"),
        events.HeadStarted(7.0, 2),
        events.DeviceReturned(8.0, "d"),
        events.RunFinished(130.0),
    ) == [
        "stopped (interrupted): 80 of 110 steps are kept",
        "resumed with 80 of 110 steps done",
        "d is back",
        "done: 2 jobs trained in 2m10s",
    ]


def test_a_job_done_and_its_quality() -> None:
    assert told(
        events.CopyStarted(7.0, "c", 0, 2, "d", 1, 1, ((80, 100),)),
        events.CopyFinished(8.0, "c", 20, ((80, 100),), 0, 1, 0, "steps", "w"),
        events.WeightsMerged(9.0, 0, 2, "n", ("c",)),
        events.CopyStarted(9.0, "q", 0, 2, "d", 1, 2, (), purpose="evaluate"),
        events.CopyFinished(9.5, "q", 0, (), 0, 0, 0, "steps", quality={"mse": 0.5}),
    )[2:] == ["job-0 done in 9s: 100 steps", "d measures job-0", "job-0 trained: mse 0.500"]


def test_a_merge_tells_how_many_copies_are_late() -> None:
    happened = (
        events.CopyStarted(7.0, "c", 0, 2, "d", 1, 1, ((60, 70),)),
        events.CopyStarted(7.0, "late", 0, 2, "d", 1, 1, ((70, 80),)),
        events.CopyFinished(8.0, "c", 10, ((60, 70),), 0, 1, 0, "steps", "w"),
        events.WeightsMerged(9.0, 0, 2, "n", ("c",)),
        events.CopyFinished(9.0, "late", 10, ((70, 80),), 0, 1, 0, "steps", "w"),
        events.WeightsMerged(9.5, 0, 3, "o", ("late",), late={"late": 0.5}),
    )
    state = RunState(make_mix([100]).jobs)
    state.apply(events.CopyStarted(0.0, "a", 0, 1, "d", 1, 0, ((0, 60),)))
    state.apply(events.CopyFinished(1.0, "a", 60, ((0, 60),), 0, 1, 0, "steps", "w"))
    state.apply(events.WeightsMerged(2.0, 0, 1, "m", ("a",)))
    for event in happened:
        state.apply(event)
    words = describe(happened[-1], state)
    assert (
        words
        == "merged 1 copy of job-0, 1 of them late: 80 of 100 steps counted so far, 75 effective"
    )


def test_quality_is_told_against_the_untrained_model() -> None:
    state = RunState(make_mix([10]).jobs)
    words = []
    for event in (
        events.CopyStarted(0.0, "a", 0, 1, "d", 1, 0, ((0, 10),)),
        events.CopyFinished(1.0, "a", 10, ((0, 10),), 0, 1, 0, "steps", "w", None, {"mse": 2.0}),
        events.WeightsMerged(2.0, 0, 1, "w", ("a",)),
        events.CopyStarted(2.0, "b", 0, 1, "d", 1, 1, (), 1.0, "evaluate"),
        events.CopyFinished(3.0, "b", 0, (), 0, 0, 0, "steps", None, None, {"mse": 0.5}),
    ):
        state.apply(event)
        words.append(describe(event, state))
    assert words[1] == "job-0 untrained: mse 2.00"
    assert words[-1] == "job-0 trained: mse 0.500 (untrained: mse 2.00)"


def test_failures_name_their_cause_and_what_becomes_of_the_steps() -> None:
    held = events.CopyStarted(7.0, "c", 1, 2, "d", 1, 0, ((0, 10),))
    log = "Traceback ...\n\x1b[31m[bold]No space left"
    assert told(held, events.CopyLost(8.0, "c", "it exited with code 1", log))[1] == (
        "job-1 on d failed: it exited with code 1 ([bold]No space left); "
        "its 10 steps go back to the pool"
    )
    full = events.CopyLost(8.0, "c", "no memory: CUDA", "CUDA", reason=Loss.OUT_OF_MEMORY)
    assert told(held, full)[1] == (
        "job-1 on d failed: no memory: CUDA; next it tries its batches in 2 pieces there; "
        "its 10 steps go back to the pool"
    )
    assert told(held, events.DeviceLost(8.0, "d", "its agent\nended"))[1] == (
        "d lost; its 10 steps of job-1 go back to the pool (its agent ended)"
    )
    refused = (("c", "not finite"),)
    handed_in = events.CopyFinished(8.0, "c", 10, ((0, 10),), 0, 1, 0, "steps", "w")
    assert told(held, handed_in, events.WeightsMerged(9.0, 1, 1, "", (), refused))[2] == (
        "job-1: refused the weights of d: not finite; the steps go back to the pool"
    )


# -- a log -----------------------------------------------------------------------------------


def log_of(
    happened: list[events.Event], steps: tuple[int, ...] = (100, 10)
) -> tuple[list[str], RunLog]:
    state = RunState(make_mix(steps).jobs)
    log = RunLog(state)
    lines = []
    for event in happened:
        state.apply(event)
        lines += [entry.words for entry in log.hear(event)]
    return lines, log


def test_a_rounds_merges_grow_into_one_line_and_settle_with_the_next_round() -> None:
    happened: list[events.Event] = [*RUN]
    lines, log = log_of(happened)
    assert lines == []
    assert [entry.words for entry in log.growing] == [
        "round 1: merged 2 copies of job-0: 80 steps counted, 50 effective"
    ]
    happened += [
        events.CopyStarted(6.0, "c", 0, 2, "d", 1, 1, ((80, 90),)),
        events.CopyFinished(7.0, "c", 10, ((80, 90),), 0, 1, 0, "steps", "w"),
        events.WeightsMerged(7.0, 0, 2, "n", ("c",)),
        events.RoundPlanned(10.0, 2, ()),
    ]
    lines, log = log_of(happened)
    assert lines == ["round 1: 2 merges of job-0: 90 steps counted, 60 effective"]
    assert not log.growing


@pytest.mark.parametrize("first", ["copy", "device"])
def test_a_lost_device_and_its_copy_are_one_line(first: str) -> None:
    """Whichever is heard of first."""
    copy = events.CopyLost(8.0, "c", "its node is gone: its agent ended", node_fault=True)
    device = events.DeviceLost(8.0, "d", "its agent ended")
    held = events.CopyStarted(7.0, "c", 1, 2, "d", 1, 0, ((0, 10),))
    lost: list[events.Event] = [copy, device] if first == "copy" else [device, copy]
    lines, _ = log_of([*RUN, held, *lost])
    assert lines == ["d lost; its 10 steps of job-1 go back to the pool (its agent ended)"]


def test_a_copy_that_had_nothing_to_hand_in_yet_when_its_job_was_paused_is_no_news() -> None:
    lost = events.CopyLost(9.0, "c", "released", reason=Loss.TERMINATED)
    held = events.CopyStarted(7.0, "c", 1, 2, "d", 1, 0, ((0, 10),))
    lines, _ = log_of([*RUN, held, events.JobsPaused(8.0, (1,), "asked"), lost])
    assert lines == ["paused job-1: copies hand in, nothing more is started"]
    lines, _ = log_of([*RUN, held, lost])
    assert lines == ["job-1 on d failed: released; its 10 steps go back to the pool"]


def test_turns_on_a_shared_device_are_told_once() -> None:
    """So is a copy that was called back for one before it had trained."""
    held = events.CopyStarted(7.0, "c", 1, 2, "d", 1, 0, ((0, 10),))
    turn = [
        events.DeviceLost(9.0, "d", "run a of ada has its turn", Absence.TURN),
        events.CopyLost(9.1, "c", "released", reason=Loss.TERMINATED),
        events.DeviceReturned(12.0, "d"),
    ]
    shared = events.DeviceWanted(8.0, "d", ("run a of ada",))
    lines, _ = log_of([*RUN, held, shared, *turn])
    assert lines == ["d is shared by turns with run a of ada"]
    lines, _ = log_of([*RUN, held, *turn])  # of whom nothing was told
    assert lines[1:] == ["d is back"] and "has its turn" in lines[0]


def test_a_copy_that_only_its_node_forgot_is_told_with_the_next_event() -> None:
    lost = events.CopyLost(8.0, "c", "its node knows nothing of it", node_fault=True)
    held = events.CopyStarted(7.0, "c", 1, 2, "d", 1, 0, ((0, 10),))
    again = events.CopyStarted(9.0, "e", 1, 2, "d", 1, 0, ((0, 10),))
    lines, _ = log_of([*RUN, held, lost, again])
    assert len(lines) == 1 and lines[0].startswith("job-1 on d failed: its node knows nothing")


def test_a_log_counts_what_the_state_counts() -> None:
    """Over a whole simulated run, the lines' steps add up to the jobs' steps."""
    world = make_world(make_mix([700, 500, 300]))
    world.loop.run()
    lines, _ = log_of(list(world.journal.events), (700, 500, 300))
    counted = [line for line in lines if "counted" in line]
    numbers = [int(line.split(" step")[0].split()[-1].replace(",", "")) for line in counted]
    assert sum(numbers) == 1500
    assert sum(is_news(event, world.state) for event in world.journal.events) + len(counted) >= len(
        lines
    )


# -- small words -----------------------------------------------------------------------------------


def test_times_and_lists() -> None:
    assert [clock(s) for s in (0, 7.4, 125, 11_220)] == ["0:00", "0:07", "2:05", "3:07:00"]
    moments = (0, 45, 60, 130, 3600, 11_220, 360_000, math.inf)
    assert [brief(s) for s in moments] == ["0s", "45s", "1m", "2m10s", "1h", "3h07m", "4d04h", "–"]
    assert [count(n, "job") for n in (0, 1, 2000)] == ["0 jobs", "1 job", "2,000 jobs"]
    assert [listed(names) for names in (["a"], ["a", "b"], ["a", "b", "c"])] == [
        "a",
        "a and b",
        "a, b and c",
    ]


def test_fitting_counts_wide_characters_and_drops_control_characters() -> None:
    assert fit("abcdef", 6) == "abcdef"
    assert fit("abcdef", 4) == "abc…"
    assert fit("短い名前", 5) == "短い…"
    assert fit("a\x1b[31mb\n", 5) == "ab"
    assert fit("abc", 0) == ""


def test_a_sparkline_spans_its_own_range_and_never_its_cells() -> None:
    assert sparkline([3.0, 2.0, 1.0], 8) == "█▅▁"
    assert sparkline([0.0, math.nan, 7.0, math.inf], 8) == "▁█"
    assert sparkline([2.0] * 5, 3) == "▁▁▁"
    assert sparkline(range(100), 8) == "▁▂▃▄▅▆▇█"
    assert sparkline([], 8) == sparkline([1.0], 0) == ""
    assert heat([0.0, 0.5, 1.0, 9.0]) == "▁▅██"


def test_a_trail_stays_short_and_keeps_its_shape() -> None:
    trail = Series()
    for value in range(10_000):
        trail.add(float(value))
    trail.add(math.nan)
    assert 64 <= len(trail.points) < 128
    assert trail.points == sorted(trail.points)
    assert trail.points[0] < 200 and trail.points[-1] > 9_500


def test_a_run_that_stops_tells_what_was_not_handed_in():
    state = RunState(make_mix([100]).jobs)
    whole, cut = events.RunStopped(7.0, "interrupted"), {"b": 12, "a": 0}
    assert describe(whole, state) == "stopped (interrupted): 0 of 100 steps are kept"
    assert describe(events.RunStopped(7.0, "interrupted", cut), state) == (
        "stopped (interrupted): 0 of 100 steps are kept; a and b did not hand in: 12 steps and "
        "more, which hadar resume does again"
    )


def test_a_slot_shorter_than_a_step_is_told_with_a_number_to_use():
    short = events.SlotTooShort(7.0, 0, "step", 16.2, 10.0)
    assert describe(short, RunState(make_mix([100]).jobs)) == (
        "job-0: a step takes 16 s, longer than slot_s = 10: use slot_s: 160"
    )
