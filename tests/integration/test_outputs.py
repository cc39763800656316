"""A run brings home what its scripts left in HADAR_OUT, from this computer and over SSH."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.lab import running

SCRIPT = (Path(__file__).parents[1] / "support" / "plain_script.py").read_text()
LEAVES = """
from pathlib import Path
out = Path(os.environ["HADAR_OUT"])
(out / "logs").mkdir(exist_ok=True)
with open(out / "logs" / "orders.txt", "a") as log:
    log.write("one order\\n")
if not (out / "passwords").is_symlink():
    os.symlink("/etc/passwd", out / "passwords")
"""


def train(folder: Path, inventory: Path) -> subprocess.CompletedProcess[str]:
    before, found, rest = SCRIPT.partition('if os.environ["HADAR_CKPT_OUT"]')
    (folder / "train.py").write_text(before + LEAVES + found + rest)
    (folder / "mix.yaml").write_text("slot_s: 5\njobs: [{script: train.py, steps: 60}]")
    words = ["run", "mix.yaml", "-n", str(inventory), "--name", "r", "--no-live"]
    return subprocess.run(
        [sys.executable, "-m", "hadar_cli.cli.main", *words],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("kind", ["local", "sshd"])
def test_what_a_script_leaves_comes_home(tmp_path, kind):
    folder = tmp_path / "project"
    folder.mkdir()
    if kind == "local":
        inventory = folder / "nodes.toml"
        inventory.write_text('[[node]]\nname = "me"\nhost = "local"\n')
        answer = train(folder, inventory)
    else:
        with running(tmp_path / "lab") as lab:
            answer = train(folder, lab.inventory)
    assert answer.returncode == 0, answer.stderr
    out = folder / "runs" / "r" / "out"
    assert "one order" in (out / "train" / "logs" / "orders.txt").read_text()
    assert not (out / "train" / "passwords").exists()
    assert "1 of what it left" in answer.stderr
    assert "What scripts left" in answer.stdout
    assert not (folder / "out").exists()


def test_what_a_job_left_comes_home_when_it_ends_while_others_train(tmp_path):
    """The second job does not end before the first one's files are seen at home."""
    home = tmp_path / "runs" / "r" / "out" / "short" / "logs" / "orders.txt"
    waits = f"import time\nwhile not os.path.exists({str(home)!r}):\n    time.sleep(0.05)\n"
    before, found, rest = SCRIPT.partition('if os.environ["HADAR_CKPT_OUT"]')
    (tmp_path / "short.py").write_text(before + LEAVES + found + rest)
    (tmp_path / "long.py").write_text(before + waits + found + rest)
    (tmp_path / "mix.yaml").write_text(
        "slot_s: 30\njobs: [{script: short.py, steps: 20}, {script: long.py, steps: 20}]"
    )
    (tmp_path / "nodes.toml").write_text(
        '[[node]]\nname = "me"\nhost = "local"\ngpus = [{ model = "T4" }, { model = "T4" }]\n'
        "emulate = { speed = 1.0 }\n"
    )
    words = ["run", "mix.yaml", "-n", "nodes.toml", "--name", "r", "--no-live"]
    answer = subprocess.run(
        [sys.executable, "-m", "hadar_cli.cli.main", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert "one order" in home.read_text()
