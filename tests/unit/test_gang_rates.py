"""How fast unequal devices are together, and who takes which share."""

import pytest

from hadar_cli.core.estimates.gangs import (
    EQUAL,
    FIXED,
    PROPORTIONAL,
    gang_rate,
    rate_alone,
    shares_of,
)

LAB = [0.44, 0.23, 0.066, 0.55, 0.25]  # the paper's five nodes, as shares of the fastest


def test_equal_shares_run_at_w_times_the_slowest():
    assert gang_rate(LAB, EQUAL) == pytest.approx(5 * 0.066)
    assert shares_of(LAB, EQUAL) == ()


def test_proportional_shares_run_at_nearly_the_sum():
    together = gang_rate(LAB, PROPORTIONAL)
    assert 0.8 * sum(LAB) < together < sum(LAB)
    assert together > 3 * gang_rate(LAB, EQUAL)


def test_all_members_of_a_step_end_at_once():
    shares = shares_of(LAB, PROPORTIONAL)
    assert sum(shares) == pytest.approx(1)
    step_s = 1 / gang_rate(LAB, PROPORTIONAL)
    for rate, share in zip(LAB, shares, strict=True):
        assert (FIXED + (1 - FIXED) * share) / rate == pytest.approx(step_s)
        assert rate_alone(share, step_s) == pytest.approx(rate)


def test_who_does_not_help_has_no_share():
    rates = [10.0, 10.0, 0.1]
    assert shares_of(rates, PROPORTIONAL) == pytest.approx((0.5, 0.5, 0.0))
    assert gang_rate(rates, PROPORTIONAL) == pytest.approx(gang_rate([10.0, 10.0], PROPORTIONAL))


def test_one_device_is_no_gang_and_one_that_cannot_train_stops_all():
    for shares in (EQUAL, PROPORTIONAL):
        assert gang_rate([3.0], shares) == 3.0
        assert gang_rate([3.0, 0.0], shares) == 0.0
        assert gang_rate([], shares) == 0.0
