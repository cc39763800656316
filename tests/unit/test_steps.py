import pytest

from hadar_cli.core.steps import StepSet, all_steps


def test_touching_ranges_join():
    assert StepSet.of([(5, 8), (0, 5)]).ranges == ((0, 8),)


def test_a_step_in_two_ranges_is_refused():
    with pytest.raises(ValueError, match="step 4 is in two ranges"):
        StepSet.of([(0, 5), (4, 6)])


def test_what_is_left_after_holes():
    left = all_steps(100) - StepSet.of([(10, 20), (50, 60)])
    assert left.ranges == ((0, 10), (20, 50), (60, 100))
    assert len(left) == 80


def test_first_steps_span_holes():
    assert StepSet.of([(0, 3), (10, 20)]).first(5).ranges == ((0, 3), (10, 12))
    assert StepSet.of([(0, 3)]).first(0).ranges == ()


def test_subset():
    assert StepSet.of([(2, 4)]) <= all_steps(5)
    assert not StepSet.of([(2, 6)]) <= all_steps(5)
