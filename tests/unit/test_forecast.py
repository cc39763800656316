"""Forecasts against the runs they are of. The runs are simulated ones, with costs of their own."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from hadar_cli.core import events
from hadar_cli.core.measures.forecast import FORMULA_ERROR, MEASURED_ERROR, Forecast, judge
from hadar_cli.core.model import Mix, Node, PolicyChoice
from hadar_cli.runs.store import FileJournal, RunFacts, RunStore
from hadar_cli.simulation.executor import Costs
from hadar_cli.simulation.fitting import Fit, assumed_costs, fit, scenario_like, slot_for
from hadar_cli.simulation.forecast import (
    MOST_JOBS,
    EarlierRuns,
    RunForecast,
    forecast_after,
    forecast_run,
    gather,
    review,
)
from tests.support.worlds import make_mix, make_nodes, make_world

SPEEDS = {"x": 1.0, "y": 0.5, "z": 0.25}
COSTS = Costs(start_s=1.0, sync_s=0.1)
NOTHING = EarlierRuns(Fit(), assumed_costs(False))


@pytest.fixture(scope="module")
def mix() -> Mix:
    return make_mix([900, 500, 700])


@pytest.fixture(scope="module")
def nodes() -> tuple[Node, ...]:
    return make_nodes(SPEEDS)


@pytest.fixture(scope="module")
def happened(mix: Mix, nodes: tuple[Node, ...]) -> list[events.Event]:
    world = make_world(mix, nodes, costs=COSTS)
    world.loop.run()
    return world.journal.events


def facts_of(mix: Mix, nodes: tuple[Node, ...], forecast: Forecast | None = None) -> RunFacts:
    return RunFacts("past", mix, nodes, "2026-01-01T00:00:00+00:00", "0", forecast)


def write_run(runs: Path, facts: RunFacts, happened: list[events.Event]) -> RunStore:
    store = RunStore.create(runs, facts)
    journal = FileJournal(store.journal_path)
    for event in happened:
        journal.append(event)
    journal.close()
    return store


def expected(mix: Mix, nodes: tuple[Node, ...], knowledge: EarlierRuns = NOTHING) -> RunForecast:
    seen = forecast_run(mix, nodes, knowledge)
    assert seen is not None
    return seen


# -- before the run --------------------------------------------------------------------------


def test_an_earlier_run_makes_the_forecast_right(
    tmp_path: Path, mix: Mix, nodes: tuple[Node, ...], happened: list[events.Event]
) -> None:
    write_run(tmp_path, facts_of(mix, nodes), happened)
    knowledge = gather(mix, nodes, tmp_path)
    assert knowledge.runs == ("past",)
    forecast = expected(mix, nodes, knowledge).forecast
    assert forecast.ttd_s == pytest.approx(happened[-1].t, rel=0.05)
    assert forecast.measured_share == pytest.approx(1.0)
    assert forecast.typical_error == pytest.approx(MEASURED_ERROR)
    assert "measured in run past" in forecast.basis
    assert forecast.jct_s.keys() == {job.name for job in mix.jobs}
    assert forecast.lower_bound_s and forecast.lower_bound_s < forecast.ttd_s


def test_without_one_it_says_that_it_rests_on_the_formula(
    tmp_path: Path, mix: Mix, nodes: tuple[Node, ...]
) -> None:
    knowledge = gather(mix, nodes, tmp_path)
    forecast = expected(mix, nodes, knowledge).forecast
    assert "formula alone" in forecast.basis
    assert forecast.typical_error == FORMULA_ERROR


@pytest.mark.parametrize("change", ["host", "jobs"])
def test_runs_of_other_machines_or_jobs_tell_nothing(
    tmp_path: Path, mix: Mix, nodes: tuple[Node, ...], happened: list[events.Event], change: str
) -> None:
    write_run(tmp_path, facts_of(mix, nodes), happened)
    if change == "host":
        nodes = tuple(replace(node, host="elsewhere") for node in nodes)
    if change == "jobs":
        mix = replace(mix, jobs=tuple(replace(job, batch_size=99) for job in mix.jobs))
    knowledge = gather(mix, nodes, tmp_path)
    assert knowledge.runs == ()
    assert knowledge.costs == assumed_costs(False)


def test_a_damaged_run_is_passed_over(
    tmp_path: Path, mix: Mix, nodes: tuple[Node, ...], happened: list[events.Event]
) -> None:
    write_run(tmp_path, facts_of(mix, nodes), happened)
    broken = write_run(tmp_path, replace(facts_of(mix, nodes), id="broken"), happened)
    broken.journal_path.write_bytes(b"nonsense\n" + broken.journal_path.read_bytes())
    newest = (broken.directory / "run.json").stat().st_mtime + 9
    os.utime(broken.directory / "run.json", (newest, newest))
    assert gather(mix, nodes, tmp_path).runs == ("past",)


def test_a_faster_node_is_worth_more(mix: Mix, nodes: tuple[Node, ...]) -> None:
    worths = {worth.node: worth.saves_s or 0.0 for worth in expected(mix, nodes).worths}
    assert worths["x"] > worths["z"]
    assert worths["x"] > 0
    assert expected(mix, nodes[:1]).worths == ()


def test_a_node_that_a_gang_needs_cannot_be_left_out(nodes: tuple[Node, ...]) -> None:
    mix = make_mix([300], policy=PolicyChoice("hadar"))
    mix = replace(mix, jobs=(replace(mix.jobs[0], gpus=3),))
    assert {worth.ttd_s for worth in expected(mix, nodes).worths} == {None}


def test_cost_and_bytes_are_told_where_they_are_known(
    mix: Mix, nodes: tuple[Node, ...], happened: list[events.Event]
) -> None:
    assert expected(mix, nodes).cost is None
    assert expected(mix, nodes).moved_bytes == 0  # nothing leaves this computer
    far = tuple(replace(node, host="far", price_per_hour=2.0) for node in nodes)
    seen = expected(mix, far)
    assert seen.cost == pytest.approx(6.0 * seen.forecast.ttd_s / 3600)
    assert seen.moved_bytes is None
    sized = Fit(bytes={job.throughput_class: 1000 for job in mix.jobs})
    moved = expected(mix, far, EarlierRuns(sized, COSTS)).moved_bytes
    assert moved and moved % 1000 == 0


def test_a_huge_mix_is_not_simulated(nodes: tuple[Node, ...]) -> None:
    assert forecast_run(make_mix([1] * (MOST_JOBS + 1)), nodes, NOTHING) is None
    assert forecast_run(make_mix([10**6], slot_s=0.5), nodes, NOTHING) is None


def test_stand_ins_not_yet_seen_train_at_their_pace(mix: Mix, nodes: tuple[Node, ...]) -> None:
    devices = [device for node in nodes for device in node.devices]
    seen = Fit(trained={(mix.jobs[0].throughput_class, devices[1]): (50.0, 10.0)})
    rates = seen.rates(mix.jobs, devices)
    assert rates.rate(0, "y") == pytest.approx(5.0)
    assert rates.rate(0, "x") == pytest.approx(10.0)
    assert rates.rate(0, "z") == pytest.approx(2.5)


def test_a_first_start_is_told_from_the_later_ones() -> None:
    mix, costs = make_mix([900, 500, 700]), Costs(start_s=1.0, sync_s=0.1, first_start_s=4.0)
    world = make_world(mix, make_nodes(SPEEDS), costs=costs)
    world.loop.run()
    devices = [device for node in world.nodes for device in node.devices]
    fitted = fit(mix, devices, world.journal.events).costs
    assert fitted.first_start_s == pytest.approx(4.0)
    assert fitted.start_s == pytest.approx(1.0)


# -- while it runs, and after ----------------------------------------------------------------


def test_after_two_rounds_the_forecast_is_close(
    mix: Mix, nodes: tuple[Node, ...], happened: list[events.Event]
) -> None:
    forecast = forecast_after(facts_of(mix, nodes), happened, rounds=2)
    assert forecast is not None
    assert 0 < forecast.at_s < happened[-1].t
    assert forecast.ttd_s == pytest.approx(happened[-1].t, rel=0.1)


def test_there_is_none_before_so_many_rounds_are_over(
    mix: Mix, nodes: tuple[Node, ...], happened: list[events.Event]
) -> None:
    assert forecast_after(facts_of(mix, nodes), happened, rounds=99) is None
    assert forecast_after(facts_of(mix, nodes), [], rounds=0) is None


@pytest.mark.timeout(60)  # it would wait for the other half of the evaluations for ever
def test_quality_measured_before_does_not_make_it_wait_for_more(
    mix: Mix, nodes: tuple[Node, ...], happened: list[events.Event]
) -> None:
    untrained = {
        e.attempt for e in happened if isinstance(e, events.CopyStarted) and not e.generation
    }
    measured = [
        replace(event, quality={"accuracy": 0.1})
        if isinstance(event, events.CopyFinished) and event.attempt in untrained
        else event
        for event in happened
    ]
    assert forecast_after(facts_of(mix, nodes), measured, rounds=2) is not None


def test_the_review_holds_forecasts_against_what_happened(
    mix: Mix, nodes: tuple[Node, ...], happened: list[events.Event]
) -> None:
    forecast = Forecast(2 * happened[-1].t, {"job-0": 1.0}, None, "a guess")
    before, after = review(facts_of(mix, nodes, forecast), happened)
    assert before.ttd_error == pytest.approx(1.0)
    assert set(before.jct_errors) == {"job-0"}
    assert after.ttd_error is not None and abs(after.ttd_error) < 0.1
    assert [v.when for v in review(facts_of(mix, nodes), happened)] == ["after the second round"]


def test_a_run_under_way_is_not_judged_yet() -> None:
    verdict = judge("before", Forecast(10.0, {"a": 5.0}, None, ""), None, {"a": 4.0})
    assert verdict.ttd_error is None
    assert verdict.jct_errors["a"] == pytest.approx(0.25)


# -- replays ---------------------------------------------------------------------------------


def test_devices_lost_for_good_are_lost_again(mix: Mix, nodes: tuple[Node, ...]) -> None:
    world = make_world(mix, nodes, costs=COSTS)
    world.executor.lose_device("y", at=12.0)
    world.loop.run()
    scenario, _ = scenario_like(facts_of(mix, nodes), world.journal.events)
    assert [device for device, _ in scenario.losses] == ["y"]
    back = [*world.journal.events, events.DeviceReturned(99.0, "y")]
    assert scenario_like(facts_of(mix, nodes), back)[0].losses == ()


def test_the_slot_is_as_long_as_handing_in_asks_for():
    assert slot_for(Costs(sync_s=10.0)) == 360.0
    assert slot_for(Costs(sync_s=0.2)) == pytest.approx(7.2)
    assert slot_for(Costs(sync_s=0.0)) == 5.0
    assert slot_for(Costs(sync_s=100.0)) == 720.0
