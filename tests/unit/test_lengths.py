"""Lengths that are told wrongly, or not at all, and what progress says about them."""

from dataclasses import replace

import numpy as np
import pytest

from hadar_cli.core.model import Job, Launch
from hadar_cli.core.policies.gangs.lengths import Lengths


def never() -> np.ndarray:
    raise AssertionError("the speed of jobs whose lengths are told does not matter")


def remaining(lengths: Lengths, told: list[float], done: list[float]) -> list[float]:
    return both(lengths, told, done)[0].tolist()


def both(lengths: Lengths, told: list[float], done: list[float]) -> tuple[np.ndarray, np.ndarray]:
    return lengths.remaining(np.array(told), np.array(done), kinds(0, len(told)), never)


def untold(lengths: Lengths, seconds: list[float], kind: list[int]) -> tuple[list[float], ...]:
    """Seconds that jobs still need, in the mean and at worst, at a step per second."""
    done, speed = np.array(seconds), np.ones(len(seconds))
    found = lengths.remaining(np.zeros(len(done)), done, np.array(kind), lambda: speed)
    return tuple(part.tolist() for part in found)


def kinds(kind: int, count: int) -> np.ndarray:
    return np.full(count, kind)


def test_what_is_told_is_believed_to_the_step_while_it_proves_true():
    lengths = Lengths()
    for told in (100.0, 3e6):
        lengths.note(told, told, 1.0, 0)
    left, at_worst = both(lengths, [1000.0, 7.0], [400.0, 0.0])
    assert left.tolist() == at_worst.tolist() == [600.0, 7.0]


def test_a_job_past_its_told_end_is_expected_to_go_on():
    (left,) = remaining(Lengths(), [1000.0], [1200.0])
    assert 100 < left < 1000


def test_jobs_that_ended_late_lengthen_the_others():
    lengths = Lengths()
    for _ in range(50):
        lengths.note(1000.0, 1500.0, 1.0, 0)
    (left,) = remaining(lengths, [1000.0], [200.0])
    assert left == pytest.approx(1300, rel=0.05)


def test_jobs_that_are_not_done_yet_count_with_those_that_are():
    """Who ends first is short: by the ended alone every job would seem short."""
    lengths = Lengths()
    for _ in range(20):
        lengths.note(1000.0, 700.0, 1.0, 0)
    alone = remaining(lengths, [1000.0], [500.0])[0]
    crowd = remaining(lengths, [1000.0] * 40, [500.0, *[1400.0] * 39])[0]
    assert crowd > 2 * alone


def test_the_bad_case_is_worse_than_the_mean_and_seen_before():
    lengths, rng = Lengths(), np.random.default_rng(1)
    for ratio in rng.uniform(0.7, 2.0, 200).tolist():
        lengths.note(1000.0, 1000.0 * ratio, 1.0, 0)
    left, at_worst = both(lengths, [1000.0], [0.0])
    assert 1200 < left[0] < 1500 < 1850 < at_worst[0] <= 2000


def test_of_jobs_without_a_length_those_that_have_trained_longest_will_train_longest():
    lengths, speed = Lengths(), np.array([10.0, 10.0, 1.0])
    rng = np.random.default_rng(2)
    for seconds in np.exp(rng.normal(6.0, 1.5, 200)).tolist():  # most are short, few very long
        lengths.note(0.0, 5.0 * seconds, 5.0, 0)
    done = np.array([100.0, 20_000.0, 2000.0])  # 10 s, 2000 s, 2000 s of training
    left, _ = lengths.remaining(np.zeros(3), done, kinds(0, 3), lambda: speed)
    seconds = left / speed
    assert seconds[0] < seconds[1] == pytest.approx(seconds[2])


def test_nobody_knows_anything_at_first():
    left, _ = untold(Lengths(), [0.0, 30.0], [0, 0])
    assert left[0] >= 1.0 and left[1] == pytest.approx(30.0)


def test_jobs_of_a_script_go_by_others_of_it_before_all_others():
    """Many short jobs end first; a script whose jobs are long is not as short as they are."""
    lengths = Lengths()
    for _ in range(100):
        lengths.note(0.0, 10.0, 1.0, 0)
    for seconds in np.linspace(900, 1100, 10).tolist():
        lengths.note(0.0, seconds, 1.0, 1)
    (short, long, new), _ = untold(lengths, [0.0, 0.0, 0.0], [0, 1, 2])
    assert short < 20
    assert 800 < long < 1200
    assert short < new < long / 2  # nobody knows its script: like everybody


def test_a_script_that_nobody_saw_the_end_of_may_take_as_long_again():
    lengths = Lengths()
    for _ in range(100):
        lengths.note(0.0, 10.0, 1.0, 0)
    _, at_worst = untold(lengths, [500.0, 0.0, 0.0], [1, 1, 0])
    assert at_worst[1] >= 1000 and at_worst[0] >= 500
    assert at_worst[2] < 20


def test_the_more_of_a_script_have_ended_the_surer_is_the_longest():
    few, many = Lengths(), Lengths()
    for lengths, count in ((few, 2), (many, 50)):
        for seconds in np.linspace(100, 200, count).tolist():
            lengths.note(0.0, seconds, 1.0, 0)
    assert untold(few, [0.0], [0])[1] == pytest.approx([300.0])
    assert 200 <= untold(many, [0.0], [0])[1][0] < 210


def test_what_a_job_trains_is_its_script_or_its_model_whatever_the_batch():
    job = Job(0, "a", 10, 80, workload="LM (batch size 80)")
    assert job.trains == replace(job, workload="LM (batch size 5)").trains == "LM"
    assert replace(job, launch=Launch(script="train.py")).trains == "train.py"
