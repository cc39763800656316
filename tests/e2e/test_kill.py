"""kill -9 of `hadar run` at any moment, then `hadar resume`: exact steps, nobody left over."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hadar_cli.core import events
from hadar_cli.runs.store import read_journal
from tests.support.strays import all_gone, living

ROOT = Path(__file__).parents[2]
HADAR = [sys.executable, "-m", "hadar_cli.cli.main"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
TRAIN = """
import time
import torch
from hadar_cli import training

torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
x = torch.randn(256, 8)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
evaluate = lambda: {"mse": (model(x) - x.sum(1, keepdim=True)).square().mean()}
with training(model, optimizer, evaluate=evaluate) as t:
    for a, b in t.loader(data, batch_size=8):
        t.step((model(a) - b).square().mean())
        time.sleep(0.004)
"""
NODES = "".join(f'[[node]]\nname = "{name}"\nhost = "local"\n' for name in ("one", "two"))
MIX = """
name: killed
slot_s: 1.5
jobs:
  - {script: train.py, name: long, steps: 1500, batch_size: 8}
  - {script: train.py, name: short, steps: 600, batch_size: 8}
"""


@pytest.fixture
def lab(tmp_path):
    (tmp_path / "nodes.toml").write_text(NODES)
    (tmp_path / "mix.yaml").write_text(MIX)
    (tmp_path / "train.py").write_text(TRAIN)
    yield tmp_path
    assert all_gone(tmp_path, within_s=30.0), living(tmp_path)


def start(lab: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*HADAR, *arguments],
        cwd=lab,
        env=ENVIRONMENT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(lab: Path, process: subprocess.Popen[str], kind: type, count: int) -> None:
    """Returns once the journal holds that many events of the kind, or the process has ended."""
    while process.poll() is None:
        for path in lab.glob("runs/*/journal.jsonl"):
            if sum(isinstance(e, kind) for e in read_journal(path)) >= count:
                return
        time.sleep(0.02)


@pytest.mark.parametrize(
    "stage", [events.HeadStarted, events.CopyStarted, events.CopyFinished, events.WeightsMerged]
)
def test_a_killed_head_loses_nothing(lab, stage):
    seed = int(os.environ.get("HADAR_TEST_SEED", random.randrange(1 << 30)))
    print(f"HADAR_TEST_SEED={seed}")
    chance = random.Random(seed)
    process, kills = start(lab, "run", "mix.yaml"), 0
    for count in (1, 4):
        wait_for(lab, process, stage, count if stage is not events.HeadStarted else kills + 1)
        time.sleep(chance.uniform(0, 0.3))
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            process = start(lab, "resume")
    assert kills == 2  # the fault really fired
    assert process.wait(timeout=200) == 0, process.stderr.read()
    assert all_gone(lab, within_s=15.0), living(lab)

    answer = subprocess.run(
        [*HADAR, "report", "--json"], cwd=lab, env=ENVIRONMENT, capture_output=True, check=True
    )
    jobs = {job["name"]: job for job in json.loads(answer.stdout)["jobs"]}
    assert {name: job["steps_done"] for name, job in jobs.items()} == {"long": 1500, "short": 600}
    for job in jobs.values():
        assert job["value"] < 0.1 * job["untrained_value"]
