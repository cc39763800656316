"""The quality benchmark's own reckoning: who does how many steps, when, and what the page says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.quality import course
from bench.quality.course import (
    ALONE,
    LAB,
    Outcome,
    Recipe,
    meetings,
    run,
    shares,
    steps_alone,
    time_taken,
)
from bench.quality.page import judgement, page
from bench.quality.plan import (
    DEFAULT,
    HELD_OUT,
    JUDGED,
    PLAIN,
    STEPS,
    UNFORKED,
    Task,
    task,
    unforked_like,
)
from bench.quality.results import Kept, Results
from bench.quality.scheduled import fold, forked_in_mix, merges_in_mix, steps_in_mix
from hadar_cli.core import events
from hadar_cli.core.estimates.merging import solo_steps
from hadar_cli.core.model import Job, MergeRules, Mix, Node
from hadar_cli.runs.store import RunFacts
from hadar_cli.workloads import weather


@pytest.fixture(autouse=True)
def weather_script_as_it_was() -> Iterator[None]:
    """The benchmark changes a workload's module for good, which later tests must not see."""
    before = dict(vars(weather))
    yield
    vars(weather).update(before)
    course._prepared.cache_clear()


SPEEDS = st.lists(st.floats(0.05, 10.0), min_size=1, max_size=8)


@given(st.integers(0, 500), SPEEDS)
def test_shares_add_up_and_are_within_a_step_of_the_speeds(total: int, speeds: list[float]) -> None:
    counts = shares(total, speeds)
    assert sum(counts) == total
    for count, speed in zip(counts, speeds, strict=True):
        assert abs(count - total * speed / sum(speeds)) < 1


@given(st.integers(1, 500), st.integers(1, 100), st.floats(0, 1))
def test_every_step_is_done_once(steps: int, every: int, solo: float) -> None:
    recipe = Recipe("any", MergeRules(solo=solo), every)
    counts = list(meetings(recipe, steps))
    assert sum(map(sum, counts)) == steps
    assert sum(count > 0 for count in counts[0]) == 1, "the first steps are one device's"
    assert counts[0][LAB.index(1.0)] == solo_steps(recipe.rules, steps, others_idle=True)


def test_time_is_counted_in_steps_of_the_fastest_device() -> None:
    forked = Recipe("any", MergeRules(solo=0.1), every=30)
    assert time_taken(forked, 100) == pytest.approx(10 + 90 / sum(LAB) * 1.05)
    assert steps_alone(forked, 100) == round(10 + 90 / sum(LAB) * 1.05)
    assert time_taken(Recipe("one", speeds=ALONE), 100) == pytest.approx(100)


def test_a_job_stopped_between_rounds_is_the_same_as_one_never_stopped(tmp_path: Path) -> None:
    whole = Recipe("whole", speeds=ALONE, every=100)
    parts = replace(whole, every=2)
    assert run("weather", whole, 6, 1, tmp_path) == run("weather", parts, 6, 1, tmp_path)


def test_a_forked_training_repeats_and_depends_on_its_seed_and_rules(tmp_path: Path) -> None:
    def loss(recipe: Recipe, seed: int) -> float:
        return run("weather", recipe, 12, seed, tmp_path).loss

    forked = Recipe("forked", MergeRules(warmup=0.0), every=6)
    first = loss(forked, 1)
    assert loss(forked, 1) == first
    others = (
        loss(forked, 2),
        loss(replace(forked, rules=MergeRules(lr_scale="none")), 1),
        loss(replace(forked, base_lr=2.0), 1),
    )
    assert first not in others and len(set(others)) == 3


def test_what_was_measured_is_kept_whatever_the_recipe_is_called(tmp_path: Path) -> None:
    one = Task("weather", DEFAULT, 600, 1)
    Results(tmp_path / "r.json").add(one, Outcome(0.5, 0.5, 100.0))
    again = Results(tmp_path / "r.json")
    assert again[replace(one, recipe=replace(DEFAULT, name="other"))] == Outcome(0.5, 0.5, 100.0)
    assert replace(one, seed=2) not in again
    assert replace(one, recipe=PLAIN) not in again


