"""What a self-test makes of what it finds, and what it keeps to itself."""

import os
import subprocess
import sys

import msgspec
import pytest
import torch

from hadar_cli.core.availability import GpuUse
from hadar_cli.core.model import Gpu, Node
from hadar_cli.node.agent import probe
from hadar_cli.node.contract import WORKER
from hadar_cli.runs.store import RunStore
from hadar_cli.selftest import training
from hadar_cli.selftest.findings import Finding, record
from hadar_cli.selftest.machines import judge
from hadar_cli.visits.inspection import Disk, Facts, Inspection, Kernel, Torch, kernel_problem

RTX = Gpu("RTX 3090", 71, 24)
NODE = Node(
    "fermi",
    "carol@fermi.lab.example",
    gpus=(RTX, RTX),
    identity_file="/home/carol/.ssh/id_lab",
    env={"API_TOKEN": "s3cret-token"},
)


@pytest.fixture
def seen():
    """Two cards: the first computes wrongly, the second is a colleague's now."""
    cards = tuple(GpuUse(i, "RTX 3090", 24576, mb) for i, mb in enumerate((10.0, 20000.0)))
    one = Inspection(NODE, stage="done", torch=Torch("2.0", "0.4", "CUDA 12.1", None))
    one.facts = Facts(
        *(0.0, 0, "fermi-internal", "Linux 6", "3.11", "/opt/py/bin/python", 8),
        *(Disk("/scratch/carol", 10**10, 10**11), cards, None),
    )
    one.kernels = (Kernel(0, "computes wrongly: off by 40%"), Kernel(1, None))
    one.problems = [problem for k in one.kernels if (problem := kernel_problem(k))]
    one.left_alone = {"fermi:1": "dave holds 81% of its memory, more than 10%"}
    return one


def test_each_card_is_judged_by_itself(seen):
    told = {(f.where, f.check): f.holds for f in judge(seen)}
    assert told == {
        ("fermi", "machine"): True,
        ("fermi:0", "kernels"): False,
        ("fermi:0", "users"): True,
        ("fermi:1", "kernels"): True,
        ("fermi:1", "users"): None,
        ("fermi", "the rest"): None,
    }


def test_the_record_names_no_host_user_path_or_setting(seen):
    what = (
        "carol@fermi.lab.example: /home/carol/.ssh/id_lab is refused by fermi-internal (10.1.2.3), "
        "s3cret-token, ~/x/y; fermi did 15 of 16 steps at 3.2/s"
    )
    told = record([seen], [Finding("fermi", "machine", False, what, what)], "now", 1.0)
    text = msgspec.json.encode(told).decode()
    for word in ("carol", "lab.example", "id_lab", "internal", "10.1.2.3", "s3cret", "/opt", "~/x"):
        assert word not in text
    assert "fermi did 15 of 16 steps at 3.2/s" in told.findings[0].what
    assert not told.ok


def test_a_process_that_is_left_is_found(tmp_path, monkeypatch):
    """A stray of a run, known by the mark in its environment as workers' children are."""
    monkeypatch.setattr(training, "_GONE_S", 0.0)
    directory = tmp_path / "run" / "nodes" / "near"
    directory.mkdir(parents=True)
    near, store = Node("near", "local"), RunStore(tmp_path / "run")
    assert [one.holds for one in training.find_left_running([near], store)] == [True]
    env = {**os.environ, WORKER: f"{directory}/workers/w"}
    stray = subprocess.Popen([sys.executable, "-c", "input()"], env=env, stdin=subprocess.PIPE)
    try:
        assert [one.holds for one in training.find_left_running([near], store)] == [False]
    finally:
        stray.kill()
        stray.communicate()


# -- memory: the CPU's stands for a card's, only how much of it is free is scripted ---------------


@pytest.mark.parametrize(
    ("free_mb", "problem"),
    [((200, 200), None), ((200, 150), "0.1 GB were not given back")],
)
def test_memory_is_filled_and_must_come_back(monkeypatch, free_mb, problem):
    answers = iter((mb << 20, 256 << 20) for mb in free_mb)
    monkeypatch.setattr(probe, "gpu_names", lambda torch: ["cpu"])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: next(answers))
    told = probe.fill_memory(0)
    assert told["problem"] == problem
    assert 0.8 * told["free"] <= told["held"] <= told["free"]


def test_a_card_that_cannot_hold_it_says_so():
    assert probe.fill_memory(0)["problem"]  # no GPU here: torch's own words
