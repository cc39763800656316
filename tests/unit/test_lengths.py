"""Lengths that are told wrongly, or not at all, and what progress says about them."""

import numpy as np
import pytest

from hadar_cli.core.policies.gangs.lengths import Lengths


def never() -> np.ndarray:
    raise AssertionError("the speed of jobs whose lengths are told does not matter")


def remaining(lengths: Lengths, told: list[float], done: list[float]) -> list[float]:
    return lengths.remaining(np.array(told), np.array(done), never)[0].tolist()


def test_what_is_told_is_believed_to_the_step_while_it_proves_true():
    lengths = Lengths()
    for told in (100.0, 3e6):
        lengths.note(told, told, 1.0)
    left, at_worst = lengths.remaining(np.array([1000.0, 7.0]), np.array([400.0, 0.0]), never)
    assert left.tolist() == at_worst.tolist() == [600.0, 7.0]


def test_a_job_past_its_told_end_is_expected_to_go_on():
    (left,) = remaining(Lengths(), [1000.0], [1200.0])
    assert 100 < left < 1000


def test_jobs_that_ended_late_lengthen_the_others():
    lengths = Lengths()
    for _ in range(50):
        lengths.note(1000.0, 1500.0, 1.0)
    (left,) = remaining(lengths, [1000.0], [200.0])
    assert left == pytest.approx(1300, rel=0.05)


def test_jobs_that_are_not_done_yet_count_with_those_that_are():
    """Who ends first is short: by the ended alone every job would seem short."""
    lengths = Lengths()
    for _ in range(20):
        lengths.note(1000.0, 700.0, 1.0)
    alone = remaining(lengths, [1000.0], [500.0])[0]
    crowd = remaining(lengths, [1000.0] * 40, [500.0, *[1400.0] * 39])[0]
    assert crowd > 2 * alone


def test_the_bad_case_is_worse_than_the_mean_and_seen_before():
    lengths, rng = Lengths(), np.random.default_rng(1)
    for ratio in rng.uniform(0.7, 2.0, 200).tolist():
        lengths.note(1000.0, 1000.0 * ratio, 1.0)
    left, at_worst = lengths.remaining(np.array([1000.0]), np.array([0.0]), never)
    assert 1200 < left[0] < 1500 < 1850 < at_worst[0] <= 2000


def test_of_jobs_without_a_length_those_that_have_trained_longest_will_train_longest():
    lengths, speed = Lengths(), np.array([10.0, 10.0, 1.0])
    rng = np.random.default_rng(2)
    for seconds in np.exp(rng.normal(6.0, 1.5, 200)).tolist():  # most are short, few very long
        lengths.note(0.0, 5.0 * seconds, 5.0)
    done = np.array([100.0, 20_000.0, 2000.0])  # 10 s, 2000 s, 2000 s of training
    left, _ = lengths.remaining(np.zeros(3), done, lambda: speed)
    seconds = left / speed
    assert seconds[0] < seconds[1] == pytest.approx(seconds[2])


def test_nobody_knows_anything_at_first():
    left, _ = Lengths().remaining(np.zeros(2), np.array([0.0, 30.0]), lambda: np.ones(2))
    assert left[0] >= 1.0 and left[1] == pytest.approx(30.0)
