"""The measures of hand-made journals whose answers can be worked out on paper."""

import math
from dataclasses import replace

import numpy as np
import pytest

from hadar_cli.core import events as e
from hadar_cli.core.measures.fairness import by_user, finish_time_fairness
from hadar_cli.core.measures.metrics import lower_bound, summarise
from hadar_cli.core.measures.summary import RunSummary
from hadar_cli.core.measures.timeline import Stretches, trace
from hadar_cli.core.model import Device, Gpu, Job, Mix, PolicyChoice

A, B = Device("a", "a", 0, Gpu("T4", 65, 16)), Device("b", "b", 0, None)


def mix_of(*targets: int, **fields: object) -> Mix:
    jobs = tuple(Job(i, f"job-{i}", steps, 16, workload=f"w{i}") for i, steps in enumerate(targets))
    return Mix("pair", jobs, policy=PolicyChoice("hadare"), **fields)  # type: ignore[arg-type]


def started(t: float, attempt: str, device: str, first: int, end: int, **more: object):
    fields: dict = {"job": 0, "copy": 1, "round": 1, "generation": 0} | more
    slices = ((first, end),) if end > first else ()
    purpose = "train" if slices else "evaluate"
    return e.CopyStarted(t, attempt, device=device, slices=slices, purpose=purpose, **fields)


def finished(t: float, attempt: str, first: int, end: int, start_s=0.0, train_s=1.0, **more):
    slices = ((first, end),) if end > first else ()
    return e.CopyFinished(
        t, attempt, end - first, slices, start_s, train_s, 0.0, "steps", "w", **more
    )


# Job 0 forked over both devices, merged and evaluated; a and b end at different times.
FORKED = [
    e.HeadStarted(0.0, 1),
    e.RoundPlanned(1.0, 1, ()),
    started(1.0, "a1", "a", 0, 6),
    started(1.0, "b1", "b", 6, 10),
    finished(8.0, "b1", 6, 10, start_s=2.0, train_s=4.0, loss=3.0, quality={"mse": 9.0}),
    finished(11.0, "a1", 0, 6, start_s=1.0, train_s=8.0, loss=1.0),
    e.WeightsMerged(12.0, 0, 1, "w", ("a1", "b1"), seconds=1.0),
    started(12.0, "a2", "a", 0, 0, generation=1),
    finished(14.0, "a2", 0, 0, train_s=0.0, quality={"mse": 2.5}),
    e.RunFinished(15.0, lower_bound_s=6.0),
]


def forked() -> RunSummary:
    return summarise("r", mix_of(10), [A, B], FORKED)


def parts(summary: RunSummary, name: str) -> tuple[float, ...]:
    """busy, start, transfer, merge, evaluate, lost, idle."""
    (d,) = (device for device in summary.devices if device.name == name)
    return (d.busy_s, d.start_s, d.transfer_s, d.merge_s, d.evaluate_s, d.lost_s, d.idle_s)


def test_every_second_of_a_device_has_one_name():
    summary = forked()
    # a: waits 0-1, then 1 s start, 8 s training, 1 s transfer, merge 11-12, evaluation, waits.
    assert parts(summary, "a") == (8.0, 1.0, 1.0, 1.0, 2.0, 0.0, 2.0)
    # b waits from 8 to 15, of which the head merges for one second.
    assert parts(summary, "b") == (4.0, 2.0, 1.0, 1.0, 0.0, 0.0, 7.0)
    assert summary.ttd_s == 15.0
    overhead = summary.overhead
    assert (overhead.start_s, overhead.transfer_s, overhead.merge_s) == (3.0, 2.0, 2.0)
    assert (overhead.evaluate_s, overhead.lost_s, overhead.idle_s) == (2.0, 0.0, 9.0)


def test_utilisation_is_of_all_devices_over_all_the_time():
    summary = forked()
    assert summary.cru == pytest.approx(12 / 30)
    # The only round lasted from 1 to 15 and both devices trained in it.
    assert summary.cru_paper == pytest.approx(12 / 28)
    assert [device.busy_share for device in summary.devices] == [8 / 15, 4 / 15]


def test_a_device_without_work_counts_for_us_but_not_for_the_paper():
    alone = [
        e.HeadStarted(0.0, 1),
        e.RoundPlanned(0.0, 1, ()),
        started(0.0, "a1", "a", 0, 10),
        started(2.0, "b1", "b", 0, 0),  # evaluating is not training
        finished(4.0, "b1", 0, 0),
        finished(10.0, "a1", 0, 10, train_s=10.0),
        e.RunFinished(10.0),
    ]
    summary = summarise("r", mix_of(10), [A, B], alone)
    assert (summary.cru, summary.cru_paper) == (0.5, 1.0)


