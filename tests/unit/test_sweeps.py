"""Sweeps: trials from a mix, and who of them trains on, whatever the machines are."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hadar_cli.config.mixes import read_mix
from hadar_cli.core import events
from hadar_cli.core.measures.metrics import summarise
from hadar_cli.core.measures.sweeps import sweeps_of
from hadar_cli.core.model import Mix
from hadar_cli.engine.ports import HandedIn
from hadar_cli.errors import InputError
from hadar_cli.report.terminal.sweep import sweep_plans
from hadar_cli.report.words import describe, is_news
from hadar_cli.simulation.executor import Costs
from hadar_cli.simulation.fitting import Fit
from hadar_cli.simulation.forecast import EarlierRuns, forecast_run
from tests.support.worlds import World, make_nodes, make_world

STEPS = 270
SPEEDS = (1.0, 0.8, 0.45, 0.42, 0.12)
GRID = """
jobs:
  - script: train.py
    name: fit
    steps: 270
    grid: {lr: [0.001, 0.01, 0.1], momentum: [0.0, 0.5, 0.9], decay: [0.0, 0.01, 0.1]}
    promote: {metric: mse, keep: 3, rungs: [30, 90]}
"""


@pytest.fixture
def mix_of(tmp_path: Path):
    def read(text: str) -> Mix:
        (tmp_path / "train.py").touch()
        (tmp_path / "mix.yaml").write_text(text)
        return read_mix(tmp_path / "mix.yaml")

    return read


# -- what a mix says -----------------------------------------------------------------------------


def test_six_rates_are_three_lines(mix_of):
    mix = mix_of(
        "jobs:\n- script: train.py\n  steps: 9\n  grid: {lr: [1, 0.3, 0.1, 0.03, 0.01, 0.003]}\n"
    )
    assert [job.name for job in mix.jobs][:3] == ["train-lr1", "train-lr0.3", "train-lr0.1"]
    assert [job.launch.args for job in mix.jobs][-1] == ("--lr", "0.003")
    assert [job.id for job in mix.jobs] == list(range(6))


def test_values_go_to_arguments_and_to_the_environment(mix_of):
    mix = mix_of(
        "jobs:\n- {script: train.py, steps: 9, args: [--fast],"
        " grid: {env.DEPTH: [2, 4], -w: [8]}}\n"
    )
    assert [job.launch.env for job in mix.jobs] == [{"DEPTH": "2"}, {"DEPTH": "4"}]
    assert mix.jobs[0].launch.args == ("--fast", "-w", "8")
    assert mix.jobs[1].name == "train-DEPTH4-w8"


def test_drawn_values_are_within_their_ranges_and_the_same_every_time(mix_of):
    text = (
        "jobs:\n- {script: train.py, steps: 9, trials: 40, sample: {lr: {log: [0.0001, 0.1]},"
        " width: {int: [8, 64]}, drop: {uniform: [0, 0.5]}, act: [relu, gelu]}}\n"
    )
    mix = mix_of(text)
    points = [job.trial.params for job in mix.jobs]
    assert all(0.0001 <= point["lr"] <= 0.1 for point in points)
    assert all(8 <= point["width"] <= 64 and point["act"] in ("relu", "gelu") for point in points)
    assert sum(point["lr"] < 0.00316 for point in points) in range(10, 31)
    assert points == [job.trial.params for job in mix_of(text).jobs]
    assert points != [job.trial.params for job in mix_of(f"seed: 1\n{text}").jobs]
    assert len({job.name for job in mix.jobs}) == 40


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("grid: {}", "sweeps nothing"),
        ("grid: {lr: []}", "lists no values"),
        ("grid: {lr: [0.1, 1, 0.1]}", "lists 0.1 twice"),
        ("grid: {norm: [true, false]}", "text or a number, not true"),
        ("sample: {norm: [false]}, trials: 3", "text or a number, not false"),
        ("grid: {lr: 0.1}", "a list"),
        ("grid: {lr: [1]}, sample: {lr: [2]}, trials: 1", "is in 'grid', too"),
        ("sample: {lr: {log: [0.1, 1]}}", "needs 'trials'"),
        ("sample: {lr: {log: [0, 1]}}, trials: 3", "0 or below"),
        ("sample: {lr: {uniform: [1, 1]}}, trials: 3", "is no range"),
        ("sample: {w: {int: [1.2, 1.8]}}, trials: 3", "has no whole number"),
        ("sample: {lr: {normal: [0, 1]}}, trials: 3", "no such field"),
        ("trials: 3", "nothing to sweep"),
        ("promote: {metric: mse}", "nothing to sweep"),
        ("grid: {lr: [1, 2]}, trials: 5", "needs 'sample'"),
        ("grid: {lr: [1, 2]}, count: 2", "cannot stand beside a sweep"),
        ("grid: {lr: [1, 2]}, promote: {}", "'metric' is missing"),
        ("grid: {lr: [1, 2]}, promote: {metric: zork}", "whether more of 'zork' is better"),
        ("grid: {lr: [1, 2]}, promote: {metric: mse, rungs: [100]}", "beyond the job's 100 steps"),
        ("stop: {metric: mse}", "'patience' is missing"),
        ("stop: {metric: mse, patience: 1, every: 100}", "beyond the job's 100 steps"),
        (f"grid: {{a: {list(range(1000))}, b: {list(range(1000))}}}", "makes 1,000,000 trials"),
    ],
)
def test_a_sweep_that_cannot_be_says_why_and_what_to_do(mix_of, fields, words):
    with pytest.raises(InputError, match=words) as refused:
        mix_of(f"jobs:\n- {{script: train.py, steps: 100, {fields}}}\n")
    assert refused.value.file and refused.value.fix


def test_rungs_come_by_themselves(mix_of):
    text = GRID.replace(", keep: 3, rungs: [30, 90]", "")
    assert mix_of(text).jobs[0].promote.rungs == (67, 135)
    few = text.replace("[0.0, 0.01, 0.1]}", "[0.0]}")
    assert mix_of(few).jobs[0].promote.rungs == (67,)
    assert {(job.fork, job.mode) for job in mix_of(text).jobs} == {(1, "alone")}


def test_what_a_sweep_will_do_is_told_and_forecast_before_it_starts(mix_of):
    mix = mix_of(GRID)  # 27 trials of 270 steps
    (told,) = sweep_plans(mix.jobs)
    assert "27 trials; the best 9 at step 30, the best 3 at step 90 train on by their mse" in told
    assert "25.9 % of the steps" in told  # (18 x 30 + 6 x 90 + 3 x 270) / (27 x 270)
    nodes = make_nodes({"a": 1.0, "b": 0.5})
    nothing = EarlierRuns(Fit(), Costs())
    halved = forecast_run(mix, nodes, nothing).forecast
    whole = replace(mix, jobs=tuple(replace(job, promote=None) for job in mix.jobs))
    assert halved.ttd_s < forecast_run(whole, nodes, nothing).forecast.ttd_s
    assert not halved.jct_s, "who is promoted is not known"
    alone = replace(mix, jobs=mix.jobs[:1])
    assert "nobody to compare it with" in next(sweep_plans(alone.jobs))


# -- who trains on -------------------------------------------------------------------------------


def curves(seed: int) -> np.ndarray:
    """Held-out error of every trial after every step: ill-conditioned regression by SGD. Halving
    finds the best of such problems nearly always; of problems where slow trials overtake the
    others late it does not, and cannot."""
    dice, scale = np.random.default_rng(seed), np.geomspace(1, 0.1, 8)
    grid = np.meshgrid([0.001, 0.01, 0.1], [0.0, 0.5, 0.9], [0.0, 0.01, 0.1], indexing="ij")
    lr, momentum, decay = (axis.reshape(-1, 1) for axis in grid)
    truth = dice.normal(size=8) / scale
    x, held_out = dice.normal(size=(400, 8)) * scale, dice.normal(size=(200, 8)) * scale
    y = x @ truth + 0.05 * dice.normal(size=400)
    weights, speed, errors = np.zeros((27, 8)), np.zeros((27, 8)), []
    for step in range(STEPS + 1):
        errors.append(((weights @ held_out.T - held_out @ truth) ** 2).mean(axis=1))
        rows = dice.integers(0, 400, size=8)
        gradient = (weights @ x[rows].T - y[rows]) @ x[rows] / 8 + decay * weights
        speed = momentum * speed + gradient
        weights = weights - lr * (1 - step / STEPS) * speed
    return np.array(errors).T


def swept(mix: Mix, scores: np.ndarray, speeds: tuple[float, ...], metric: str = "mse") -> World:
    """The mix to its end on devices of these speeds."""
    nodes = make_nodes({f"d{number}": speed for number, speed in enumerate(speeds)})
    world = make_world(replace(mix, slot_s=10.0), nodes)
    orders, start, wait = {}, world.executor.start, world.executor.wait

    def started(order):
        orders[order.attempt] = order
        start(order)

    def measured(report):
        order = orders.get(getattr(report, "attempt", ""))
        if not isinstance(report, HandedIn) or not order.evaluate:
            return report
        quality = {metric: float(scores[order.job.id, order.global_step])}
        return replace(report, result=replace(report.result, quality=quality))

    world.executor.start = started
    world.executor.wait = lambda until: [measured(report) for report in wait(until)]
    world.loop.run()
    return world


def test_no_sweep_beats_its_bound_which_is_of_the_steps_that_are_trained(mix_of):
    world = swept(mix_of(GRID), curves(1), SPEEDS)
    happened, devices = world.journal.events, [d for node in world.nodes for d in node.devices]
    summary = summarise("r", world.mix, devices, happened)
    assert summary.lower_bound_s and summary.lower_bound_s < summary.ttd_s
    began = happened[:1]
    nobody = summarise(
        "r", world.mix, devices, [*began, *(events.JobCutShort(0.0, n, "") for n in range(27))]
    )
    assert nobody.lower_bound_s is None, "nothing was to be trained"


def promoted(world: World) -> set[tuple[int, int]]:
    return {(e.job, e.step) for e in world.journal.events if isinstance(e, events.MilestonePassed)}


def most_at_once(world: World) -> int:
    """Copies of one trial under way together; one that follows another waits for it."""
    at_work, job_of, most = dict[int, set[str]](), dict[str, int](), 0
    for event in world.journal.events:
        if isinstance(event, events.CopyStarted) and event.purpose == "train":
            job_of[event.attempt] = event.job
            copies = at_work.setdefault(event.job, set())
            copies.add(event.attempt)
            most = max(most, len(copies - {event.follows}))
        elif isinstance(event, events.CopyFinished | events.CopyLost) and event.attempt in job_of:
            at_work[job_of[event.attempt]].discard(event.attempt)
    return most


@pytest.mark.parametrize("seed", range(5))
def test_the_best_trial_is_found_with_few_steps_whatever_the_machines(mix_of, seed):
    mix, scores = mix_of(GRID), curves(seed)
    world = swept(mix, scores, SPEEDS)
    (sweep,) = sweeps_of(mix.jobs, world.journal.events)
    best = mix.jobs[int(scores[:, STEPS].argmin())].name
    assert sweep.best == best
    assert sweep.steps <= 0.4 * sweep.steps_of_full_training
    assert [len([1 for _, step in promoted(world) if step == rung]) for rung in (30, 90)] == [9, 3]
    for speeds in (SPEEDS[::-1], (0.12, 1.0, 0.45, 0.8, 0.42)):
        again = swept(mix, scores, speeds)
        assert promoted(again) == promoted(world)
        assert most_at_once(again) == 1  # merged weights would depend on the machines


def halved(scores: np.ndarray, keep: int = 3, rungs: tuple[int, ...] = (30, 90)) -> np.ndarray:
    """Successive halving as it is written: all trials to a rung, the best of them to the next."""
    trials, passed = np.arange(len(scores)), []
    for rung in rungs:
        order = np.argsort(scores[trials, rung], kind="stable")
        trials = np.sort(trials[order[: len(trials) // keep]])
        passed += [(trial, rung) for trial in trials]
    return np.array(passed)


@pytest.mark.parametrize("seed", range(3))
def test_where_measurements_are_noise_promotions_are_still_those_of_halving(mix_of, seed):
    noise = np.random.default_rng(seed).lognormal(0.0, 1.0, size=(27, STEPS + 1))
    scores = curves(seed) * noise
    for speeds in (SPEEDS, SPEEDS[::-1]):
        world = swept(mix_of(GRID), scores, speeds)
        assert promoted(world) == {(trial, rung) for trial, rung in halved(scores).tolist()}


def test_every_step_of_a_promoted_trial_counts_once_and_a_paused_one_costs_nothing(mix_of):
    world = swept(mix_of(GRID), curves(0), SPEEDS)
    done = {len(job.done) for job in world.state.jobs.values()}
    assert done == {30, 90, STEPS}
    next_step, started = dict.fromkeys(world.state.jobs, 0), world.state.started
    for event in world.journal.events:
        if isinstance(event, events.CopyFinished) and event.steps:
            job, ((first, end),) = started[event.attempt].job, event.slices
            assert first == next_step[job]  # exactly where it was
            next_step[job] = end


def test_a_sweep_whose_metric_nobody_reports_trains_all(mix_of):
    world = swept(mix_of(GRID), curves(0), SPEEDS, metric="accuracy")
    assert all(len(job.done) == STEPS for job in world.state.jobs.values())


def test_a_diverged_or_failed_trial_is_the_worst(mix_of):
    scores = curves(0)
    scores[5] = np.nan
    world = swept(mix_of(GRID), scores, SPEEDS)
    assert len(world.state.jobs[5].done) == 30


def test_a_job_that_does_not_report_what_is_to_stop_it_is_looked_at_once(mix_of):
    mix = mix_of(
        "jobs:\n- {script: train.py, steps: 270, stop: {metric: f1, patience: 2, every: 30}}\n"
    )
    world = swept(mix, np.ones((1, STEPS + 1)), SPEEDS)
    (job,) = world.state.jobs.values()
    assert len(job.done) == STEPS and {step for _, step in promoted(world)} == {30}


def test_a_job_on_a_plateau_ends(mix_of):
    mix = mix_of(
        "jobs:\n- {script: train.py, steps: 270, stop: {metric: mse, patience: 2, every: 30}}\n"
    )
    scores = np.array([[max(1.0, 10 - step / 10) for step in range(STEPS + 1)]])
    world = swept(mix, scores, SPEEDS)
    (job,) = world.state.jobs.values()
    assert len(job.done) == 150  # the best is reached at 90, and 120 and 150 are no better
    assert "no better mse in 2 measurements" in job.cut_short


def test_a_stop_by_a_metric_that_nobody_reports_stops_nothing_and_says_so_once(mix_of):
    stop = "stop: {metric: accuracy, patience: 2, every: 90}"
    mix = mix_of(f"jobs:\n- {{script: train.py, steps: 270, {stop}}}\n")
    world = swept(mix, np.ones((1, STEPS + 1)), SPEEDS)
    assert len(world.state.jobs[0].done) == STEPS
    passed = [e for e in world.journal.events if isinstance(e, events.MilestonePassed)]
    told = [describe(event, world.state) for event in passed if is_news(event, world.state)]
    (warning,) = [words for words in told if "nothing will stop it early" in words]
    assert "does not report 'accuracy', only mse" in warning
