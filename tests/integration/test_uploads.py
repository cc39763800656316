"""A frozen base with layers that thaw, whole numbers and a rare optimizer state, in a real run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import safetensors.torch
from safetensors import safe_open

from hadar_cli.core import events
from hadar_cli.runs.store import read_journal

ROOT = Path(__file__).parents[2]
HADAR = [sys.executable, "-m", "hadar_cli.cli.main"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
TRAIN = """
import time
import torch
from hadar_cli import training

torch.manual_seed(SEED)
frozen = torch.nn.Linear(300, 300).requires_grad_(False)
model = torch.nn.Sequential(frozen, torch.nn.BatchNorm1d(300), torch.nn.Linear(300, 1))
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
x = torch.randn(256, 300, generator=torch.Generator().manual_seed(1))
y = (x[:, :4].sum(1, keepdim=True)).tanh()
data = torch.utils.data.TensorDataset(x, y)
away = lambda: {"away": (model(x) - y).square().mean()}  # a name that says nothing
t = training(model, optimizer, evaluate=away, higher_is_better=False)
for epoch in t.epochs(30):
    if epoch >= 15:
        frozen.bias.requires_grad_(True)
    for a, b in t.loader(torch.utils.data.DataLoader(data, batch_size=8, shuffle=True)):
        loss = (model(a) - b).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        t.log(loss)
        time.sleep(0.01)
"""
NODES = "".join(f'[[node]]\nname = "{name}"\nhost = "local"\n' for name in ("one", "two"))
MIX = """
name: travels
slot_s: 2
merge: {hand_in: int4, optimizer_every: 3, every_s: 0.4, solo: 0}
jobs:
  - {script: train.py, name: job, steps: 960, batch_size: 8, retry: 0}
"""
FROZEN_BYTES = 4 * 300 * 300


def hadar(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*HADAR, *arguments],
        cwd=folder,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "nodes.toml").write_text(NODES)
    (tmp_path / "mix.yaml").write_text(MIX)
    (tmp_path / "train.py").write_text(TRAIN.replace("SEED", "0"))
    return tmp_path


def happened(folder: Path) -> list[events.Event]:
    found = list(folder.glob("runs/*/journal.jsonl"))
    return read_journal(found[0]) if found else []


def merges(folder: Path) -> list[events.WeightsMerged]:
    return [event for event in happened(folder) if isinstance(event, events.WeightsMerged)]


def kinds(found: list[events.WeightsMerged]) -> set[bool]:
    """Whether merges of several copies had the optimizer's state with them."""
    return {merge.optimizer for merge in found if len(merge.accepted) > 1}


def test_only_what_trains_travels_through_a_thaw_and_a_killed_head(folder: Path) -> None:
    process = hadar(folder, "run", "mix.yaml")
    while process.poll() is None and kinds(merges(folder)) != {True, False}:
        time.sleep(0.02)
    assert process.poll() is None  # there is something left to lose
    process.send_signal(signal.SIGKILL)
    process.wait()
    process = hadar(folder, "resume")
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output

    found = merges(folder)
    assert {why for merge in found for _, why in merge.refused} == set()
    assert kinds(found) == {True, False}
    assert all(0 < merge.bytes_in < FROZEN_BYTES for merge in found)

    answer = hadar(folder, "report", "--json").communicate()[0]
    [job] = json.loads(answer)["jobs"]
    assert job["steps_done"] == 960
    assert job["bytes_in"] == sum(merge.bytes_in for merge in found)
    assert job["value"] < 0.5 * job["untrained_value"]
    assert (job["higher_is_better"], job["improved"]) == (False, True)
    [model] = folder.glob("runs/*/models/job.safetensors")
    assert "0.bias" in safetensors.torch.load_file(model)
    with safe_open(model, "pt") as file:
        assert json.loads(file.metadata()["hadar.frozen"]).keys() == {"0.weight"}


def test_models_built_without_a_seed_are_refused_with_the_reason(folder: Path) -> None:
    (folder / "train.py").write_text(TRAIN.replace("SEED", "torch.seed() % 2**32"))
    output, _ = hadar(folder, "run", "mix.yaml").communicate(timeout=120)
    lost = [event for event in happened(folder) if isinstance(event, events.CopyLost)]
    reasons = {event.log.strip().rpartition("\n")[2] for event in lost}
    reasons |= {why for merge in merges(folder) for _, why in merge.refused}
    assert any("does not train" in why and "seed" in why for why in reasons), (reasons, output)