def test_time_in_which_a_run_had_no_work_is_not_held_against_it():
    more = Job(1, "more", 5, 16, workload="w1")
    waited = [
        *FORKED[:-1],  # all is trained and evaluated at 14
        e.JobsAdded(100.0, (more,)),
        started(102.0, "b3", "b", 0, 5, job=1),
        finished(110.0, "b3", 0, 5, train_s=8.0),
        e.WeightsMerged(110.0, 1, 1, "w", ("b3",)),
        e.QueueClosed(150.0),
        e.RunFinished(150.0),
    ]
    mix = replace(mix_of(10), jobs=(*mix_of(10).jobs, more))
    summary = summarise("r", mix, [A, B], waited)
    assert [device.no_work_s for device in summary.devices] == [86.0 + 40.0] * 2
    assert sum(parts(summary, "a")) == 150.0 - 126.0
    assert summary.cru == pytest.approx(20 / (2 * (150 - 126)))
    assert summary.devices[1].busy_share == pytest.approx(12 / 24)
    # A job that waits for a machine is work, whatever is added meanwhile.
    queued = [e.HeadStarted(0.0, 1), e.JobsAdded(50.0, (more,)), e.RunStopped(60.0, "")]
    assert summarise("r", mix, [A], queued).overhead.no_work_s == 0.0


def test_a_job_tells_its_steps_quality_and_what_forking_was_worth():
    (job,) = forked().jobs
    assert (job.name, job.workload, job.steps_done, job.steps_target) == ("job-0", "w0", 10, 10)
    assert job.jct_s == 12.0  # counted at the merge, not at the evaluation
    assert (job.metric, job.untrained_value, job.value) == ("mse", 9.0, 2.5)
    assert job.loss == pytest.approx((6 * 1.0 + 4 * 3.0) / 10)
    assert (job.copies, job.merges, job.lead_steps) == (2, 1, 6)
    assert job.effective_steps == pytest.approx((36 + 16) / 10)
    assert not job.forking_pays  # 5.2 steps' worth, where a alone did 6
    # From 1 to 12 at b's 4 steps in 4 s, the faster of the two.
    assert job.speedup == pytest.approx(5.2 / 11)


def test_completion_time_counts_from_arrival():
    mix = Mix("late", (Job(0, "late", 10, 16, arrives_s=5.0),))
    summary = summarise("r", mix, [A, B], FORKED)
    assert summary.jobs[0].jct_s == summary.mean_jct_s == 7.0


def test_devices_tell_their_counted_steps_and_rates():
    a, b = forked().devices
    assert (a.steps, a.jobs, a.kind) == (6, ("job-0",), "T4")
    assert (b.steps, b.steps_per_s, b.kind) == (4, 1.0, "CPU")
    assert a.steps_per_s == pytest.approx(6 / 8)
    assert a.estimated_steps_per_s is not None
    assert a.estimated_steps_per_s > b.estimated_steps_per_s > 0  # type: ignore[operator]


def test_a_recorded_bound_is_believed_and_a_missing_one_found():
    assert forked().lower_bound_s == 6.0
    unrecorded = [*FORKED[:-1], e.RunFinished(15.0)]
    found = summarise("r", mix_of(10), [A, B], unrecorded).lower_bound_s
    # Together the devices do 6/8 + 4/4 steps a second.
    assert found == pytest.approx(10 / 1.75)
    assert lower_bound(mix_of(10), [A, B], FORKED) == pytest.approx(10 / 1.75)


def test_the_bound_takes_the_mean_speed_of_the_whole_run():
    slowing = [
        e.HeadStarted(0.0, 1),
        started(0.0, "a1", "a", 0, 8),
        finished(1.0, "a1", 0, 8, train_s=1.0),
        e.WeightsMerged(1.0, 0, 1, "w", ("a1",)),
        started(1.0, "a2", "a", 8, 10, generation=1),
        finished(10.0, "a2", 8, 10, train_s=9.0),
        e.WeightsMerged(10.0, 0, 2, "w", ("a2",)),
        e.RunFinished(10.0),
    ]
    assert lower_bound(mix_of(10), [A], slowing) == pytest.approx(10.0)


