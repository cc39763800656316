"""How many copies pay, on figures worked out by hand."""

from __future__ import annotations

import pytest

from hadar_cli.core.estimates.forking import forks_that_pay, worth

LAB = (0.80, 0.42, 0.12, 1.00, 0.45)
FREE = (0.0,) * len(LAB)


def test_with_the_learning_rate_scaled_in_full_all_steps_count() -> None:
    assert worth([80, 30, 10], "linear") == pytest.approx(120)


def test_a_plain_mean_is_worth_less_than_its_fastest_copy() -> None:
    assert worth([80, 30, 10], "none") == pytest.approx(7400 / 120)
    assert worth([80, 30, 10], "none") < 80


def test_free_merges_fork_to_every_device() -> None:
    assert forks_that_pay(LAB, FREE, 10.0, "linear") == (3, 0, 4, 1, 2)


def test_a_plain_mean_never_pays() -> None:
    assert forks_that_pay(LAB, FREE, 10.0, "none") == (3,)
    assert forks_that_pay((1.0, 1.0), (0.0, 0.0), 10.0, "none") == (0,)


def test_dear_merges_do_not_pay() -> None:
    dear = (1000.0,) * len(LAB)
    assert forks_that_pay(LAB, dear, 10.0, "linear") == (3,)
    assert forks_that_pay(LAB, dear, 10_000.0, "linear") == (3, 0, 4, 1, 2)


def test_a_slow_device_behind_a_slow_link_is_left_out() -> None:
    costs = (0.1, 0.1, 5.0, 0.1, 0.1)
    assert forks_that_pay(LAB, costs, 10.0, "linear") == (3, 0, 4, 1)


def test_a_fast_device_behind_a_slow_link_is_weighed_against_all_others() -> None:
    costs = (0.1, 0.1, 0.1, 50.0, 0.1)
    assert forks_that_pay(LAB, costs, 10.0, "linear") == (0, 4, 1, 2)


def test_under_sqrt_a_device_far_slower_than_the_others_holds_them_back() -> None:
    """Two equal copies are worth √2 of one; a third that hardly moves is worth less than nothing:
    (Στ²)^½ = √(1 + 1 + ε²) grows by less than any cost."""
    assert forks_that_pay((1.0, 1.0, 0.05), (0.0, 0.0, 0.1), 10.0, "sqrt") == (0, 1)


@pytest.mark.parametrize("rates", [(), (0.0, 0.0)])
def test_no_device_can_train_it(rates: tuple[float, ...]) -> None:
    assert forks_that_pay(rates, FREE[: len(rates)], 10.0, "linear") == ()


def test_alone_the_cheaper_of_two_alike_is_chosen() -> None:
    assert forks_that_pay((1.0, 0.95), (30.0, 3.0), 15.0, "linear") == (1,)
    assert forks_that_pay((1.0, 0.5), (30.0, 3.0), 15.0, "linear") == (0,)
