"""Nodes without /proc and without safe forks, as Macs are: the same code, told so."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from hadar_cli.node.agent import processes
from hadar_cli.node.agent.probe import accelerator, gpu_names
from hadar_cli.node.lease import Lease

ROOT = Path(__file__).parents[2]
NURSERY = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
sys.platform = "darwin"
from hadar_cli.node.agent import nursery
nursery.main()
print("torch" in sys.modules)
"""
SCRIPT = """
import os, sys
import torch
print(sys.argv[1:], os.environ["COLOUR"], __name__, flush=True)
"""


@pytest.fixture
def without_proc(monkeypatch):
    def refuse(path: str) -> None:
        raise AssertionError(f"there is no {path}")

    monkeypatch.setattr(processes, "_LINUX", False)
    monkeypatch.setattr(processes, "Path", refuse)
    monkeypatch.setattr(processes.os, "listdir", refuse)


def test_processes_are_known_by_ps(without_proc):
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    started = processes.start_time(child.pid)
    assert started
    assert processes.is_alive(child.pid, started)
    assert not processes.is_alive(child.pid, started + 1)
    assert child.pid in processes._pids()
    assert processes._parent(child.pid) == os.getpid()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert processes.start_time(child.pid) is None  # a zombie
    child.wait()
    assert processes.start_time(child.pid) is None


def test_a_worker_is_a_new_interpreter_where_forks_are_not_safe(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    Lease(tmp_path / "lease").renew()
    directory = tmp_path / "worker"
    (directory / "orders").mkdir(parents=True)
    order = {"HADAR_SECONDS_LEFT": "60", "HADAR_ISSUED_AT": repr(time.monotonic())}
    order |= {"HADAR_RESULT": str(tmp_path / "r"), "HADAR_PROGRESS": str(tmp_path / "p")}
    order |= {"HADAR_STEPS": "1", "HADAR_SLICES": "0:1"}
    (directory / "orders" / "1.json").write_text(json.dumps(order))
    spec = {
        "argv": [sys.executable, str(tmp_path / "train.py"), "--lr", "1"],
        "env": {**os.environ, "COLOUR": "blue"},
        "cwd": str(tmp_path),
        "lease": str(tmp_path / "lease"),
        "lease_s": 120.0,
        "tag": "tag",
        "setup": "",
        "setup_stamp": "",
    }
    (directory / "spec.json").write_text(json.dumps(spec))
    done = subprocess.run(
        [sys.executable, "-c", NURSERY], input=f"{directory}\n".encode(), capture_output=True
    )
    assert done.stdout == b"False\n", done.stderr  # it has not imported torch itself
    deadline = time.monotonic() + 100
    while not (directory / "exit.json").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert json.loads((directory / "exit.json").read_text())["code"] == 0
    assert (directory / "log").read_text() == "['--lr', '1'] blue __main__\n"


@pytest.mark.parametrize(
    ("hip", "cards", "has_mps", "told", "names"),
    [
        (None, 2, False, "CUDA 12.4", ["cuda:0", "cuda:1"]),
        ("6.2", 1, False, "ROCm 6.2", ["cuda:0"]),
        (None, 0, True, "MPS", ["mps"]),
        (None, 0, False, None, []),
    ],
)
def test_torch_s_gpus_are_known_whoever_made_them(hip, cards, has_mps, told, names):
    """A torch by its words: none of these can be installed everywhere."""
    torch = SimpleNamespace(
        cuda=SimpleNamespace(is_available=lambda: cards > 0, device_count=lambda: cards),
        version=SimpleNamespace(cuda=None if hip else "12.4", hip=hip),
        backends=SimpleNamespace(mps=SimpleNamespace(is_available=lambda: has_mps)),
    )
    assert accelerator(torch) == told
    assert gpu_names(torch) == names