RIVALS = {"plain mean": 2.0, "fastest alone": 1.5}


def judged(tmp_path: Path, losses: dict[str, float]) -> Results:
    results = Results(tmp_path / "r.json")
    for recipe in JUDGED:
        for workload in STEPS:
            for seed in HELD_OUT:
                pair = (losses[recipe.name], task(workload, recipe, seed))
                other = (losses["unforked"], unforked_like(workload, recipe, seed))
                for loss, one in (pair, other):
                    if one not in results:  # a job that the mix does not fork is an unforked one
                        results.add(one, Outcome(loss * seed, loss * seed, 1.0))
    return results


def test_the_verdict_counts_workloads(tmp_path: Path) -> None:
    losses = {"unforked": 1.0, "HadarE in M-5": 1.01, "HadarE": 1.4} | RIVALS
    text = judgement(judged(tmp_path, losses), HELD_OUT)
    assert "in M-5 5 of 5, all five devices on one job 0 of 5, the plain mean 0 of 5." in text
    assert "in equal time: 5 of 5" in text and "not been measured" not in text
    assert " | 1.400 ± 0.000 | 2.000 ± 0.000 | 1.500 ± 0.000 |" in text


def test_a_worse_default_is_not_called_good(tmp_path: Path) -> None:
    losses = {"unforked": 1.0, "HadarE in M-5": 1.2, "HadarE": 1.6} | RIVALS
    text = judgement(judged(tmp_path, losses), HELD_OUT)
    unforked = sum(not any(forked_in_mix(w, seed) for seed in HELD_OUT) for w in STEPS)
    assert 0 < unforked < 5
    assert f"HadarE in M-5 {unforked} of 5" in text and "in equal time: 0 of 5" in text


def test_a_ratio_is_of_mean_losses(tmp_path: Path) -> None:
    results = Results(tmp_path / "r.json")
    for seed, (unforked, hadare) in enumerate(((1.0, 3.0), (3.0, 1.0)), start=1):
        for recipe, loss in ((UNFORKED, unforked), (DEFAULT, hadare)):
            one = task("weather", recipe, seed)
            results.add(one, Outcome(loss, loss, 1.0))
    # Leaving out either seed gives 1/3 or 3: half their distance is the standard error.
    text = judgement(results, (1, 2))
    assert "| MM | 2.0000 ± 1.4142 |" in text and "| 1.000 ± 1.333 | - | - |" in text


def test_the_page_leaves_open_what_was_not_measured(tmp_path: Path) -> None:
    text = page(Kept.beside(tmp_path / "none.json"))
    assert "| - | - | - | - |\n| LM | - |" in text
    assert "## Time to quality\n\nNot measured yet." in text
    assert "Seeds 11, 12, 13, 14, 15 have not been measured in full." in text


def test_the_mix_is_trained_as_real_runs_did_it() -> None:
    for workload in STEPS:
        for seed in HELD_OUT:
            assert sum(map(sum, merges_in_mix(workload, seed))) == steps_in_mix(workload)


def test_merges_are_read_from_a_journal() -> None:
    job = Job(0, "weather", 100, 8, workload="weather")
    facts = RunFacts("r", Mix("m", (job,)), (Node("a", "local"), Node("b", "local")), "", "")
    slices = {"one": ((0, 10),), "two": ((10, 14),), "three": ((14, 20),), "four": ((20, 30),)}
    happened: list[events.Event] = []
    for (attempt, steps), device in zip(slices.items(), ("a", "b:0", "b:1", "a"), strict=True):
        happened.append(events.CopyStarted(0.0, attempt, 0, 0, device, 1, 0, steps, 1.0))
        done = sum(end - first for first, end in steps)
        happened.append(events.CopyFinished(1.0, attempt, done, steps, 0.0, 1.0, 0.0, "steps"))
    for generation, accepted in ((1, ("one", "two", "three")), (2, ("four",))):
        happened.append(events.WeightsMerged(2.0, 0, generation, "", accepted))
    assert fold(facts, happened) == {"weather": [[10, 10], [10, 0]]}
