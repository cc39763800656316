"""Cards of unequal memory, and a job that cannot work: nothing but what does not fit is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hadar_cli.core import events
from hadar_cli.core.reasons import Loss
from hadar_cli.runs.store import read_journal
from tests.support.strays import all_gone, living

ROOT = Path(__file__).parents[2]
HADAR = [sys.executable, "-m", "hadar_cli.cli.main"]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
TRAIN = """
import os
import pathlib
import time
import torch
from hadar_cli import training

has_helped = pathlib.Path(os.environ["HAS_HELPED"])
torch.manual_seed(0)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
x = torch.randn(256, 8)
data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))

def forward(x):
    if len(x) > int(os.environ["SAMPLES_THAT_FIT"]):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    if os.environ["SAMPLES_THAT_FIT"] == "4":
        has_helped.touch()
    time.sleep(0.004 if has_helped.exists() else SLOWLY_S)
    return model(x)

with training(model, optimizer) as t:
    for a, b in t.loader(data, batch_size=16):
        loss = (forward(a) - b).square().mean()
        UPDATE
"""
# The large card takes its time until the small one has found its size of pieces.
BY_HADAR = TRAIN.replace("UPDATE", "t.step(loss)").replace("SLOWLY_S", "0.05")
BY_ITSELF = TRAIN.replace("UPDATE", "optimizer.zero_grad(); loss.backward(); optimizer.step()")
ON_SMALL = (0, "small", events.TRAIN)
NODES = """
[[node]]
name = "large"
host = "local"
env = {SAMPLES_THAT_FIT = "64"}
[[node]]
name = "small"
host = "local"
env = {SAMPLES_THAT_FIT = "4"}
"""


@pytest.fixture
def lab(tmp_path, monkeypatch):
    (tmp_path / "nodes.toml").write_text(NODES)
    monkeypatch.setitem(ENVIRONMENT, "HAS_HELPED", str(tmp_path / "helped"))
    yield tmp_path
    assert all_gone(tmp_path, within_s=30.0), living(tmp_path)


def hadar(lab: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*HADAR, *arguments], cwd=lab, env=ENVIRONMENT, text=True, capture_output=True, check=False
    )


def write_mix(lab: Path, *jobs: str) -> None:
    rows = "".join(f"  - {{script: {job}.py, name: {job}, batch_size: 16}}\n" for job in jobs)
    rows = rows.replace("batch_size: 16", "batch_size: 16, steps: 900")
    (lab / "mix.yaml").write_text(f"name: cards\nslot_s: 2\nmerge: {{solo: 0}}\njobs:\n{rows}")


def journal(lab: Path) -> list[events.Event]:
    [path] = lab.glob("runs/*/journal.jsonl")
    return read_journal(path)


def pieces_on_small(happened: list[events.Event]) -> list[int]:
    """How the first job's copies on the small card had their batches split."""
    return [
        e.micro_batches
        for e in happened
        if isinstance(e, events.CopyStarted) and (e.job, e.device, e.purpose) == ON_SMALL
    ]


def test_a_broken_job_fails_alone_and_a_small_card_helps_with_micro_batches(lab):
    (lab / "fits.py").write_text(BY_HADAR)
    (lab / "broken.py").write_text("raise ValueError('no data set here')\n")
    write_mix(lab, "fits", "broken")
    done = hadar(lab, "run", "mix.yaml", "-n", "nodes.toml", "--no-live")
    assert done.returncode == 3, done.stderr
    assert "job 'broken' failed" in done.stderr and "no data set here" in done.stderr
    assert "Traceback" not in done.stderr.replace("Traceback (most recent call last):\n", "", 1)
    happened = journal(lab)
    assert list(dict.fromkeys(pieces_on_small(happened))) == [1, 2, 4]
    lost = [e for e in happened if isinstance(e, events.CopyLost)]
    assert [e.reason for e in lost].count(Loss.OUT_OF_MEMORY) == 2
    report = json.loads(hadar(lab, "report", "--json").stdout)
    fits, broken = report["jobs"]
    assert (fits["steps_done"], fits["failed"]) == (900, None)
    assert broken["steps_done"] == 0 and "it exited with code 1" in broken["failed"]
    assert any(device["name"] == "small" and device["steps"] > 0 for device in report["devices"])
    told = hadar(lab, "report").stdout
    assert "Job broken failed" in told

    (lab / "broken.py").write_text(BY_HADAR)  # someone mended it
    again = hadar(lab, "resume", "--no-live")
    assert again.returncode == 0, again.stderr
    assert isinstance(journal(lab)[-1], events.RunFinished)
    later = pieces_on_small(journal(lab)[len(happened) :])
    assert all(pieces == 4 for pieces in later)  # what was found is not forgotten


