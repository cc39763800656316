"""A StepSet behaves like a set of integers."""

from hypothesis import given
from hypothesis import strategies as st

from hadar_cli.core.steps import StepSet

steps = st.sets(st.integers(0, 60))


def of(members: set[int]) -> StepSet:
    return StepSet.of((step, step + 1) for step in members)


def members(steps: StepSet) -> set[int]:
    return {step for first, end in steps.ranges for step in range(first, end)}


@given(steps, steps)
def test_difference(a: set[int], b: set[int]) -> None:
    assert members(of(a) - of(b)) == a - b


@given(steps, steps)
def test_union_of_disjoint_sets(a: set[int], b: set[int]) -> None:
    assert members(of(a) | of(b - a)) == a | b


@given(steps, steps)
def test_subset(a: set[int], b: set[int]) -> None:
    assert (of(a) <= of(b)) == (a <= b)


@given(steps, st.integers(0, 70))
def test_first(a: set[int], count: int) -> None:
    assert members(of(a).first(count)) == set(sorted(a)[:count])


@given(steps)
def test_equal_sets_have_equal_ranges(a: set[int]) -> None:
    assert of(a) == StepSet.of((step, step + 1) for step in reversed(sorted(a)))
    assert len(of(a)) == len(a)