def test_a_lost_attempt_is_not_busy_and_its_device_goes_on():
    summary = summarise(
        "r",
        mix_of(10),
        [A],
        [
            e.HeadStarted(0.0, 1),
            started(0.0, "a1", "a", 0, 10),
            e.CopyLost(4.0, "a1", "out of memory"),
            started(5.0, "a2", "a", 0, 10),
            finished(9.0, "a2", 0, 10, start_s=1.0, train_s=3.0),
            e.WeightsMerged(9.5, 0, 1, "w", ("a2",), seconds=0.5),
            e.RunFinished(10.0),
        ],
    )
    assert parts(summary, "a") == (3.0, 1.0, 0.0, 0.5, 0.0, 4.0, 1.5)
    (note,) = summary.notes
    assert (note.what, note.why, note.job, note.device) == (
        "copy lost",
        "out of memory",
        "job-0",
        "a",
    )


def test_refused_work_is_busy_but_wasted():
    summary = summarise(
        "r",
        mix_of(10),
        [A, B],
        [
            e.HeadStarted(0.0, 1),
            started(0.0, "a1", "a", 0, 5),
            started(0.0, "b1", "b", 5, 10),
            finished(4.0, "a1", 0, 5, train_s=4.0),
            finished(4.0, "b1", 5, 10, train_s=3.0),
            e.WeightsMerged(4.0, 0, 1, "w", ("a1",), (("b1", "NaN in x"),)),
        ],
    )
    a, b = summary.devices
    assert (a.busy_s, a.wasted_s, a.steps) == (4.0, 0.0, 5)
    assert (b.busy_s, b.wasted_s, b.steps) == (3.0, 3.0, 0)
    assert [(note.what, note.why) for note in summary.notes] == [("weights refused", "NaN in x")]


def test_a_new_head_takes_over_what_a_killed_one_left_and_the_clock_goes_on():
    summary = summarise(
        "r",
        mix_of(10),
        [A],
        [
            e.HeadStarted(0.0, 1),
            e.RoundPlanned(0.0, 1, ()),
            started(0.0, "a1", "a", 0, 5),
            finished(3.0, "a1", 0, 5, train_s=3.0),  # handed in, merged by the next head
            started(3.0, "a2", "a", 5, 10),
            e.HeadStarted(6.0, 2),
            e.WeightsMerged(6.0, 0, 1, "w", ("a1",)),
            e.CopyLost(6.0, "a2", "its node knows nothing of it"),
            e.RoundPlanned(6.0, 2, ()),
            started(6.0, "a3", "a", 5, 10, generation=1),
            finished(9.0, "a3", 5, 10, train_s=3.0),
            e.WeightsMerged(9.0, 0, 2, "w", ("a3",)),
            e.RunFinished(10.0),
        ],
    )
    assert parts(summary, "a") == (6.0, 0.0, 0.0, 0.0, 0.0, 3.0, 1.0)
    assert summary.devices[0].wasted_s == 0.0
    assert summary.cru_paper == pytest.approx(6 / 10)
    assert [note.what for note in summary.notes] == ["resumed", "copy lost"]
    assert "without a word" in summary.notes[0].why
    assert summary.state == "finished"


def test_what_is_still_under_way_at_the_end_is_not_idle():
    happened = [
        e.HeadStarted(0.0, 1),
        started(1.0, "a1", "a", 0, 5),
        started(2.0, "b1", "b", 5, 10),
        finished(4.0, "b1", 5, 10, train_s=2.0),
    ]
    summary = summarise("r", mix_of(10), [A, B], happened)
    assert summary.state == "unfinished"
    assert parts(summary, "a") == (0.0, 0.0, 0.0, 0.0, 0.0, 3.0, 1.0)


def test_an_orderly_stop_is_told_apart_from_a_kill():
    history = [e.HeadStarted(0.0, 1), e.RunStopped(2.0, "interrupted")]
    stopped = summarise("r", mix_of(10), [A], history)
    assert (stopped.state, stopped.notes[0].why) == ("stopped", "interrupted")
    resumed = summarise("r", mix_of(10), [A], [*history, e.HeadStarted(2.0, 2)])
    assert resumed.state == "unfinished"
    assert [(note.what, note.why) for note in resumed.notes][-1] == ("resumed", "")


def test_an_empty_journal_has_no_measures_but_a_summary():
    summary = summarise("r", mix_of(10), [A, B], [])
    assert (summary.state, summary.ttd_s, summary.rounds) == ("unfinished", 0.0, 0)
    assert summary.cru is summary.cru_paper is summary.mean_jct_s is None
    assert summary.lower_bound_s is not None  # from the formula alone
    assert summarise("r", Mix("none", ()), [], []).lower_bound_s is None