def test_a_script_that_cannot_be_split_is_kept_off_the_small_card(lab):
    (lab / "itself.py").write_text(BY_ITSELF.replace("SLOWLY_S", "0.012"))  # five sizes are tried
    write_mix(lab, "itself")
    done = hadar(lab, "run", "mix.yaml", "-n", "nodes.toml", "--no-live")
    assert done.returncode == 0, done.stderr
    happened = journal(lab)
    [avoided] = [e for e in happened if isinstance(e, events.PairAvoided)]
    assert (avoided.job, avoided.device, avoided.reason) == (0, "small", Loss.OUT_OF_MEMORY)
    accepted = {a for e in happened if isinstance(e, events.WeightsMerged) for a in e.accepted}
    devices = {
        e.device for e in happened if isinstance(e, events.CopyStarted) and e.attempt in accepted
    }
    assert devices == {"large"}
    assert "itself is not given to small any more" in done.stderr + done.stdout


SMALL, LARGE = (f"[[node]]{node}" for node in reversed(NODES.split("[[node]]")[1:]))


def test_a_run_that_fits_nowhere_goes_on_on_other_machines(lab):
    (lab / "itself.py").write_text(BY_ITSELF.replace("SLOWLY_S", "0.004"))
    write_mix(lab, "itself")
    (lab / "nodes.toml").write_text(SMALL)
    done = hadar(lab, "run", "mix.yaml", "-n", "nodes.toml", "--no-live")
    assert done.returncode == 3, done.stderr
    assert "job 'itself' failed" in done.stderr and "CUDA out of memory" in done.stderr
    again = hadar(lab, "resume", "--no-live")  # someone may have freed the card
    assert again.returncode == 3, again.stderr
    assert "job 'itself' failed" in again.stderr

    (lab / "other.toml").write_text(LARGE)
    mended = hadar(lab, "resume", "--nodes", "other.toml", "--no-live")
    assert mended.returncode == 0, mended.stderr
    assert "other.toml: added large; removed small" in mended.stderr
    [replaced] = [e for e in journal(lab) if isinstance(e, events.NodesReplaced)]
    assert (replaced.added, replaced.removed, replaced.changed) == (("large",), ("small",), ())
    report = json.loads(hadar(lab, "report", "--json").stdout)
    assert report["state"] == "finished" and report["jobs"][0]["steps_done"] == 900
    assert "nodes replaced" in hadar(lab, "report").stdout
    for command in (
        ["status", "--json"],
        ["status"],
        ["report", "--html", "page.html"],
        ["replay"],
    ):
        answer = hadar(lab, *command)
        assert answer.returncode == 0, (command, answer.stderr)


def test_a_card_that_was_exchanged_is_tried_anew(lab):
    (lab / "itself.py").write_text(BY_ITSELF.replace("SLOWLY_S", "0.004"))
    write_mix(lab, "itself")
    (lab / "nodes.toml").write_text(SMALL)
    assert hadar(lab, "run", "mix.yaml", "-n", "nodes.toml", "--no-live").returncode == 3
    (lab / "nodes.toml").write_text(SMALL.replace('"4"', '"64"'))
    mended = hadar(lab, "resume", "-n", "nodes.toml", "--no-live")
    assert mended.returncode == 0, mended.stderr
    assert "nodes.toml: changed small" in mended.stderr


def test_an_inventory_that_cannot_be_read_changes_nothing(lab):
    (lab / "itself.py").write_text(BY_ITSELF.replace("SLOWLY_S", "0.004"))
    write_mix(lab, "itself")
    (lab / "nodes.toml").write_text(SMALL)
    assert hadar(lab, "run", "mix.yaml", "-n", "nodes.toml", "--no-live").returncode == 3
    [facts] = lab.glob("runs/*/run.json")
    before, happened = facts.read_bytes(), journal(lab)
    (lab / "bad.toml").write_text(LARGE.replace("host", "hsot"))
    for name in ("bad.toml", "absent.toml"):
        refused = hadar(lab, "resume", "--nodes", name, "--no-live")
        assert refused.returncode == 2, refused.stderr
        assert name in refused.stderr and "Traceback" not in refused.stderr
    assert (facts.read_bytes(), journal(lab)) == (before, happened)
