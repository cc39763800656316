"""Steps, saves and evaluations that take longer than a slot are let finish, and handed in."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hadar_cli.core import events
from hadar_cli.runs.store import find_run, read_journal

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys, time
import torch
from hadar_cli import training
from hadar_cli.node.training.checkpoints import checkpoint

flag, (evaluate_s, step_s, save_s) = sys.argv[1], map(float, sys.argv[2:])
save = checkpoint.save

def slow_save(*arguments):
    time.sleep(save_s)
    save(*arguments)

def evaluate():
    time.sleep(evaluate_s)
    return {"accuracy": 0.5}

checkpoint.save = slow_save
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.ones(64, 4), torch.ones(64, 1))
with training(model, optimizer, evaluate=evaluate) as t:
    for x, y in t.loader(data, batch_size=8):
        time.sleep(step_s)
        t.step(((model(x) - y) ** 2).mean())
        open(flag, "a").close()
"""


@pytest.fixture
def start(tmp_path):
    def run(slot_s: float, steps: int, *seconds: float) -> subprocess.Popen[str]:
        (tmp_path / "train.py").write_text(SCRIPT)
        (tmp_path / "nodes.toml").write_text('[[node]]\nname = "box"\nhost = "local"\n')
        args = ", ".join(f'"{word}"' for word in (tmp_path / "flag", *seconds))
        job = f"{{script: train.py, steps: {steps}, batch_size: 8, args: [{args}]}}"
        (tmp_path / "mix.yaml").write_text(f"slot_s: {slot_s}\njobs: [{job}]\n")
        words = ["run", "mix.yaml", "--name", "slow", "--no-live"]
        started.append(
            subprocess.Popen(
                [sys.executable, "-m", "hadar_cli.cli.main", *words],
                cwd=tmp_path,
                env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1", "COLUMNS": "200"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        return started[0]

    started: list[subprocess.Popen[str]] = []
    yield run
    for process in started:
        process.kill()
        process.wait()


def happened(path: Path) -> list[events.Event]:
    return read_journal(find_run(path / "runs", "slow").journal_path)


def test_nothing_is_lost_where_a_slot_is_shorter_than_a_step_and_a_save(start, tmp_path):
    out, _ = (run := start(2, 2, 1.0, 4.0, 4.0)).communicate(timeout=150)
    assert run.returncode == 0, out
    assert not [e for e in happened(tmp_path) if isinstance(e, events.CopyLost)]
    merged = [e for e in happened(tmp_path) if isinstance(e, events.WeightsMerged)]
    assert len(merged) == 2  # a step each
    assert re.search(
        r"train: a (step|save) takes 4 s, longer than slot_s = 2: use slot_s: 4\d", out
    )


def test_an_evaluation_is_neither_a_slow_start_nor_a_slow_link(start, tmp_path):
    out, _ = (run := start(5, 300, 6.0, 0.01, 0.0)).communicate(timeout=150)
    assert run.returncode == 0, out
    copies = [e for e in happened(tmp_path) if isinstance(e, events.CopyFinished)]
    measured = [copy for copy in copies if copy.quality]
    assert len(measured) == 2, "before the first step, and after the last"
    for copy in measured:
        assert copy.evaluate_s >= 6.0 and copy.start_s >= copy.evaluate_s
        assert copy.before_s >= 6.0  # none of it counts as a cost of handing in
    assert all(copy.evaluate_s == 0.0 for copy in copies if copy not in measured)


def test_ctrl_c_waits_for_a_slow_save_and_says_for_whom(start, tmp_path):
    run = start(60, 100_000, 0.0, 0.05, 12.0)
    while not (tmp_path / "flag").exists():
        assert run.poll() is None
        time.sleep(0.1)
    run.send_signal(signal.SIGINT)
    out, _ = run.communicate(timeout=100)
    assert run.returncode == 130, out
    assert "waiting for box to hand in, 2m at the most" in out
    assert "saved; continue with: hadar resume slow" in out
    assert "nothing is lost" not in out
    *_, merged, stopped = happened(tmp_path)
    assert isinstance(merged, events.WeightsMerged) and merged.accepted
    assert isinstance(stopped, events.RunStopped) and not stopped.not_handed_in
