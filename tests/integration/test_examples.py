"""The examples: few changed lines, ordinary scripts by hand, sound ones under ``hadar try``."""

from __future__ import annotations

import ast
import difflib
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hadar_cli.config.mixes import read_mix
from hadar_cli.trial.trial import Patience, Trial, launch_of
from hadar_cli.trial.words import Status

EXAMPLES = Path(__file__).parents[2] / "examples"
CHANGED = ("image", "text", "gan")
ALL = (*CHANGED, "softmax_numpy")
SHORT = {
    "image": ["--samples", "128", "--epochs", "1"],
    "text": ["--words", "400", "--epochs", "1"],
    "gan": ["--samples", "256", "--epochs", "1"],
    "softmax_numpy": [],
}
PATIENCE = Patience(start_s=90.0, deadline_s=1.0)


@pytest.mark.parametrize("name", CHANGED)
def test_at_most_five_lines_differ_from_the_plain_script(name):
    plain, ours = ((EXAMPLES / d / f"{name}.py").read_text() for d in ("plain", "."))
    changes = [line for line in difflib.ndiff(plain.splitlines(), ours.splitlines()) if line[2:]]
    added = [line[2:] for line in changes if line.startswith("+ ") and line[2:].strip()]
    removed = [line for line in changes if line.startswith("- ")]
    assert 0 < len(added) <= 5
    assert len(removed) <= 5
    assert all(line.endswith("# hadar") for line in added)


@pytest.mark.parametrize("name", ALL)
def test_it_runs_by_hand(name, tmp_path):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HADAR_")}
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *SHORT[name]]
    environment |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(EXAMPLES.parent)}
    ran = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    assert any(word in ran.stdout for word in ("accuracy", "perplexity", "distance"))
    assert list(tmp_path.iterdir()) == []


def test_every_one_passes_a_trial():
    with ThreadPoolExecutor(2) as pool:
        trials = [Trial(launch_of(EXAMPLES / f"{n}.py"), lambda _: None, 4, PATIENCE) for n in ALL]
        found = pool.map(lambda trial: trial.run(), trials)
    for name, checks in zip(ALL, found, strict=True):
        assert [c for c in checks if c.status is not Status.PASSED] == [], name
        assert len(checks) >= 12, name


@pytest.mark.parametrize("name", ALL)
def test_its_mix_asks_for_the_steps_that_the_script_takes(name):
    (job,) = read_mix(EXAMPLES / f"{name}.yaml").jobs
    assert job.launch.script == str(EXAMPLES / f"{name}.py")
    source = ast.parse((EXAMPLES / f"{name}.py").read_text())
    numbers = {node.value for node in ast.walk(source) if isinstance(node, ast.Constant)}
    assert job.batch_size in numbers