def test_claims_beyond_the_clock_are_cut_to_it():
    boasting = [
        started(0.0, "a1", "a", 0, 10),
        finished(4.0, "a1", 0, 10, start_s=math.inf, train_s=100.0),
        started(4.0, "a2", "a", 0, 0),
        finished(5.0, "a2", 0, 0, start_s=-3.0, train_s=math.nan),
    ]
    (span, evaluation) = trace(["a"], boasting).spans["a"]
    assert (span.train_s, span.start_s, span.transfer_s) == (4.0, 0.0, 0.0)
    assert (evaluation.train_s, evaluation.start_s) == (0.0, 0.0)


def test_attempts_that_overlap_on_a_device_are_laid_end_to_end():
    overlapping = [
        started(0.0, "a1", "a", 0, 5),
        started(3.0, "a2", "a", 5, 10),
        finished(4.0, "a1", 0, 5, train_s=4.0),
        finished(6.0, "a2", 5, 10, train_s=3.0),
    ]
    first, second = trace(["a"], overlapping).spans["a"]
    assert (first.end, second.begin, second.train_s) == (4.0, 4.0, 2.0)


def test_a_merge_that_overlaps_an_attempt_counts_only_in_the_gap():
    timeline = [
        e.HeadStarted(0.0, 1),
        started(0.0, "a1", "a", 0, 5),
        finished(4.0, "a1", 0, 5, train_s=4.0),
        e.WeightsMerged(6.0, 0, 1, "w", ("a1",), seconds=5.0),  # 1-6, of which 4-6 in the gap
        e.RunFinished(7.0),
    ]
    assert parts(summarise("r", mix_of(5), [A], timeline), "a") == (4.0, 0, 0, 2.0, 0, 0, 1.0)


def test_stretches_that_overlap_are_counted_once():
    stretches = Stretches([(1.0, 3.0), (2.0, 4.0), (6.0, 7.0), (6.5, 6.6)])
    assert stretches.between(0.0, 10.0) == 4.0
    assert stretches.between(2.5, 6.5) == 2.0
    assert stretches.between(4.0, 6.0) == 0.0
    assert stretches.between(5.0, 2.0) == 0.0


@pytest.mark.parametrize(
    ("metric", "in_mix", "by_script", "improved"),
    [
        ("accuracy", None, None, True),
        ("score", None, None, None),
        ("score", False, None, False),
        ("score", None, True, True),
        ("accuracy", None, False, False),  # the script knows better than the name
        ("score", False, True, False),  # and the mix better than the script
    ],
)
def test_whether_a_model_got_better_is_told_only_where_the_direction_is_known(
    metric, in_mix, by_script, improved
):
    mix = mix_of(10)
    mix = replace(mix, jobs=(replace(mix.jobs[0], higher_is_better=in_mix),))
    said = {"higher_is_better": by_script}
    happened = [
        e.HeadStarted(0.0, 1),
        started(0.0, "a1", "a", 0, 10),
        replace(finished(3.0, "a1", 0, 10, train_s=3.0), quality={metric: 0.1}, **said),
        e.WeightsMerged(4.0, 0, 1, "w", ("a1",)),
        replace(started(4.0, "q", "a", 0, 0, generation=1), purpose="evaluate", slices=()),
        replace(finished(5.0, "q", 0, 0, train_s=0.0), quality={metric: 0.9}, slices=(), **said),
    ]
    [job] = summarise("r", mix, [A], happened).jobs
    assert (job.untrained_value, job.value, job.improved) == (0.1, 0.9, improved)


def test_finish_time_fairness_counts_jobs_to_a_device():
    rho = finish_time_fairness([100.0, 300.0, 50.0, 50.0], np.full(4, 50.0), 2)
    assert rho is not None and rho.tolist() == [1.0, 3.0, 0.5, 0.5]
    idle = finish_time_fairness([100.0], np.array([50.0]), 4)  # more devices than jobs
    assert idle is not None and idle.tolist() == [2.0]
    assert finish_time_fairness([], np.zeros(0), 4) is None


def test_a_user_fares_as_the_mean_of_their_jobs():
    found = by_user(np.array([1.0, 3.0, 0.5, 9.0]), ["ada", "ada", "bob", ""])
    assert found == {"ada": 2.0, "bob": 0.5}
    assert by_user(np.array([1.0]), [""]) == {}
