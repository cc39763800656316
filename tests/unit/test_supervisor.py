"""How long a copy may take before its supervisor ends it."""

import json

import pytest

from hadar_cli.node.supervisor import _limits


@pytest.fixture
def limits(tmp_path):
    def of(number: int):
        variables = {
            "HADAR_SECONDS_LEFT": "10",
            "HADAR_ISSUED_AT": "100",
            "HADAR_RESULT": str(tmp_path / "result.json"),
            "HADAR_PROGRESS": str(tmp_path / "progress.json"),
        }
        (tmp_path / f"{number}.json").write_text(json.dumps(variables))
        return _limits(tmp_path / f"{number}.json")

    return of


def test_a_later_order_has_its_time_and_some_for_saving(limits):
    assert not limits(2).are_passed(114.9)
    assert limits(2).are_passed(115.1)


def test_a_first_order_may_take_minutes_to_start(limits):
    assert not limits(1).are_passed(234.9)
    assert limits(1).are_passed(235.1)


def test_a_copy_that_trains_is_past_starting_and_has_its_time_from_then(limits, tmp_path):
    first = limits(1)
    (tmp_path / "progress.json").touch()
    assert not first.are_passed(150.0)  # seen to train for the first time
    assert not first.are_passed(164.9)
    assert first.are_passed(165.1)


def test_what_was_handed_in_or_collected_is_never_late(limits, tmp_path):
    (tmp_path / "result.json").touch()
    assert not limits(2).are_passed(1000.0)
