"""The commands that look after machines, against real ones: this computer and the lab's."""

import getpass
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hadar_cli.adapters.inspection import find_objections
from hadar_cli.core.model import Gpu, Node

PATIENT = ("--timeout", "90")  # where the time that torch takes to import does not matter


@pytest.fixture
def hadar(tmp_path):
    """Runs the command line in an empty directory; gives exit code, stdout and stderr."""

    def run(*words, stdin=""):
        command = [sys.executable, "-m", "hadar_cli.cli.main", *map(str, words)]
        env = {**os.environ, "NO_COLOR": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
        done = subprocess.run(
            command, cwd=tmp_path, env=env, input=stdin, capture_output=True, text=True, timeout=120
        )
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout, done.stderr

    return run


def write_nodes(path, *tables):
    path.write_text("\n".join(f"[[node]]\n{table}\n" for table in tables))


# -- this computer -------------------------------------------------------------------------------


def test_check_finds_this_computer_usable(hadar, tmp_path):
    write_nodes(tmp_path / "nodes.toml", 'name = "me"\nhost = "local"')
    code, out, _ = hadar("check", "--json", *PATIENT)
    [found] = json.loads(out)
    assert code == 0
    assert found["usable"] and not found["problems"]
    assert found["torch"]["torch"] and found["torch"]["safetensors"]
    assert found["facts"]["disk"]["free_bytes"] > 0
    assert abs(found["clock_skew_s"]) < 1


def test_check_prints_the_fix_and_goes_on_to_the_others(hadar, tmp_path):
    bare = tmp_path / "bare-python"  # an interpreter without torch
    bare.write_text(f'#!/bin/sh\nexec "{sys._base_executable}" "$@"\n')
    bare.chmod(0o700)
    write_nodes(
        tmp_path / "nodes.toml",
        'name = "good"\nhost = "local"',
        f'name = "bare"\nhost = "local"\npython = "{bare}"',
        'name = "gone"\nhost = "local"\npython = "/no/such/python"',
    )
    code, out, _ = hadar("check", *PATIENT)
    assert code == 3
    assert "1 of 3 machines can be used" in out
    assert "pip install torch safetensors there" in out
    assert "name a Python that is there" in out


def test_a_busy_gpu_is_left_alone_and_a_free_one_is_not(tmp_path, monkeypatch):
    """No GPU here: an executable that answers as nvidia-smi does stands for two of them."""
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        f"""#!/bin/sh
case "$1" in
*query-gpu*)
    echo "0, GPU-a, NVIDIA GeForce RTX 3090, 24576, 12288"
    echo "1, GPU-b, NVIDIA GeForce RTX 3090, 24576, 300";;
*) echo "GPU-a, {os.getpid()}, 12000";;
esac
"""
    )
    smi.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    rtx = Gpu("RTX 3090", 71, 24)
    node = Node("lab", "local", gpus=(rtx, rtx))
    me = getpass.getuser()
    assert find_objections([node], tmp_path, 30) == {
        "lab:0": f"{me} holds 50% of its memory, more than 10%"
    }
