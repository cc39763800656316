"""What is told to a node in confidence is seen by nobody else: not in a command line, not in a log,
not in a report, and not by another user of the machine."""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.e2e.test_commands import COMMAND, ENVIRONMENT, hadar
from tests.support.lab import running

CANARIES = {
    "of the node": "canary-node-4f1c",
    "of the job": "canary-job-9b2e",
    "of setup": "canary-setup-77aa",
}
SCRIPT = """
import json, os, time
import numpy as np
from safetensors.numpy import save_file
assert os.environ["NODE_TOKEN"] and os.environ["JOB_TOKEN"], "told in confidence"
time.sleep(1.0)
save_file({"model/0/weight": np.zeros(4, np.float32)}, os.environ["HADAR_CKPT_OUT"])
with open(os.environ["HADAR_RESULT"] + ".part", "w") as file:
    json.dump({"steps": int(os.environ["HADAR_STEPS"])}, file)
os.rename(file.name, os.environ["HADAR_RESULT"])
"""
SETUP = f"true --password {CANARIES['of setup']}; sleep 1; mkdir -p made"
# Reads all it can below the directories it is given, as a user who owns nothing of it.
PRY = """
import json, os, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
seen = []
for top in json.load(sys.stdin):
    for folder, folders, files in os.walk(top):
        seen.append(folder)
        for name in files:
            path = os.path.join(folder, name)
            try:
                open(path, "rb").read(1)
            except OSError:
                continue
            seen.append(path)
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        content = open(f"/proc/{pid}/environ", "rb").read()
    except OSError:
        continue
    seen += [f"environment of {pid}"] if b"canary" in content else []
print(json.dumps(seen))
"""


class CommandLines:
    """Everybody's command lines, looked at over and over."""

    def __init__(self) -> None:
        self.looks = 0
        self.told: set[str] = set()
        self.of_setup = False

    @contextmanager
    def watched(self) -> Iterator[None]:
        ending = threading.Event()
        thread = threading.Thread(target=self._watch, args=(ending,), daemon=True)
        thread.start()
        yield
        ending.set()
        thread.join()

    def _watch(self, ending: threading.Event) -> None:
        while not ending.wait(0.05):
            self.looks += 1
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    line = path.read_bytes().decode(errors="replace")
                except OSError:
                    continue
                self.told |= {name for name, canary in CANARIES.items() if canary in line}
                self.of_setup |= "/setup/" in line and "/bin/sh" in line


def prepare(folder: Path, nodes: str) -> None:
    (folder / "train.py").write_text(SCRIPT)
    (folder / "nodes.toml").write_text(nodes)
    job = {
        "script": "train.py",
        "name": "one",
        "steps": 10,
        "setup": SETUP,
        "env": {"JOB_TOKEN": CANARIES["of the job"]},
    }
    mix = {"name": "m", "slot_s": 20, "jobs": [job]}
    (folder / "mix.yaml").write_text(json.dumps(mix))  # JSON is YAML


def canaries_in(*texts: str) -> list[str]:
    return [name for name, canary in CANARIES.items() if any(canary in text for text in texts)]


def test_secrets_are_in_no_command_line_log_journal_or_report(tmp_path: Path) -> None:
    token = f'env = {{ NODE_TOKEN = "{CANARIES["of the node"]}" }}\n'
    with running(tmp_path / "lab", count=1) as lab:
        prepare(tmp_path, lab.inventory.read_text() + token)
        lines = CommandLines()
        with lines.watched():
            done = hadar("run", "mix.yaml", "--no-live", cwd=tmp_path, timeout=200)
        assert done.returncode == 0, done.stdout + done.stderr
        logs = hadar("logs", "one", cwd=tmp_path)
        log_files = [p.read_text() for p in lab.nodes[0].home.rglob("*") if p.name.endswith("log")]
    assert lines.looks > 10 and lines.of_setup, "the setup command was not caught at work"
    assert not lines.told
    [run] = (tmp_path / "runs").iterdir()
    page = hadar("report", run.name, "--html", "page.html", cwd=tmp_path)
    assert page.returncode == 0, page.stderr
    outputs = [x for each in (done, logs, page) for x in (each.stdout, each.stderr)]
    outputs += [hadar("report", run.name, "--json", cwd=tmp_path).stdout]
    files = [(tmp_path / "page.html").read_text(), (run / "journal.jsonl").read_text()]
    assert log_files and "setup begins" in "".join(log_files)
    assert not canaries_in(*outputs, *files, *log_files)


def test_a_setup_that_fails_keeps_its_secrets(tmp_path: Path) -> None:
    prepare(tmp_path, '[[node]]\nname = "n"\nhost = "local"\nenv = { NODE_TOKEN = "x" }\n')
    mix = json.loads((tmp_path / "mix.yaml").read_text())
    mix["jobs"][0] |= {"setup": SETUP + "; echo no such package; exit 3", "retry": 0}
    (tmp_path / "mix.yaml").write_text(json.dumps(mix))
    done = hadar("run", "mix.yaml", "--no-live", cwd=tmp_path, timeout=200)
    assert done.returncode == 3
    [run] = (tmp_path / "runs").iterdir()
    journal = (run / "journal.jsonl").read_text()
    assert "no such package" in journal
    assert not canaries_in(done.stdout, done.stderr, journal)


def test_another_user_of_the_node_reads_nothing(tmp_path: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can become another user")
    open_to_all = Path("/tmp") / f"hadar-pry-{os.getpid()}"
    open_to_all.mkdir(mode=0o755)
    before = os.umask(0o000)  # the worst that a user may have set
    try:
        token = f'env = {{ NODE_TOKEN = "{CANARIES["of the node"]}" }}\n'
        workdir = open_to_all / "workdir"
        with running(tmp_path / "lab", count=1) as lab:
            inventory = lab.inventory.read_text() + token + f'workdir = "{workdir}"\n'
            local = f'[[node]]\nname = "here"\nhost = "local"\n{token}'
            prepare(open_to_all, inventory + local)
            words = [*COMMAND, "run", "mix.yaml", "--no-live"]
            head = subprocess.Popen(words, cwd=open_to_all, env=ENVIRONMENT)
            places = [str(workdir), str(open_to_all / "runs")]
            pried: list[list[str]] = []
            while head.poll() is None:
                pried.append(_pry(places))
                time.sleep(0.1)
        assert head.returncode == 0
        pried.append(_pry(places))
        assert len(pried) > 3
        assert set().union(*pried) <= set(places)  # their names, and nothing in them
        _all_is_private(open_to_all / "runs")
        _all_is_private(workdir)
    finally:
        os.umask(before)
        shutil.rmtree(open_to_all)


def _pry(places: list[str]) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", PRY],
        input=json.dumps(places),
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    found: list[str] = json.loads(done.stdout)
    return found


def _all_is_private(top: Path) -> None:
    found = [top, *top.rglob("*")]
    assert len(found) > 5
    for path in found:
        mode = stat.S_IMODE(path.lstat().st_mode)
        assert path.is_symlink() or not mode & 0o077, f"{path}: {mode:o}"
