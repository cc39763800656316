"""``hadar replay`` and the forecast, as users meet them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.test_commands import hadar
from tests.support.worlds import make_mix, make_nodes, make_world
from tests.unit.test_forecast import facts_of, write_run


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A directory with one finished run, `past`, and one that has not begun, `empty`."""
    mix, nodes = make_mix([900, 500, 700]), make_nodes({"x": 1.0, "y": 0.5})
    world = make_world(mix, nodes)
    world.loop.run()
    write_run(tmp_path / "runs", facts_of(mix, nodes), world.journal.events)
    write_run(tmp_path / "empty", facts_of(mix, nodes), world.journal.events[:1])
    return tmp_path


def test_a_run_is_replayed_under_other_policies(runs: Path) -> None:
    answer = hadar("replay", "past", "--policy", "yarn-cs,hadar:reserve=0.5", cwd=runs)
    assert answer.returncode == 0, answer.stderr
    for word in ("as it happened", "on paper", "yarn-cs", "hadar:reserve=0.5", "same policy"):
        assert word in answer.stdout

    told = json.loads(hadar("replay", "--policy", "yarn-cs", "--json", cwd=runs).stdout)
    real, own, other = told["policies"]
    assert (real["policy"], real["simulated"]) == ("hadare", False)
    assert (own["policy"], own["simulated"], own["ttd_change"]) == ("hadare", True, 0.0)
    assert own["ttd_s"] == pytest.approx(real["ttd_s"], rel=0.05)
    assert told["simulation_gap"] == pytest.approx(own["ttd_s"] / real["ttd_s"] - 1)
    assert other["ttd_s"] > own["ttd_s"]  # whole jobs, first come, first served


def test_a_run_that_trained_nothing_cannot_be_replayed(runs: Path) -> None:
    answer = hadar("replay", "--runs-dir", "empty", cwd=runs)
    assert answer.returncode == 2
    assert "has trained nothing that could be replayed" in answer.stderr


def test_an_unknown_policy_is_the_users_to_mend(runs: Path) -> None:
    answer = hadar("replay", "past", "--policy", "gavle", cwd=runs)
    assert answer.returncode == 2
    assert "did you mean 'gavel'?" in answer.stderr


def test_a_dry_run_tells_what_is_to_come(tmp_path: Path) -> None:
    (tmp_path / "nodes.toml").write_text(
        '[defaults]\nhost = "local"\nprice_per_hour = 1.5\n'
        '[[node]]\nname = "a"\nemulate = { speed = 0.5 }\n[[node]]\nname = "b"\n'
    )
    (tmp_path / "mix.yaml").write_text("jobs: [{workload: weather, count: 2}]\n")
    answer = hadar("run", "mix.yaml", "--dry-run", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    for word in ("Forecast", "all jobs (TTD)", "the bound of", "Cost: ", "Without: a ", "formula"):
        assert word in answer.stdout
    plan = json.loads(hadar("run", "mix.yaml", "--dry-run", "--json", cwd=tmp_path).stdout)
    forecast = plan["forecast"]
    assert forecast["ttd_s"] > plan["lower_bound_s"] > 0
    assert forecast["jct_s"].keys() == {"weather-1", "weather-2"}
    assert [node["node"] for node in forecast["nodes"]] == ["a", "b"]
    assert forecast["rounds"][0]["stints"] == plan["first_round"] != []
    assert forecast["cost"] == pytest.approx(3.0 * forecast["ttd_s"] / 3600)
