"""``hadar selftest`` on real processes: a local node, and one behind a real SSH server."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.support.lab import running

EMULATED = """[[node]]
name = "near"
host = "local"
gpus = [{ model = "T4" }, { model = "T4" }]
emulate = { speed = 0.3 }
"""


def selftest(directory, nodes, *words):
    """Exit code, stdout and the record that was left in the directory."""
    (directory / "nodes.toml").write_text(nodes)
    command = [sys.executable, "-m", "hadar_cli.cli.main", "selftest", *words]
    env = {**os.environ, "NO_COLOR": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        command, cwd=directory, env=env, capture_output=True, text=True, timeout=300
    )
    assert "Traceback" not in done.stderr
    [path] = directory.glob("selftest-*.json")
    assert path.name in done.stderr
    return done.returncode, done.stdout, json.loads(path.read_text())


def test_a_killed_head_is_resumed_and_all_holds(tmp_path):
    with running(tmp_path / "lab", 1) as lab:
        [far] = lab.names
        home = tmp_path / "head"
        home.mkdir()
        code, out, told = selftest(home, f"{lab.inventory.read_text()}\n{EMULATED}", "--json")
        there = [path.name for path in lab[far].home.rglob("*")]
    assert json.loads(out) == told
    held = {(one["where"], one["check"]): one["holds"] for one in told["findings"]}
    assert (code, told["ok"]) == (0, True), told["findings"]
    assert held[("all", "kill and resume")] and held[(far, "files")]
    assert held[("near", "shared steps")]
    for node in (far, "near"):
        assert held[(node, "machine")] and held[(node, "left running")]
    for device in (far, "near:0", "near:1"):
        assert held[(device, "training")]
        assert held[(device, "memory")] is None
    assert not any(name.startswith("selftest-") for name in there), there
    assert "code" in there  # hadar was there, and what several runs share stays
    assert "127.0.0.1" not in out


def test_a_machine_without_torch_is_told_with_its_fix(tmp_path):
    bare = tmp_path / "bare-python"
    bare.write_text(f'#!/bin/sh\nexec "{sys._base_executable}" "$@"\n')
    bare.chmod(0o700)
    nodes = f'[[node]]\nname = "bare"\nhost = "local"\npython = "{bare}"\n'
    code, out, told = selftest(tmp_path, nodes)
    assert code == 3 and not told["ok"]
    assert "✗  bare" in out and "pip install torch safetensors there" in out
    assert str(tmp_path) not in json.dumps(told)


def test_without_an_inventory_it_says_how_to_get_one(tmp_path):
    command = [sys.executable, "-m", "hadar_cli.cli.main", "selftest"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.returncode == 2 and "hadar init" in done.stderr
