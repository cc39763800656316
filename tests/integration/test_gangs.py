"""Jobs that have several devices at once, for real: all steps count once, and nobody is left."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hadar_cli.core import events
from hadar_cli.core.reasons import Loss
from hadar_cli.core.state import RunState
from hadar_cli.runs.store import RunStore, find_run, read_journal
from tests.support.lab import PROFILES, running
from tests.support.strays import all_gone, living

SCRIPT = Path(__file__).parents[1] / "support" / "plain_script.py"
TESTBED = "\n".join(
    f'[[node]]\nname = "{one.name}"\nhost = "local"\nemulate = {{ speed = {one.speed} }}'
    for one in PROFILES["testbed"]
)
MIX = f"""
slot_s: 1.5
jobs:
  - {{name: two, script: "{SCRIPT}", steps: 50, batch_size: 8, gpus: 2}}
  - {{name: three, script: "{SCRIPT}", steps: 60, batch_size: 8, gpus: 3}}
  - {{name: one, script: "{SCRIPT}", steps: 30, batch_size: 8}}
  - {{name: some, script: "{SCRIPT}", steps: 30, batch_size: 8, gpus: 4, elastic: true}}
"""
# A slot in which all is done, so that whoever is seen at work is in the middle of an order.
SHARED = """
slot_s: 120
policy: hadar
jobs:
  - {workload: weather, steps: 120, gpus: 2}
"""


def hadar(*words: str, cwd: Path) -> subprocess.Popen[str]:
    code = "from hadar_cli.cli.main import main; main()"
    command = [sys.executable, "-c", code, *words]
    return subprocess.Popen(command, cwd=cwd, text=True, stdout=subprocess.PIPE, stderr=-2)


def finish(process: subprocess.Popen[str]) -> str:
    told, _ = process.communicate(timeout=240)
    assert process.returncode == 0, told
    return told


def journal_of(cwd: Path) -> tuple[RunStore, list[events.Event]]:
    store = find_run(cwd / "runs", "r")
    return store, list(read_journal(store.journal_path))


def check_steps(cwd: Path) -> list[events.Event]:
    """Every job has its steps, each counted once."""
    store, happened = journal_of(cwd)
    state = RunState(store.facts.mix.jobs)
    for event in happened:
        state.apply(event)
    assert all(len(job.done) == job.job.target_steps for job in state.jobs.values())
    return happened


@pytest.mark.parametrize("policy", ["hadar", "gavel", "gavel-makespan", "tiresias", "yarn-cs"])
def test_gangs_train_under_every_policy(policy, tmp_path):
    (tmp_path / "nodes.toml").write_text(TESTBED)
    (tmp_path / "mix.yaml").write_text(MIX)
    finish(hadar("run", "mix.yaml", "--policy", policy, "--no-live", "--name", "r", cwd=tmp_path))
    happened = check_steps(tmp_path)
    starts = [e for e in happened if isinstance(e, events.CopyStarted) and e.purpose == "train"]
    widths = {job: {len(e.devices) for e in starts if e.job == job} for job in range(4)}
    assert widths[0] == {2} and widths[1] == {3} and widths[2] == {1}
    assert not [e for e in happened if isinstance(e, events.CopyLost)]
    assert all_gone(tmp_path / "runs" / "r", 20.0)


def workers_of(attempts: list[str], cwd: Path) -> dict[str, int]:
    """The processes that train these attempts, as far as they are there."""
    found = {}
    for path in cwd.rglob("order.json"):
        if path.parent.name in attempts:
            worker = path.parents[2] / "workers" / json.loads(path.read_text())["worker"]
            if (worker / "worker.json").exists():
                known = json.loads((worker / "worker.json").read_text())
                found[path.parent.name] = known["worker"][0]
    return found


def members_at_work(cwd: Path, within_s: float = 120.0) -> dict[str, int]:
    """Rank 1 of a gang that makes progress, and its process."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        at_work = [path.parent.name for path in cwd.rglob("attempts/*/progress.json")]
        if found := workers_of([name for name in at_work if name.endswith(".1")], cwd):
            return found
        time.sleep(0.05)
    raise AssertionError("no gang has come to train")


@pytest.fixture(params=["local", "sshd"])
def inventory(request, tmp_path):
    if request.param == "local":
        (tmp_path / "nodes.toml").write_text("\n[[node]]".join(TESTBED.split("\n[[node]]")[:2]))
        yield tmp_path / "nodes.toml"
        return
    with running(tmp_path / "lab", count=2) as lab:
        shared = '[[node]]\nnetwork = "lab"\naddress = "127.0.0.1"'
        path = tmp_path / "nodes.toml"
        path.write_text(lab.inventory.read_text().replace("[[node]]", shared))
        yield path


def test_a_member_that_is_killed_costs_an_attempt_and_no_step(inventory, tmp_path):
    (tmp_path / "mix.yaml").write_text(SHARED)
    words = ("run", "mix.yaml", "-n", str(inventory), "--no-live", "--name", "r")
    head = hadar(*words, cwd=tmp_path)
    try:
        [(attempt, pid), *_] = members_at_work(tmp_path).items()
        os.kill(pid, signal.SIGKILL)
        finish(head)
    finally:
        head.kill()
    happened = check_steps(tmp_path)
    lost = [e for e in happened if isinstance(e, events.CopyLost)]
    assert [e.attempt for e in lost] == [attempt.removesuffix(".1")]
    assert lost[0].reason is Loss.EXITED and "its member on" in lost[0].why
    shares = [e.members for e in happened if isinstance(e, events.CopyFinished) and e.steps]
    assert shares and all(len(members) == 2 for members in shares)
    assert all_gone(tmp_path, 20.0)


def test_a_killed_heads_gang_is_taken_over_whole(tmp_path):
    (tmp_path / "nodes.toml").write_text("\n[[node]]".join(TESTBED.split("\n[[node]]")[:2]))
    (tmp_path / "mix.yaml").write_text(SHARED)
    head = hadar("run", "mix.yaml", "--no-live", "--name", "r", cwd=tmp_path)
    [attempt, *_] = members_at_work(tmp_path)
    os.kill(head.pid, signal.SIGKILL)
    head.communicate()
    finish(hadar("resume", "r", "--no-live", cwd=tmp_path))
    happened = check_steps(tmp_path)
    merged = [a for e in happened if isinstance(e, events.WeightsMerged) for a in e.accepted]
    assert attempt.removesuffix(".1") in merged
    assert len(living(tmp_path)) == 0


def test_hadare_shares_the_steps_of_a_job_that_asks_for_it(tmp_path):
    (tmp_path / "nodes.toml").write_text("\n[[node]]".join(TESTBED.split("\n[[node]]")[:2]))
    mix = "slot_s: 4\njobs:\n  - {workload: weather, steps: 60, mode: share}\n"
    (tmp_path / "mix.yaml").write_text(mix)
    finish(hadar("run", "mix.yaml", "--no-live", "--name", "r", cwd=tmp_path))
    happened = check_steps(tmp_path)
    starts = [e for e in happened if isinstance(e, events.CopyStarted) and e.purpose == "train"]
    assert len(starts[0].devices) == 2
    assert not [e for e in happened if isinstance(e, events.CopyLost)]
