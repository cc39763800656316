"""``hadar profile nodes`` against real SSH servers; an executable stands for nvidia-smi."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hadar_cli.core.estimates.formula import pmi
from hadar_cli.core.gpu_table import KNOWN_GPUS
from tests.support.lab import running

SMI = """#!/bin/sh
case "$1" in
*query-gpu=*) echo "0, GPU-a, NVIDIA GeForce RTX 3090, 24576, 300, 4, 00000000:01:00.0"
    echo "1, GPU-b, NVIDIA TITAN RTX, 24576, 1, 3, 00000000:02:00.0";;
esac
"""
BROKEN_SMI = "#!/bin/sh\necho 'NVIDIA-SMI has failed: no driver'\nexit 9\n"


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    with running(tmp_path_factory.mktemp("profile") / "lab", 4) as lab:
        yield lab


@pytest.fixture
def inventory(lab, tmp_path):
    """The lab's machines as real ones, whose GPUs are not listed."""
    lines = lab.inventory.read_text().splitlines()
    path = tmp_path / "nodes.toml"
    path.write_text("\n".join(x for x in lines if not x.startswith(("gpus", "emulate"))))
    return path


def hadar(directory, *words):
    command = [sys.executable, "-m", "hadar_cli.cli.main", *words, "--json"]
    env = {**os.environ, "NO_COLOR": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        command, cwd=directory, env=env, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def install_smi(node, source):
    tool = node.home / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    tool.write_text(source)
    tool.chmod(0o700)
    (node.home / ".bashrc").write_text('PATH="$HOME/bin:$PATH"\n')


def test_machines_tell_their_gpus_and_a_bad_one_blocks_nobody(lab, inventory, tmp_path):
    two, none, broken, hung = lab.nodes
    install_smi(two, SMI)
    install_smi(broken, BROKEN_SMI)
    lab.pause(hung.name)
    try:
        words = ("--workload", "weather", "--timeout", "10")
        found = hadar(tmp_path, "profile", "nodes", *words)
    finally:
        lab.unpause(hung.name)
    devices = {device["name"]: device for device in found["devices"]}
    assert list(devices) == [f"{two.name}:0", f"{two.name}:1", none.name, broken.name, hung.name]
    rtx, titan, cpu = list(devices.values())[:3]
    assert (rtx["gpu"], rtx["vram_gb"], rtx["pcie"]) == ("RTX 3090", 24, 4)
    assert rtx["pmi"] == pmi(KNOWN_GPUS["RTX 3090"])
    assert (titan["gpu"], titan["pcie"], cpu["gpu"]) == ("TITAN RTX", 3, "CPU")
    problems = {problem["node"]: problem["what"] for problem in found["problems"]}
    assert set(problems) == {broken.name, hung.name}
    assert problems[broken.name] == "nvidia-smi: NVIDIA-SMI has failed: no driver"
    assert "within 10 s" in problems[hung.name]
    listed = {node["name"]: node for node in hadar(tmp_path, "nodes", "list")}
    assert [gpu["model"] for gpu in listed[two.name]["gpus"]] == ["RTX 3090", "TITAN RTX"]
    assert listed[none.name]["gpus"] == []
    assert set(json.loads((tmp_path / "nodes.profile.json").read_text())) == {two.name, none.name}


def test_measuring_over_ssh_trains_there_and_leaves_no_run(lab, inventory, tmp_path):
    node = lab.nodes[1]
    head, *tables = inventory.read_text().split("[[node]]")
    inventory.write_text(f"{head}[[node]]{tables[1]}")
    found = hadar(tmp_path, "profile", "nodes", "--measure", "--workload", "recommender")
    [pair] = found["rates"]
    assert (pair["device"], pair["problem"]) == (node.name, None)
    assert pair["measured_steps_per_s"] > 0
    assert not list((node.home / ".hadar" / "runs").glob("*"))
