"""The scripts in people's styles: each is one file, by hand and under hadar."""

import ast

import pytest

from bench.scripts.__main__ import LENGTHS, STYLES, by_hand
from bench.scripts.page import changed_lines, page


def test_every_script_has_a_length_and_there_are_twelve_at_least():
    assert {path.stem for path in STYLES.glob("*.py")} == LENGTHS.keys()
    assert len(LENGTHS) >= 12


@pytest.mark.parametrize("name", sorted(LENGTHS))
def test_few_lines_change_and_nothing_of_hadar_is_left_without_them(name):
    text = (STYLES / f"{name}.py").read_text()
    plain = by_hand(text)
    ast.parse(plain)
    ast.parse(text)
    assert "hadar" not in plain
    assert 2 <= changed_lines(text) <= 5


def measured(value, merges=0, handed_in=0):
    return {"value": value, "failed": None, "merges": merges, "bytes": handed_in}


def test_the_page_tells_rows_that_do_not_come_out():
    text = '"""A style."""\nx = 1  # hadar\n'
    tried = {"passed": 9, "warned": ["a check: odd"], "failed": []}
    same = {"hand": {"0": {"value": 0.5}}, "one": {"0": measured(0.5)}}
    results = {
        "right": {
            "try": {"0": tried},
            **same,
            "ssh": {"0": measured(0.5, 2, 3000), "1": measured(0.5, 1, 3000)},
        },
        "apart": {"hand": {"0": {"value": 0.5}}, "one": {"0": measured(0.6)}},
        "worse": {**same, "ssh": {"0": measured(0.4, 1, 10)}},
        "alone": {**same, "ssh": {"0": measured(0.5)}},
    }
    told = page(dict.fromkeys(results, text), results)
    assert (
        "| right | A style | 1 | ✓ 9, · 1 | 0.5 (1) | 0.5 (1) | 0 | 0.5 (2) | 3 | 2,000 |" in told
    )
    assert "| 0.1 | not run | not run | – |" in told
    assert "`apart` on one device is not as by hand: 0.1 apart" in told
    assert "`alone` over SSH was trained by one copy" in told
    assert "`worse` over SSH ends at 0.4, by hand with the same seeds at 0.5" in told
    assert "- `hadar try` warns of `right`: a check: odd." in told
    assert "- `right`" not in told
