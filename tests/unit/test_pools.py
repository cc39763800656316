"""Large clusters in small programs: the same optimum, dealt out whole, with few copies."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hadar_cli.core.estimates.fluid import forked_optimum
from hadar_cli.core.policies.pools import share_out


@st.composite
def clusters(draw):
    """Jobs of a few classes on devices of a few kinds; some classes cannot use some kinds."""
    kinds = draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
    rate = st.floats(0.5, 20.0)
    classes = [
        [draw(rate) if k == 0 or draw(st.booleans()) else 0.0 for k in range(len(kinds))]
        for _ in range(draw(st.integers(1, 4)))
    ]
    members = draw(st.lists(st.sampled_from(range(len(classes))), min_size=1, max_size=12))
    rates = np.repeat(np.array(classes)[members], kinds, axis=1)
    steps = np.array([float(draw(st.integers(1, 5000))) for _ in members])
    warm = np.zeros(rates.shape, dtype=bool)
    for device in range(rates.shape[1]):
        job = draw(st.integers(-1, len(members) - 1))
        if job >= 0 and rates[job, device] > 0:
            warm[job, device] = True
    return steps, rates, warm


@settings(deadline=None)
@given(cluster=clusters())
def test_all_work_is_dealt_out_and_no_device_takes_longer_than_the_optimum(cluster):
    steps, rates, warm = cluster
    seconds = share_out(steps, rates, warm)
    optimum = forked_optimum(steps, rates).makespan_s
    assert (seconds >= 0).all() and not seconds[rates == 0].any()
    assert (seconds * rates).sum(axis=1) == pytest.approx(steps, rel=1e-5)
    assert seconds.sum(axis=0).max() <= optimum * (1 + 1e-5)


@settings(deadline=None)
@given(cluster=clusters())
def test_copies_are_few(cluster):
    """One for each job, one more wherever a device or a pool is full, and those that are warm."""
    steps, rates, warm = cluster
    seconds = share_out(steps, rates, warm)
    copies = int((seconds > 1e-6 * seconds.max()).sum())
    assert copies <= len(steps) + rates.shape[1] * 2 + int(warm.sum())


def test_a_job_stays_where_it_is_warm():
    steps, rates = np.full(8, 100.0), np.ones((8, 4))
    warm = np.zeros((8, 4), dtype=bool)
    warm[[5, 6, 7, 0], [0, 1, 2, 3]] = True
    seconds = share_out(steps, rates, warm)
    assert [seconds[j, d] for j, d in ((5, 0), (6, 1), (7, 2), (0, 3))] == [100.0] * 4
    assert (np.count_nonzero(seconds, axis=1) == 1).all()


def test_relabelled_devices_and_jobs_get_the_same_in_another_order():
    rng = np.random.default_rng(0)
    steps = rng.permutation(np.arange(1, 41)) * 100.0
    rates = np.repeat(rng.uniform(1, 10, (5, 3))[rng.integers(0, 5, 40)], 4, axis=1)
    cold = np.zeros(rates.shape, dtype=bool)
    jobs, devices = rng.permutation(40), rng.permutation(12)
    one = share_out(steps, rates, cold)
    other = share_out(steps[jobs], rates[jobs][:, devices], cold)
    assert other.sum(axis=0).max() == pytest.approx(one.sum(axis=0).max())
    done, done_too = (one * rates)[jobs], other * rates[jobs][:, devices]
    for kind in range(3):
        mine = np.flatnonzero(devices // 4 == kind)
        assert done_too[:, mine].sum(axis=1) == pytest.approx(
            done[:, 4 * kind : 4 * kind + 4].sum(axis=1), abs=1e-6
        )
