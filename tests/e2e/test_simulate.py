"""``hadar simulate`` as users meet it: a process, its output, its exit code."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hadar_cli.core.events import CopyFinished, CopyStarted
from hadar_cli.runs.store import FileJournal, RunFacts, RunStore, find_run, read_journal
from hadar_cli.simulation.executor import Costs
from hadar_cli.simulation.fitting import scenario_like
from tests.support.worlds import make_mix, make_nodes, make_world

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "hadar_cli.cli.main"]
TABLE = {
    kind: {f"('{model}', {gang})": {"null": rate * gang * fit} for model, fit in fits.items()}
    for kind, rate, gang, fits in (
        ("v100", 10.0, 1, {"A": 1.0, "B": 0.8}),
        ("k80", 2.0, 1, {"A": 1.0, "B": 2.0}),
    )
}
TRACE = "A\tpython3 a.py\t-n\t1\t{steps}\t{at}\t1\n"
CSV = """job_id,arrival_s,model,num_gpus,total_steps,tput_v100,tput_k80
0,0,A,1,6000,10,2
1,0,B,1,-5,8,4
2,0,C,64,100,8,4
3,50,B,2,9000,16,8
"""
KEYS = {
    "policy",
    "ttd_s",
    "mean_jct_s",
    "median_jct_s",
    "cru",
    "gru",
    "lower_bound_s",
    "rounds",
    "restarts",
    "changed_rounds",
    "decision_ms",
    "wall_s",
    "unfinished",
}


def simulate(*arguments: str, cwd: Path, path: str = "") -> subprocess.CompletedProcess[str]:
    python_path = os.pathsep.join(filter(None, (str(ROOT), path)))
    environment = {**os.environ, "PYTHONPATH": python_path, "NO_COLOR": "1"}
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.fixture
def desk(tmp_path: Path) -> Path:
    (tmp_path / "rates.json").write_text(json.dumps(TABLE))
    lines = [TRACE.format(steps=3000 * (i + 1), at=200.0 * i) for i in range(4)]
    (tmp_path / "jobs.trace").write_text("".join(lines))
    (tmp_path / "jobs.csv").write_text(CSV)
    return tmp_path


def test_all_policies_side_by_side(desk: Path) -> None:
    command = ("simulate", "jobs.trace", "--throughputs", "rates.json", "--cluster", "v100:1,k80:2")
    answer = simulate(*command, "--policy", "all", "--json", cwd=desk)
    assert answer.returncode == 0, answer.stderr
    content = json.loads(answer.stdout)
    assert (content["jobs"], content["devices"], content["slot_s"]) == (4, 3, 360.0)
    assert {p["policy"] for p in content["policies"]} >= {"hadar", "hadare", "gavel", "yarn-cs"}
    for result in content["policies"]:
        assert result.keys() >= KEYS
        assert result["unfinished"] == 0
        assert result["ttd_s"] >= result["lower_bound_s"] > 0
        assert 0 < result["cru"] <= result["gru"] <= 1
        assert 0 <= result["changed_rounds"] <= 1
    table = simulate(*command, "--policy", "hadar:reserve=0.9,gavel", cwd=desk)
    assert table.returncode == 0, table.stderr
    assert "hadar:reserve=0.9" in table.stdout and "Jobs done" in table.stdout
    assert "\x1b" not in table.stdout and not table.stderr


def test_bad_lines_are_reported_and_the_rest_is_used(desk: Path) -> None:
    answer = simulate("simulate", "jobs.csv", "--cluster", "v100:2,k80:2", "--json", cwd=desk)
    assert answer.returncode == 0, answer.stderr
    assert "jobs.csv:3: total_steps: is -5" in answer.stderr
    assert "jobs.csv:4: 'C' asks for 64 GPUs; the cluster has 4" in answer.stderr
    content = json.loads(answer.stdout)
    assert content["jobs"] == 2
    assert [problem["line"] for problem in content["left_out"]] == [3, 4]
    assert [p["policy"] for p in content["policies"]] == ["hadar"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ((), "name a trace or a mix"),
        (("job.trace", "--cluster", "v100:1"), "did you mean jobs.trace"),
        (("jobs.csv",), "--cluster"),
        (("jobs.csv", "--cluster", "v100:2,k81:1"), "did you mean 'k80'"),
        (("jobs.csv", "--cluster", "v100"), "KIND:COUNT"),
        (("jobs.csv", "--cluster", "v100:1", "--policy", "hadr"), "did you mean 'hadar'"),
        (("jobs.csv", "--cluster", "v100:1", "--policy", "hadar:reserv=1"), "'reserve'"),
        (("rates.json", "--cluster", "v100:1"), "missing columns"),
        (("jobs.csv", "--cluster", "v100:1", "-n", "nodes.toml"), "cannot stand beside"),
        (("jobs.csv", "--cluster", "v100:1", "--free-sizes"), "needs Sia's profiles"),
        (("jobs.csv", "--cluster", "v100:1", "--throughputs", "."), "holds no profiles"),
        (("jobs.csv", "--cluster", "v100:1", "--blind", "--noise", "0.5"), "--noise"),
        (("jobs.csv", "--cluster", "v100:1", "--noise", "nan"), "not a finite number"),
        (("jobs.csv", "--cluster", "v100:1", "--slot", "inf"), "not a finite number"),
        (("jobs.csv", "--cluster", "v100:1", "--policy", "hadar:reserve=2"), "policy.reserve"),
        (
            ("jobs.csv", "--cluster", "v100:1", "--blind", "--policy", "hadare"),
            "hadare forks jobs, so it always knows",
        ),
    ],
)
def test_bad_input_is_refused_with_a_way_out(
    desk: Path, arguments: tuple[str, ...], complaint: str
) -> None:
    answer = simulate("simulate", *arguments, cwd=desk)
    assert answer.returncode == 2
    assert complaint in answer.stderr and "Traceback" not in answer.stderr


def test_a_mix_on_an_inventory_goes_by_its_own_policy_and_slot(tmp_path: Path) -> None:
    answer = simulate(
        "simulate",
        str(ROOT / "mixes/quickstart.yaml"),
        "-n",
        str(ROOT / "nodes.toml"),
        "--json",
        cwd=tmp_path,
    )
    assert answer.returncode == 0, answer.stderr
    content = json.loads(answer.stdout)
    assert [p["policy"] for p in content["policies"]] == ["hadare"]
    assert content["slot_s"] < 360
    assert (content["restart_s"], content["sync_s"]) == (2.0, 0.2)  # no GPUs: as local processes
    assert content["forecast"]["basis"] == "speeds by the formula alone, nothing measured"
    assert content["forecast"]["ttd_s"] > 0


def replay(run: str, folder: Path) -> dict[str, Any]:
    """The run as it happened and on paper, under its own policy alone."""
    answer = simulate("replay", run, "--policy", "hadare", "--json", cwd=folder)
    assert answer.returncode == 0, answer.stderr
    content: dict[str, Any] = json.loads(answer.stdout)
    return content


def test_a_run_is_simulated_as_it_was(tmp_path: Path) -> None:
    mix, nodes = make_mix([900, 500, 700]), make_nodes({"x": 1.0, "y": 0.3})
    store = RunStore.create(tmp_path / "runs", RunFacts("past", mix, nodes, "then", "0"))
    journal = FileJournal(store.journal_path)
    world = make_world(mix, nodes, costs=Costs(1.5, 0.25), journal=journal)
    world.loop.run()
    journal.close()
    content = replay("past", tmp_path)
    assert (content["start_s"], content["sync_s"]) == pytest.approx((1.5, 0.25))
    real, own = content["policies"]
    assert (content["run"], real["ttd_s"]) == ("past", pytest.approx(world.state.now))
    assert own["ttd_s"] == pytest.approx(world.state.now, rel=0.02)
    words = simulate("replay", "past", "--policy", "hadare", cwd=tmp_path).stdout
    assert "run past's own speeds and costs" in words and "start 1.5 s" in words and " %" in words


NODES = """
[[node]]
name = "fast"
host = "local"
[[node]]
name = "slow"
host = "local"
emulate = { speed = 0.5 }
"""
MIX = """
slot_s: 3
jobs:
  - {script: plain_script.py, name: one, steps: 500}
  - {script: plain_script.py, name: two, steps: 300}
