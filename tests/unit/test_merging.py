"""What a mean of copies is worth in steps, on the figures worked out by hand."""

from __future__ import annotations

import pytest

from hadar_cli.core.estimates.merging import (
    LR_SCALES,
    copy_lr_scale,
    effective_steps,
    n_eff,
    outlying,
    progress_factor,
    solo_steps,
    warmth,
)
from hadar_cli.core.model import MergeRules


def test_unequal_copies_move_less_far_than_their_steps_add_up_to() -> None:
    assert effective_steps([80, 30, 10]) == pytest.approx(7400 / 120)
    assert n_eff([80, 30, 10]) == pytest.approx(120**2 / 7400)


def test_equal_copies_count_in_full() -> None:
    assert n_eff([7, 7, 7, 7]) == 4.0
    assert effective_steps([7, 7, 7, 7]) == 7.0


def test_progress_factor_takes_the_mean_as_far_as_the_fastest_copy_went() -> None:
    steps = [80, 30, 10]
    assert progress_factor(steps) * effective_steps(steps) == pytest.approx(80)


@pytest.mark.parametrize("steps", [[50], [3, 3], [9, 9, 9]])
def test_progress_factor_is_exactly_one_for_equal_copies(steps: list[int]) -> None:
    assert progress_factor(steps) == 1.0


@pytest.mark.parametrize("steps", [[], [0], [0, 0]])
def test_without_steps_nothing_is_scaled(steps: list[int]) -> None:
    assert (effective_steps(steps), n_eff(steps), progress_factor(steps)) == (0.0, 1.0, 1.0)


@pytest.mark.parametrize(("rule", "scale"), [("none", 1.0), ("sqrt", 2.0), ("linear", 4.0)])
def test_lr_scale(rule: str, scale: float) -> None:
    assert LR_SCALES[rule](4.0) == scale


@pytest.mark.parametrize(("done", "scale"), [(0, 1.0), (25, 2.0), (50, 3.0), (500, 3.0)])
def test_the_scale_rises_over_the_warm_up(done: int, scale: float) -> None:
    rules = MergeRules(lr_scale="linear", warmup=0.05)
    assert copy_lr_scale(rules, [7, 0, 7, 7], done, 1000) == pytest.approx(scale)


def test_the_stride_of_a_merge_rises_over_the_warm_up() -> None:
    steps, rules = [80, 30, 10], MergeRules(warmup=0.5)
    full = progress_factor(steps)
    strides = [progress_factor(steps, warmth(rules, done, 1000)) for done in (0, 250, 500, 900)]
    assert strides == pytest.approx([1.0, (1 + full) / 2, full, full])


def test_without_warm_up_the_scale_is_full_at_once() -> None:
    rules = MergeRules(lr_scale="sqrt", warmup=0.0)
    assert copy_lr_scale(rules, [5] * 4, 0, 1000) == 2.0
    assert copy_lr_scale(rules, [], 0, 1000) == 1.0


def test_the_first_step_at_least_is_done_alone() -> None:
    assert solo_steps(MergeRules(solo=0.02), 1000) == 20
    assert solo_steps(MergeRules(solo=0.0), 1000) == 1
    assert solo_steps(MergeRules(solo=0.1), 600, others_idle=True) == 60
    assert solo_steps(MergeRules(solo=0.1), 3000, others_idle=True) == 250
    assert solo_steps(MergeRules(solo=0.1), 240_000, others_idle=True) == 300


@pytest.mark.parametrize(
    ("steps", "lengths", "found"),
    [
        ([10, 10, 10, 10], [1.0, 2.0, 21.0, 1.0], [2]),
        ([10, 10, 10, 10, 10], [1.0, 50.0, 1.0, float("inf"), 1.0], [1, 3]),
        ([10, 10, 10], [1.0, 1.0, 9.0], []),
        ([10, 10], [1.0, 1000.0], []),  # which of the two is wrong?
        ([10, 10, 1000], [1.0, 1.0, 120.0], []),  # drift over many steps
        ([100, 100, 1], [10.0, 10.0, 1.0], []),  # noise of one step
        ([10, 10, 10], [0.0, 0.0, 1.0], []),  # nothing to compare with
    ],
)
def test_outlying_updates(steps: list[int], lengths: list[float], found: list[int]) -> None:
    assert outlying(steps, lengths) == found
