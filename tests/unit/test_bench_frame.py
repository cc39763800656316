"""Benchmarks are compared by their ratios, and chance is not called a regression."""

import pytest

from bench.frame import Run, beside, changes, read, write


def test_a_ratio_above_one_means_that_ours_is_better():
    seconds = beside("x", "s", [1.0, 2.0, 4.0], "rival", [2.0, 4.0, 2.0])
    assert (seconds.ratio, seconds.worst, seconds.best) == (2.0, 0.5, 2.0)
    rates = beside("x", "MB/s", [300.0], "limit", [600.0], more_is_better=True)
    assert rates.ratio == 0.5


def change(before, now):
    limit = [1.0]
    rows = {"bench": [beside("x", "s", now, "limit", limit)]}
    known = {"bench": [beside("x", "s", before, "limit", limit)]}
    return next(changes(known, rows))


@pytest.mark.parametrize(
    ("before", "now", "is_worse"),
    [
        ([1.0], [1.2], False),  # within a fifth
        ([1.0], [1.5], True),
        ([1.0, 1.0, 1.6], [1.5, 1.5, 1.5], False),  # the baseline itself was as slow at times
        ([1.0, 1.1, 1.2], [1.5, 1.5, 1.1], False),  # at its best as quick as ever
        ([1.0, 1.1, 1.2], [1.5, 1.6, 1.7], True),
    ],
)
def test_only_what_lies_outside_both_spreads_got_worse(before, now, is_worse):
    assert change(before, now).is_worse is is_worse


def test_cases_that_only_one_run_has_are_not_compared():
    rows = [beside("new", "s", [1.0], "limit", [1.0])]
    assert not list(changes({"bench": []}, {"bench": rows, "other": rows}))


def test_a_run_is_read_as_it_was_written(tmp_path):
    run = Run("abc", "today", "this", {"bench": [beside("x", "s", [1.0], "limit", [2.0])]})
    write(tmp_path / "run.json", run)
    assert read(tmp_path / "run.json") == run