"""


def test_a_real_run_is_fitted_by_what_its_own_journal_says(tmp_path: Path) -> None:
    (tmp_path / "nodes.toml").write_text(NODES)
    (tmp_path / "mix.yaml").write_text(MIX)
    shutil.copy(ROOT / "tests/support/plain_script.py", tmp_path)
    ran = simulate("run", "mix.yaml", "--name", "real", "--json", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    content = replay("real", tmp_path)
    real, own = content["policies"]
    assert real["ttd_s"] == pytest.approx(json.loads(ran.stdout)["ttd_s"])
    assert own["unfinished"] == 0
    # How long it takes on paper depends on how busy this machine was; what it rests on does not.
    store = find_run(tmp_path / "runs", "real")
    happened = read_journal(store.journal_path)
    copies = [e for e in happened if isinstance(e, CopyFinished)]
    started = {e.attempt: e for e in happened if isinstance(e, CopyStarted)}
    scenario, _ = scenario_like(store.facts, happened)
    for job in scenario.mix.jobs:
        for device in {started[c.attempt].device for c in copies if c.steps}:
            assert scenario.speeds(True).gang(job.id, (device,)) == pytest.approx(
                _measured(copies, started, device)
            )
    cold = {round(c.start_s, 9) for c in copies if not c.warm}
    assert min(cold) / 3 <= content["start_s"] <= max(cold)
    assert sum(c.steps for c in copies) == 800


def _measured(copies: list[CopyFinished], started: dict[str, CopyStarted], device: str) -> float:
    """Steps per second of everything that was trained there; both jobs are of one class."""
    mine = [c for c in copies if c.steps and started[c.attempt].device == device]
    return sum(c.steps for c in mine) / sum(c.train_s for c in mine)


def test_a_device_that_was_lost_is_lost_again_on_paper(tmp_path: Path) -> None:
    mix, nodes = make_mix([900, 500]), make_nodes({"x": 1.0, "y": 0.9})
    store = RunStore.create(tmp_path / "runs", RunFacts("unlucky", mix, nodes, "then", "0"))
    journal = FileJournal(store.journal_path)
    world = make_world(mix, nodes, costs=Costs(1.5, 0.25), journal=journal)
    world.executor.lose_device("y", at=20.0)
    world.loop.run()
    journal.close()
    _, result = replay("unlucky", tmp_path)["policies"]
    assert result["unfinished"] == 0
    assert result["ttd_s"] == pytest.approx(world.state.now, rel=0.05)
    lucky = make_world(mix, nodes, costs=Costs(1.5, 0.25))
    lucky.loop.run()
    assert result["ttd_s"] > 1.2 * lucky.state.now


def test_a_bar_shows_how_far_a_simulation_is_to_whoever_looks(desk: Path) -> None:
    command = ("simulate", "jobs.trace", "--throughputs", "rates.json", "--cluster", "v100:1,k80:2")
    main, terminal = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, *command, "--json"],
        cwd=desk,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm", "COLUMNS": "100"},
        stdout=subprocess.PIPE,
        stderr=terminal,
    ) as process:
        os.close(terminal)
        assert process.stdout is not None
        content = json.loads(process.stdout.read())
    assert content["policies"][0]["unfinished"] == 0  # the bar is not in it
    painted = os.read(main, 65536).decode()
    os.close(main)
    assert "hadar" in painted and "/4" in painted and "jobs" in painted


PLUGIN = '''
"""Last come, first served."""
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hadar_cli.core.policies.gangs.queue import Decision, fit_in_order


@dataclass(frozen=True, slots=True)
class Lifo:
    name: ClassVar[str] = "lifo"
    mercy: float = 0.5

    def allocate(self, queue, memory=None):
        order = np.argsort(-queue.arrived_s, kind="stable")
        return Decision(fit_in_order(queue, order, queue.capacity.tolist()))

    def refill(self, queue, memory=None):
        return {}
'''


def test_an_installed_package_may_bring_a_policy(desk: Path) -> None:
    site = desk / "site"
    (site / "lifo-1.0.dist-info").mkdir(parents=True)
    (site / "lifo.py").write_text(PLUGIN)
    (site / "lifo-1.0.dist-info/METADATA").write_text("Name: lifo\nVersion: 1.0\n")
    (site / "lifo-1.0.dist-info/entry_points.txt").write_text("[hadar.policies]\nlifo = lifo:Lifo")
    listed = simulate("policies", "--json", cwd=desk, path=str(site))
    about = {policy["name"]: policy for policy in json.loads(listed.stdout)}
    assert about["lifo"]["about"].startswith("Last come, first served")
    assert [field["name"] for field in about["lifo"]["fields"]] == ["mercy"]
    assert {"hadar", "gavel", "gavel-makespan", "hadare"} <= about.keys()
    command = ("simulate", "jobs.csv", "--cluster", "v100:2", "--policy", "lifo:mercy=1", "--json")
    answer = simulate(*command, cwd=desk, path=str(site))
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["policies"][0]["unfinished"] == 0
