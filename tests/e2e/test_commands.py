"""The command line as users meet it: a process, its output, its exit code."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "tests/support/plain_script.py"
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
name: small
slot_s: 1
jobs:
  - {script: plain_script.py, name: one, steps: 420}
  - {script: plain_script.py, name: two, steps: 230}
"""
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
COMMAND = [sys.executable, "-m", "hadar_cli.cli.main"]


def hadar(*arguments: str, cwd: Path, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=cwd,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.fixture
def lab(tmp_path: Path) -> Path:
    """A directory with an inventory of two local devices and a mix of two short jobs."""
    (tmp_path / "nodes.toml").write_text(NODES)
    (tmp_path / "mix.yaml").write_text(MIX)
    shutil.copy(SCRIPT, tmp_path)
    return tmp_path


def steps_of(lab: Path, run: str) -> dict[str, tuple[int, int]]:
    answer = hadar("report", run, "--json", cwd=lab)
    assert answer.returncode == 0, answer.stderr
    jobs = json.loads(answer.stdout)["jobs"]
    return {job["name"]: (job["steps_done"], job["steps_target"]) for job in jobs}


def workers_in(directory: Path) -> list[int]:
    """Processes whose environment carries a worker's tag below ``directory``."""
    tag = f"HADAR_WORKER={directory.resolve()}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if tag in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


# -- looking around ------------------------------------------------------------------------------


def test_help_names_the_three_commands_first_and_gives_examples(tmp_path: Path) -> None:
    answer = hadar("--help", cwd=tmp_path)
    assert answer.returncode == 0
    places = [answer.stdout.index(f"│ {name} ") for name in ("run", "profile", "report", "resume")]
    assert places == sorted(places)
    assert "hadar run mixes/quickstart.yaml" in answer.stdout


def test_version(tmp_path: Path) -> None:
    answer = hadar("--version", cwd=tmp_path)
    assert (answer.returncode, answer.stdout.split()[0]) == (0, "hadar")


def test_an_unknown_command_gets_the_nearest_name(tmp_path: Path) -> None:
    answer = hadar("rum", cwd=tmp_path)
    assert answer.returncode == 2
    assert "'run'" in answer.stderr and "Traceback" not in answer.stderr


def test_policies_and_nodes_as_json(lab: Path) -> None:
    policies = json.loads(hadar("policies", "--json", cwd=lab).stdout)
    hadare = next(policy for policy in policies if policy["name"] == "hadare")
    assert {"name": "stickiness", "type": "float", "default": 0.02} in hadare["fields"]
    nodes = json.loads(hadar("nodes", "list", "--json", cwd=lab).stdout)
    assert [(node["name"], node["emulated_speed"]) for node in nodes] == [
        ("fast", None),
        ("slow", 0.5),
    ]


def test_profile_shows_estimates_without_training(lab: Path) -> None:
    answer = hadar("profile", "nodes", "--workload", "weather", "--json", cwd=lab)
    assert answer.returncode == 0, answer.stderr
    profile = json.loads(answer.stdout)
    assert [pair["device"] for pair in profile["rates"]] == ["fast", "slow"]
    assert (
        profile["rates"][0]["estimated_steps_per_s"] > profile["rates"][1]["estimated_steps_per_s"]
    )


# -- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "where", "hint"),
    [
        ("slot_s", "slot_z", "mix.yaml:3", "slot_s"),
        ("slot_s: 1", "slot_s: 1\nslot_s: 2", "mix.yaml:4", "slot_s"),
        ("script: plain_script.py, name: one", "workload: wether", "mix.yaml:5", "weather"),
        ("plain_script.py, name: two", "plain_scrip.py, name: two", "mix.yaml:6", "plain_scrip.py"),
        ("slot_s: 1", "slot_s: 1\npolicy: hadarr", "mix.yaml", "hadare"),
    ],
)
def test_bad_input_is_refused_with_its_place(
    lab: Path, old: str, new: str, where: str, hint: str
) -> None:
    (lab / "mix.yaml").write_text(MIX.replace(old, new, 1))
    answer = hadar("run", "mix.yaml", cwd=lab)
    assert answer.returncode == 2
    assert f"error: {where}" in answer.stderr
    assert hint in answer.stderr
    assert "Traceback" not in answer.stderr
    assert not (lab / "runs").exists()


def test_a_missing_mix_gets_the_nearest_file(lab: Path) -> None:
    answer = hadar("run", "mxi.yaml", cwd=lab)
    assert answer.returncode == 2
    assert "mxi.yaml: there is no such file" in answer.stderr and "mix.yaml?" in answer.stderr


def test_resuming_without_a_run_says_so(lab: Path) -> None:
    answer = hadar("resume", cwd=lab)
    assert answer.returncode == 2 and "there is no run" in answer.stderr


