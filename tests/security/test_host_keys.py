"""A host key that changes during a run ends it, with both fingerprints and exit code 4."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

from tests.e2e.test_commands import COMMAND, ENVIRONMENT, SCRIPT, hadar
from tests.support.lab import running


def fingerprint(key: str, folder: Path) -> str:
    (folder / "key.pub").write_text(key)
    words = ["ssh-keygen", "-lf", str(folder / "key.pub")]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.split()[1]


def test_a_key_that_changes_between_rounds(tmp_path: Path) -> None:
    shutil.copy(SCRIPT, tmp_path)
    job = "{script: plain_script.py, name: one, steps: 100000}"
    (tmp_path / "mix.yaml").write_text(f"name: m\nslot_s: 2\njobs:\n  - {job}\n")
    with running(tmp_path / "lab", count=1) as lab:
        name = lab.nodes[0].name
        before = fingerprint(lab[name].host_key(), tmp_path)
        words = [*COMMAND, "run", "mix.yaml", "-n", str(lab.inventory), "--no-live"]
        head = subprocess.Popen(
            words,
            cwd=tmp_path,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            journal = _journal(tmp_path, head)
            while "WeightsMerged" not in journal.read_text():
                assert head.poll() is None
                time.sleep(0.1)
            lab.change_host_key(name)
            after = fingerprint(lab[name].host_key(), tmp_path)
            said, _ = head.communicate(timeout=150)
        finally:
            head.kill()
        assert head.returncode == 4, said
        assert before in said and after in said and "CHANGED" in said
        # Nothing was lost by it: once the key is trusted, the run could go on.
        again = hadar("resume", cwd=tmp_path)
        assert again.returncode == 4 and after in again.stdout + again.stderr


def _journal(folder: Path, head: subprocess.Popen[str]) -> Path:
    while True:
        assert head.poll() is None
        for journal in folder.glob("runs/*/journal.jsonl"):
            return journal
        time.sleep(0.1)
