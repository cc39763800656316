"""Pods as nodes, with a stand-in for kubectl: real agents and workers over ``kubectl exec``."""

import os
import subprocess
import sys
from pathlib import Path

from tests.support.pipes import fake_kubectl
from tests.support.strays import all_gone

SUPPORT = Path(__file__).parents[1] / "support"
MIX = f"""
slot_s: 3
jobs:
  - {{script: {SUPPORT}/waiting_script.py, name: one, steps: 150, batch_size: 8}}
  - {{script: {SUPPORT}/waiting_script.py, name: two, steps: 100, batch_size: 8}}
"""


def hadar(cwd: Path, path: str, *words: str) -> subprocess.CompletedProcess[str]:
    code = "from hadar_cli.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        cwd=cwd,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def inventory(*hosts: str) -> str:
    return f"[defaults]\npython = {sys.executable!r}\n" + "".join(
        f"[[node]]\nname = {host.rpartition('/')[2].removeprefix('kubectl:')!r}\nhost = {host!r}\n"
        for host in hosts
    )


def test_a_run_trains_in_pods_and_leaves_nothing_there(tmp_path):
    path = f"{fake_kubectl(tmp_path)}:{os.environ['PATH']}"
    (tmp_path / "nodes.toml").write_text(inventory("kubectl:pod-a", "kubectl:lab/pod-b"))
    (tmp_path / "mix.yaml").write_text(MIX)
    done = hadar(tmp_path, path, "run", "mix.yaml", "--name", "r")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "homes/pod-a/.hadar/runs/r/pod-a").exists()
    cleaned = hadar(tmp_path, path, "clean", "--yes")
    assert cleaned.returncode == 0, cleaned.stderr
    assert not list((tmp_path / "homes").glob("*/.hadar/*"))
    assert all_gone(tmp_path, within_s=30.0)


def test_a_pod_that_is_not_there_is_told_in_kubectl_s_words(tmp_path):
    path = f"{fake_kubectl(tmp_path)}:{os.environ['PATH']}"
    (tmp_path / "nodes.toml").write_text(inventory("kubectl:gone"))
    checked = hadar(tmp_path, path, "check")
    assert checked.returncode == 3
    assert "not found" in checked.stdout
    (tmp_path / "mix.yaml").write_text(MIX)
    run = hadar(tmp_path, path, "run", "mix.yaml")
    assert run.returncode == 2 and 'pods "gone" not found' in run.stderr
    assert not (tmp_path / "runs").exists()


def test_without_kubectl_nothing_is_started(tmp_path):
    (tmp_path / "nodes.toml").write_text(inventory("kubectl:pod-a"))
    (tmp_path / "mix.yaml").write_text(MIX)
    done = hadar(tmp_path, str(tmp_path), "run", "mix.yaml")
    assert done.returncode == 2 and "install kubectl" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_a_name_that_no_pod_can_have_is_refused(tmp_path):
    (tmp_path / "nodes.toml").write_text(inventory("kubectl:a/b/c"))
    done = hadar(tmp_path, os.environ["PATH"], "nodes", "list")
    assert done.returncode == 2 and "kubectl:POD" in done.stderr