# -- planning ------------------------------------------------------------------------------------


def test_dry_run_plans_and_starts_nothing(lab: Path) -> None:
    answer = hadar("run", "mix.yaml", "--dry-run", cwd=lab)
    assert answer.returncode == 0, answer.stderr
    for words in ("fast", "slow", "420", "runs code on the nodes", "nothing was started"):
        assert words in answer.stdout
    plan = json.loads(hadar("run", "mix.yaml", "--dry-run", "--json", cwd=lab).stdout)
    assert [job["steps_target"] for job in plan["jobs"]] == [420, 230]
    assert plan["lower_bound_s"] > 0 and plan["first_round"]
    assert not (lab / "runs").exists()


def test_init_writes_what_run_accepts(tmp_path: Path) -> None:
    assert hadar("init", cwd=tmp_path).returncode == 0
    again = hadar("init", cwd=tmp_path)
    assert again.returncode == 2 and "--yes" in again.stderr
    answer = hadar("run", "mixes/quickstart.yaml", "--dry-run", cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr
    assert "preset auto: tiny" in answer.stdout


# -- training ------------------------------------------------------------------------------------


def test_a_workload_trains_to_its_exact_steps(lab: Path) -> None:
    (lab / "mix.yaml").write_text(
        "slot_s: 3\njobs:\n  - {workload: recommender, steps: 60, preset: tiny}\n"
    )
    answer = hadar("run", "mix.yaml", "--name", "real", "--json", cwd=lab)
    assert answer.returncode == 0, answer.stderr
    report = json.loads(answer.stdout)
    assert report["state"] == "finished"
    (job,) = report["jobs"]
    assert (job["steps_done"], job["steps_target"]) == (60, 60)
    assert job["value"] < job["untrained_value"]
    assert (lab / "runs/real/models/recommender.safetensors").stat().st_size > 0
    assert workers_in(lab) == []


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_a_run_cut_short_resumes_to_its_exact_steps(
    lab: Path, signum: signal.Signals, code: int
) -> None:
    head = subprocess.Popen(
        [*COMMAND, "run", "mix.yaml", "--name", "cut"],
        cwd=lab,
        env=ENVIRONMENT,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for_a_merge(lab / "runs/cut/journal.jsonl")
    head.send_signal(signum)
    _, messages = head.communicate(timeout=60)
    assert head.returncode == code
    if signum == signal.SIGINT:
        assert "stopping: copies hand in their work" in messages
        assert "saved; continue with: hadar resume cut" in messages
        assert workers_in(lab) == []
    with (lab / "runs/cut/lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # as another head would hold it
        assert hadar("resume", "cut", cwd=lab).returncode == 5
    assert 0 < sum(done for done, _ in steps_of(lab, "cut").values()) < 650

    resumed = hadar("resume", cwd=lab)
    assert resumed.returncode == 0, resumed.stderr
    assert steps_of(lab, "cut") == {"one": (420, 420), "two": (230, 230)}
    assert workers_in(lab) == []
    again = hadar("resume", cwd=lab)
    assert again.returncode == 0 and "is finished" in again.stderr


def wait_for_a_merge(journal: Path) -> None:
    give_up_at = time.monotonic() + 60
    while not (journal.exists() and b"WeightsMerged" in journal.read_bytes()):
        assert time.monotonic() < give_up_at, "no merge within a minute"
        time.sleep(0.05)


def test_a_script_that_fails_leaves_the_run_resumable(lab: Path) -> None:
    (lab / "bad.py").write_text("raise SystemExit('no \x1b[31mdata')")
    (lab / "mix.yaml").write_text("slot_s: 1\njobs:\n  - {script: bad.py, steps: 5, retry: 1}\n")
    answer = hadar("run", "mix.yaml", cwd=lab)
    assert answer.returncode == 3
    assert "no data" in answer.stderr and "\x1b" not in answer.stderr
    assert "hadar resume" in answer.stderr


def test_a_job_at_its_max_duration_leaves_its_model_and_exit_code_3(lab: Path) -> None:
    mix = lab / "mix.yaml"
    mix.write_text(mix.read_text().replace("steps: 420", "steps: 1000000, max_duration: 4s"))
    ran = hadar("run", "mix.yaml", cwd=lab)
    assert ran.returncode == 3, ran.stderr
    assert "'one' ended with" in ran.stderr and "max_duration of 4 s" in ran.stderr
    (run,) = (lab / "runs").iterdir()
    steps = steps_of(lab, run.name)
    assert 0 < steps["one"][0] < 1_000_000 and steps["two"] == (230, 230)
    assert (run / "models" / "one.safetensors").exists()
