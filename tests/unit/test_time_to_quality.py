"""The benchmark's time to quality: what a training takes on the lab, and when it is as good."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.quality.clock import INTERVALS, LINKS, Lab, Link
from bench.quality.costs import Costs, of_journal
from bench.quality.course import LAB, Outcome
from bench.quality.plan import DEFAULT, STEPS
from bench.quality.reached import LONGER, Case, Gain, gain, missing, table, train_for, verdict
from bench.quality.results import Kept, Results
from hadar_cli.core import events

COSTS = Costs(start_s=3.0, step_s=0.3, merge_s=0.5, checkpoint=2_000_000, gradients=500_000)
LAN, SLOW = LINKS[0], LINKS[-1]
STEPS_OF = STEPS["weather"]  # 600, of which 240 are a lone job's first ones


def test_a_merge_moves_all_weights_in_and_out_through_the_head():
    assert Lab(COSTS, LAN, 600).merge_s == 0.5
    assert Lab(COSTS, Link("wire", 1e6), 600).merge_s == pytest.approx(0.5 + 2 * 5 * 2.0)


def test_merges_are_as_rare_as_their_cost_asks_and_none_is_worth_more_than_it_wins():
    """0.5 s are 5 % of 10 s, in which all five do 93 steps."""
    found = Lab(COSTS, LAN, 600).forked(DEFAULT)
    assert (found.speeds, found.every) == (LAB, 160)
    often = Lab(replace(COSTS, merge_s=0.05), LAN, 600).forked(DEFAULT)
    assert often.every == INTERVALS[0]
    alone = Lab(replace(COSTS, step_s=0.01), SLOW, 600).forked(DEFAULT)
    assert alone.speeds == (1.0,)


def test_the_time_of_merged_copies_is_starts_steps_and_merges():
    lab, recipe = Lab(COSTS, LAN, 600), replace(DEFAULT, every=100)
    assert lab.merged_s(recipe, 200) == pytest.approx(3.0 + 200 * 0.3)
    trained_s = 240 * 0.3 + 110 * 0.3 / sum(LAB)
    assert lab.merged_s(recipe, 350) == pytest.approx(3.0 + trained_s + 2 * 0.5)
    shared_first = lab.merged_s(recipe, 350, solo_rate=10.0)
    assert shared_first == pytest.approx(3.0 + 24.0 + 110 * 0.3 / sum(LAB) + 2 * 0.5)


def test_shared_steps_pay_for_the_bytes_of_a_link():
    fast, slow = (Lab(COSTS, link, 600) for link in (LAN, SLOW))
    assert fast.alone_s() == pytest.approx(183.0)
    assert 183.0 / sum(LAB) < fast.shared_s() < 183.0 / 2 < 183.0 < slow.shared_s()
    assert fast.shares_to_its_end and not slow.shares_to_its_end
    assert fast.solo_rate() > 2 / 0.3 and slow.solo_rate() == pytest.approx(1 / 0.3)


# -- when a loss is reached ----------------------------------------------------------------------

MERGED = Lab(COSTS, Link("wire", 9e6), STEPS_OF)  # too slow for gradients, not for merges


def measured(case: Case, folder: Path, curves: dict[float, tuple[tuple[int, float], ...]]) -> Gain:
    """With curves by length, and 1.0 as what unforked training comes to."""
    kept = Kept.beside(folder / "quality.json")
    for seed in (1, 2):
        kept.quality.add(case.target(seed), Outcome(1.0, 1.0, 1.0))
        for longer, curve in curves.items():
            told = tuple((done, loss + 0.1 * (seed - 1.5)) for done, loss in curve)
            kept.curves.add(case.task(longer, seed), Outcome(told[-1][1], 1.0, 1.0, curve=told))
    return gain(case, (1, 2), Kept.beside(folder / "quality.json").curves, kept.quality)


@pytest.fixture
def case() -> Case:
    return Case("weather", 1.0, MERGED.link, MERGED)


def test_the_first_look_that_is_no_worse_counts(case, tmp_path):
    found = measured(case, tmp_path, {1.0: ((360, 1.5), (480, 1.0), (600, 0.9))})
    merged_s = MERGED.merged_s(case.recipe, 480)
    assert found.merge == pytest.approx(MERGED.alone_s() / merged_s)
    assert found.quality == pytest.approx(0.9) and found.seeds == 2
    assert found.share < found.merge < found.auto, "it shares only the first steps"


def test_a_longer_training_is_tried_where_one_as_long_does_not_get_there(case, tmp_path):
    short = {1.0: ((360, 1.5), (600, 1.1))}
    kept = Kept.beside(tmp_path / "quality.json")
    assert {task.steps for task in missing(case, (1, 2), kept.curves, kept.quality)} == {600}
    assert measured(case, tmp_path, short).merge is None, "it may get there yet"
    kept = Kept.beside(tmp_path / "quality.json")
    assert {task.steps for task in missing(case, (1, 2), kept.curves, kept.quality)} == {750}
    found = measured(case, tmp_path, short | {1.25: ((600, 1.1), (750, 0.99))})
    planned = replace(MERGED, steps=750)
    assert found.merge == pytest.approx(MERGED.alone_s() / planned.merged_s(case.recipe, 750))
    assert found.quality == pytest.approx(1.1), "of equal steps"


def test_what_no_length_reaches_is_never_reached(case, tmp_path):
    curves = {longer: ((round(600 * longer), 1.1),) for longer in LONGER}
    found = measured(case, tmp_path, curves)
    assert (found.merge, found.auto, found.seeds) == (0.0, 0.0, 2)
    kept = Kept.beside(tmp_path / "quality.json")
    assert not missing(case, (1, 2), kept.curves, kept.quality)


def test_exact_steps_need_no_training_to_be_judged(tmp_path):
    lab = Lab(COSTS, LAN, STEPS_OF)
    none = Results(tmp_path / "none.json")
    found = gain(Case("weather", 1.0, LAN, lab), (1, 2), none, none)
    assert found.merge is None and found.auto == found.share > 2.0


def test_training_goes_on_until_every_case_is_known(tmp_path):
    kept, asked = Kept.beside(tmp_path / "quality.json"), []
    costs = dict.fromkeys(STEPS, COSTS)
    best = dict.fromkeys(STEPS, 4.0)

    def train(tasks):
        asked.append({task.steps / STEPS[task.workload] for task in tasks})
        for task in tasks:
            loss = 0.9 if task.steps > STEPS[task.workload] else 1.1
            kept.curves.add(task, Outcome(loss, 1.0, 1.0, curve=((task.steps, loss),)))

    for workload in STEPS:
        for factor in (1.0, 4.0):
            lab = Lab(COSTS, LAN, STEPS[workload])
            for seed in (1, 2):
                target = Case(workload, factor, LAN, lab).target(seed)
                kept.quality.add(target, Outcome(1.0, 1.0, 1.0))
    train_for(costs, best, (1, 2), train, kept.curves, kept.quality)
    assert asked == [{1.0}, {1.25}]


def test_the_table_says_what_is_not_known_and_what_never_comes(case):
    gains = {
        case: Gain(None, 1.5, None, None, 0),
        replace(case, link=LAN): Gain(0.0, 2.25, 2.25, 1.1, 5),
    }
    assert "| MM, rate x 1 | - / 1.50 / - | never / 2.25 / 2.25 |" in table(gains, 5)
    assert "| - / 1.50 / - | never / 2.25 / 2.25 (5) |" in table(gains, 6)
    assert "LAN 2 x or more: 1 of 1; 100 Mb/s 1.6 x or more: 0 of 1" in verdict(
        {**gains, replace(case, link=LINKS[2]): gains[case]}
    )


def test_costs_are_read_from_a_run():
    happened: list[events.Event] = [
        events.CopyStarted(2.0, "a", 0, 1, "rtx3090", 1, 0, ((0, 10),)),
        events.CopyFinished(9.0, "a", 10, ((0, 10),), 1.5, 4.0, 0.1, "steps"),
        events.CopyStarted(2.5, "b", 0, 2, "t4", 1, 0, ((10, 14),)),
        events.CopyFinished(9.0, "b", 4, ((10, 14),), 1.5, 4.0, 0.1, "steps"),
        events.WeightsMerged(10.0, 0, 1, "x", ("a", "b"), bytes=3000),
    ]
    found = of_journal(happened, [0.2, 0.9, 0.3], gradients=1000)
    assert found == Costs(3.5, 0.4, 0.3, 3000, 1000)
