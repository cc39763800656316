"""Records of two trainings, update by update."""

import json
from pathlib import Path

import pytest

from hadar_cli.trial.record import begin_alike, first_difference, read_record

BEGIN = [1.0, 10.0]


def record(path: Path, *updates: dict[str, list], begin=BEGIN, size=4):
    first = {"begin": begin, "size": size}
    entries = [{"open": "/data/words.bin"}, {"length": 6}, first, *updates]
    path.write_text("\n".join(json.dumps(entry) for entry in entries))
    return read_record(path)


def update(number: int, **other) -> dict[str, list]:
    weights = [1.0 + 0.1 * number, 10.0 + number]
    return {"batches": [f"b{number}"], "losses": [0.5], "lr": [0.1], "weights": weights, **other}


@pytest.mark.parametrize(
    ("other", "what"),
    [
        ({}, None),
        ({"losses": [0.5 * (1 + 1e-6)]}, None),
        ({"weights": [1.2 + 1e-9, 12.0 - 1e-8]}, None),
        ({"batches": []}, None),  # not seen, so not compared
        ({"batches": ["b3"]}, "batch"),
        ({"batches": ["b2", "b3"]}, "batch"),
        ({"lr": [0.05]}, "learning rate"),
        ({"losses": [0.501]}, "loss"),
        ({"losses": [0.5, 0.5]}, "loss"),
        ({"losses": [float("nan")]}, "loss"),
        ({"weights": [1.21, 12.0]}, "weights"),
    ],
)
def test_the_first_difference_beyond_float_error_is_named(tmp_path, other, what):
    one = record(tmp_path / "1", update(1), update(2), update(3))
    two = record(tmp_path / "2", update(1), update(2, **other))
    found = first_difference(one, two)
    assert (found and found.what) == what
    assert found is None or found.update == 2


def test_a_record_tells_where_it_began_what_it_read_and_how_long_it_means_to_be(tmp_path):
    one = record(tmp_path / "1", update(1))
    assert one.opened == [Path("/data/words.bin")]
    assert one.length == 6
    assert begin_alike(one, record(tmp_path / "2", update(1)))
    assert not begin_alike(one, record(tmp_path / "2", update(1), begin=[1.0, 10.1]))
    assert not begin_alike(one, record(tmp_path / "2", update(1), size=5))


def test_a_record_that_was_cut_short_is_read_as_far_as_it_goes(tmp_path):
    record(tmp_path / "1", update(1))
    with (tmp_path / "1").open("a") as file:
        file.write('\n{"batches": ["b')
    assert len(read_record(tmp_path / "1").updates) == 1
    assert read_record(tmp_path / "none").updates == []
