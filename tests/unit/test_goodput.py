"""Batch sizes by goodput: what an update may count for, and which one is chosen where."""

from __future__ import annotations

import numpy as np
import pytest

from hadar_cli.config.mixes import read_mix
from hadar_cli.core import events
from hadar_cli.core.estimates.goodput import ONE, Update, gain, updates
from hadar_cli.core.estimates.learning import learn_speed
from hadar_cli.core.estimates.throughput import GangSpeed, RateModel
from hadar_cli.core.model import Device, Job
from hadar_cli.errors import InputError

DEVICES = [Device(name, name, 0, None, reach="network lab") for name in ("a", "b")]


def model(most: int | None = 16, **more: object) -> RateModel:
    job = Job(0, "job", 1000, 32, most_batches=most, shares="proportional", **more)
    return RateModel([job], DEVICES)


@pytest.mark.parametrize("noise", [0.0, 0.7, 3.0, 20.0, 1e6])
def test_an_update_counts_for_no_more_than_its_batch_is_worth(noise):
    for update in updates(noise, 64):
        worth = gain(np.array(float(update.batches)), np.array(1.0), np.array(noise))
        assert update.steps <= worth + 0.01
        if update != ONE:  # and a smaller batch would not be worth it
            less = gain(np.array(update.batches - 1.0), np.array(1.0), np.array(noise))
            assert less < update.steps


def test_without_noise_or_before_it_is_known_one_batch_is_one_step():
    assert updates(None, 64) == updates(0.0, 64) == [ONE]
    assert updates(1e6, 8)[-1] == Update(8, 8)


def test_only_jobs_that_leave_it_open_get_larger_batches():
    rates = model(most=None)
    rates.observe_noise(0, 50.0)
    assert rates.update(0, ["a"]) == ONE


def test_a_larger_batch_is_tried_and_kept_where_it_pays():
    rates = model()
    rates.observe(0, "a", 100, 1.0)
    rates.observe_noise(0, 200.0)
    tried = rates.update(0, ["a"])
    assert tried.batches > 1  # nobody knows yet what it saves
    rates.observe(0, "a", 100, 1.0 * tried.batches, tried.batches)  # nothing
    assert rates.update(0, ["a"]) == ONE
    assert rates.rate(0, "a") == pytest.approx(100)
    for _ in range(9):
        rates.observe(0, "a", 100, 2.0, tried.batches)  # nearly all
    best = rates.update(0, ["a"])
    assert best.batches >= tried.batches
    assert rates.rate(0, "a") > 4 * 100
    assert rates.matrix([0], ["a"])[0, 0] == pytest.approx(rates.rate(0, "a"))


def test_a_slow_exchange_asks_for_larger_batches():
    near, far = model(), model()
    for rates, exchange_s in ((near, 0.0001), (far, 0.1)):
        for device in ("a", "b"):
            rates.observe(0, device, 100, 1.0)
            rates.observe(0, device, 100, 8 * 1.0, 8.0)  # larger batches save nothing there
        rates.observe_gang(GangSpeed(0, ("a", "b"), ONE, 100, 100 * (0.0055 + exchange_s)))
        rates.observe_noise(0, 30.0)
    assert far.update(0, ("a", "b")).batches > near.update(0, ("a", "b")).batches
    assert far.gang(0, ("a", "b")) > 1.5 / 0.1055


def test_a_hand_in_tells_the_time_of_one_mini_batch():
    """Whether it was trained by itself or joined with others, alone or in a gang."""
    rates = model()
    start = events.CopyStarted(0, "x", 0, 1, "a", 1, 0, ((0, 100),))
    done = events.CopyFinished(1, "x", 100, ((0, 100),), 0, 2.0, 0, "steps")
    learn_speed(rates, start, done)
    wide = events.CopyFinished(
        1, "x", 300, ((0, 300),), 0, 100 * 0.05, 0, "steps", update=(4, 3), noise=20.0
    )
    learn_speed(rates, start, wide)  # four batches in 2.5 times the time of one
    assert rates._one(0, "a") == pytest.approx(50)
    assert rates._batches.times(rates._row[0], 4) == pytest.approx(2.5)
    assert rates.update(0, ["a"]).batches > 1


def test_what_was_learned_of_batches_outlives_other_jobs():
    rates = model()
    rates.observe(0, "a", 100, 1.0)
    rates.observe_noise(0, 200.0)
    before = rates.update(0, ["a"])
    other = Job(1, "other", 10, 8, most_batches=4)
    rates.widen([Job(0, "job", 1000, 32, most_batches=16, shares="proportional"), other], DEVICES)
    assert rates.update(0, ["a"]) == before
    assert rates.update(1, ["a"]) == ONE


MIX = """
jobs:
  - {{workload: weather, batch_size: {0}}}
"""


def mix_of(tmp_path, text):
    path = tmp_path / "mix.yaml"
    path.write_text(MIX.format(text))
    return read_mix(path)


def test_a_range_keeps_the_steps_of_its_smallest_batch(tmp_path):
    (given,) = mix_of(tmp_path, "16").jobs
    (job,) = mix_of(tmp_path, "16..100").jobs
    assert (job.batch_size, job.most_batches) == (16, 6)
    assert job.target_steps == given.target_steps
    assert given.most_batches is None
    assert mix_of(tmp_path, "16..16").jobs == (given,)


@pytest.mark.parametrize(
    "text", ["16..31", "16..8", "0..8", "auto", "-4", "16..", "1..2..3", "[1]"]
)
def test_a_range_that_cannot_be_is_refused(tmp_path, text):
    with pytest.raises(InputError) as found:
        mix_of(tmp_path, text)
    assert found.value.field == "jobs[0].batch_size"
    assert found.value.line == 3
    assert found.value.fix
