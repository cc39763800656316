"""How long it still takes: the estimate, and whether its width is honest."""

from __future__ import annotations

import math
import random

import pytest

from hadar_cli.core import events
from hadar_cli.core.estimates.throughput import RateModel
from hadar_cli.core.state import RunState
from hadar_cli.report.live.eta import Estimate, Workload, extrapolate
from hadar_cli.report.live.live_state import LiveState
from hadar_cli.runs.store import RunFacts
from tests.support.worlds import make_mix, make_nodes, make_world


@pytest.mark.parametrize(
    ("seconds", "error", "words"),
    [
        (130, 0.09, "2m10s ± 15s"),
        (130, 0.01, "2m10s ± 2s"),
        (130, 1.0, "1m to 8m"),
        (2, 0.1, "2s ± 1s"),
        (0, 0.1, "1s ± 1s"),
        (7800, 0.1, "2h10m ± 15m"),
        (math.inf, 0.0, "–"),
    ],
)
def test_an_estimate_is_as_precise_as_it_is_sure(seconds: float, error: float, words: str) -> None:
    assert str(Estimate(seconds, error)) == words


def test_the_steadier_and_longer_the_past_the_surer() -> None:
    errors = [
        e.error
        for paces in ([5.0, 15.0], [10.0], [10.0] * 3, [10.0] * 12)
        if (e := extrapolate(1000.0, paces, 10.0)) and e.seconds == 100.0
    ]
    assert len(errors) == 4
    assert errors == sorted(errors, reverse=True)
    assert extrapolate(1000.0, [], 10.0) is None
    assert extrapolate(1000.0, [0.0, 0.0], 10.0) is None


def test_estimates_add_up() -> None:
    total = Estimate(30.0, 0.1) + Estimate(10.0, 0.4)
    assert total.seconds == 40.0
    assert total.error * 40 == pytest.approx(5.0)  # 3 and 4 s, at right angles


def test_measuring_a_job_makes_its_share_surer() -> None:
    mix, nodes = make_mix([1000, 1000]), make_nodes({"a": 1.0, "b": 1.0})
    devices = [device for node in nodes for device in node.devices]
    state, rates = RunState(mix.jobs), RateModel(mix.jobs, devices)
    left = {0: 1000, 1: 1000}

    def estimate() -> Estimate:
        return Workload(state, rates, ["a", "b"]).left(left)

    at_first = estimate()
    rates.observe(0, "a", 100, 10)
    one_seen = estimate()
    for job in (0, 1):
        for device in ("a", "b"):
            rates.observe(job, device, 100, 10)
    all_seen = estimate()
    assert at_first.error > one_seen.error > all_seen.error
    assert all_seen.seconds == pytest.approx(100.0)  # 2,000 steps at 2 × 10 a second
    state.apply(events.DeviceLost(1.0, "b", "gone"))
    assert estimate().seconds == pytest.approx(200.0)


def forecasts(seed: int) -> list[tuple[float, float, float]]:
    """Of each round of a simulated run: when it would end by the estimate's low and high, and by
    what happened. The formula knows neither the jobs' speeds nor how devices suit them."""
    chance = random.Random(seed)
    mix = make_mix([chance.randint(100, 3000) for _ in range(chance.randint(2, 6))])
    speeds = {f"d{i}": chance.uniform(0.1, 1) for i in range(chance.randint(2, 5))}
    nodes = make_nodes(speeds)
    of_job = {job.id: 20 * math.exp(chance.gauss(0, 0.8)) for job in mix.jobs}
    factor = {
        (job, device): speed * math.exp(chance.gauss(0, 0.25))
        for job, speed in of_job.items()
        for device in speeds
    }
    world = make_world(mix, nodes, rate=lambda job, gang: factor[job, gang[0]] * speeds[gang[0]])
    world.loop.run()
    devices = [device for node in nodes for device in node.devices]
    state, rates = RunState(mix.jobs), RateModel(mix.jobs, devices)
    live_state = LiveState(RunFacts("run-1", mix, nodes, "", ""), state, rates, lambda: state.now)
    told = []
    for event in world.journal.events:
        state.apply(event)
        if isinstance(event, events.CopyFinished) and event.steps:
            started = state.started[event.attempt]
            rates.observe(started.job, started.device, event.steps, event.train_s)
        live_state.happened(event)
        if isinstance(event, events.RoundPlanned) and state.unfinished:
            left = live_state.left()
            told.append((left.low, left.high, world.journal.events[-1].t - event.t))
    return told


def test_the_truth_mostly_lies_within() -> None:
    """Of a hundred rounds, eighty should; with correlated rounds, two thirds are a fair demand."""
    rounds = [told for seed in range(12) for told in forecasts(seed)]
    within = sum(low <= truth <= high for low, high, truth in rounds)
    assert len(rounds) > 100
    assert within / len(rounds) > 0.66
