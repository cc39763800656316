"""Machines that others use too: colleagues on a card, other runs on a card, one worker a card."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hadar_cli.core import events
from hadar_cli.core.reasons import Absence
from hadar_cli.core.state import RunState
from hadar_cli.errors import HadarError
from hadar_cli.node.gpus import cards
from hadar_cli.runs.store import find_run, read_journal

ROOT = Path(__file__).parents[2]
SMI = """#!/bin/sh
case "$1" in
*query-gpu*)
    echo "0, {uuid}-0, NVIDIA GeForce RTX 3090, 24576, 0, 4, 00000000:01:00.0"
    echo "1, {uuid}-1, NVIDIA GeForce RTX 3090, 24576, $(cat {use}), 4, 00000000:02:00.0";;
*query-compute-apps*) echo "{uuid}-1, {pid}, $(cat {use})";;
esac
"""
SCRIPT = """
import json, os, signal, time

asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
import numpy as np
from safetensors.numpy import load_file, save_file

card, here = os.environ["CUDA_VISIBLE_DEVICES"], os.path.dirname(os.path.abspath(__file__))
alone = os.open(f"{here}/on-{card}", os.O_CREAT | os.O_EXCL)  # fails where another is there
try:
    began, left = time.monotonic(), float(os.environ["HADAR_SECONDS_LEFT"])
    weight = np.zeros(4, np.float32)
    if os.environ["HADAR_CKPT_IN"]:
        weight = load_file(os.environ["HADAR_CKPT_IN"])["model/0/weight"]
    done = 0
    while done < int(os.environ["HADAR_STEPS"]) and time.monotonic() < began + left - 0.3:
        if asked:
            break
        weight, done = weight + 1, done + 1
        time.sleep(0.02)
    save_file({"model/0/weight": weight}, os.environ["HADAR_CKPT_OUT"])
    result = {"steps": done, "seconds": {"train": time.monotonic() - began}}
    with open(os.environ["HADAR_RESULT"] + ".part", "w") as file:
        json.dump(result, file)
    os.rename(os.environ["HADAR_RESULT"] + ".part", os.environ["HADAR_RESULT"])
    time.sleep(0.5)  # slow to leave: the next worker waits for it
finally:
    os.unlink(f"{here}/on-{card}")
"""
NODES = """
[[node]]
name = "box"
host = "local"
gpus = [{ model = "RTX 3090" }, { model = "RTX 3090" }]
"""


class Box:
    """A machine with two GPUs, by the word of its nvidia-smi."""

    def __init__(self, tmp_path: Path) -> None:
        self.path = tmp_path
        self.uuid = f"GPU-{os.getpid()}-{time.monotonic_ns()}"
        self.use(0)
        smi = tmp_path / "bin" / "nvidia-smi"
        smi.parent.mkdir()
        smi.write_text(SMI.format(uuid=self.uuid, use=tmp_path / "use", pid=os.getpid()))
        smi.chmod(0o700)
        (tmp_path / "train.py").write_text(SCRIPT)
        (tmp_path / "nodes.toml").write_text(NODES)

    def use(self, megabytes: int) -> None:
        """A colleague holds so much of the second card."""
        (self.path / "use.part").write_text(str(megabytes))
        (self.path / "use.part").replace(self.path / "use")

    def mix(self, steps: int) -> None:
        job = f"{{script: train.py, steps: {steps}, batch_size: 8, count: 2}}"  # one for each card
        (self.path / "mix.yaml").write_text(f"slot_s: 4\nmerge: {{solo: 0}}\njobs: [{job}]\n")

    @contextmanager
    def running(self, name: str) -> Iterator[subprocess.Popen[str]]:
        words = ["run", "mix.yaml", "--name", name, "--no-live"]
        path = f"{self.path / 'bin'}:{os.environ['PATH']}"
        process = subprocess.Popen(
            [sys.executable, "-m", "hadar_cli.cli.main", *words],
            cwd=self.path,
            env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def events(self, name: str) -> list[events.Event]:
        return read_journal(find_run(self.path / "runs", name).journal_path)

    def wait_for(self, name: str, seen: Callable[[events.Event], bool]) -> events.Event:
        deadline = time.monotonic() + 90
        found: list[events.Event] = []
        while time.monotonic() < deadline:
            with suppress(HadarError):  # it has not begun yet
                found = [event for event in self.events(name) if seen(event)]
            if found:
                return found[-1]
            time.sleep(0.1)
        raise AssertionError(f"it did not happen: {self.events(name)}")

    def wait_until_both_train(self) -> None:
        """A copy that is told to leave while it still starts has nothing to hand in."""
        deadline = time.monotonic() + 90
        while len(list(self.path.rglob("on-*"))) < 2:
            assert time.monotonic() < deadline, "they never trained"
            time.sleep(0.1)


def is_loss(event: events.Event) -> bool:
    return isinstance(event, events.DeviceLost) and event.device == "box:1"


def test_a_colleague_gets_the_card_within_seconds_and_hadar_comes_back_later(tmp_path):
    box = Box(tmp_path)
    box.mix(450)
    with box.running("polite") as run:
        box.wait_until_both_train()
        box.use(12_000)
        lost = box.wait_for("polite", is_loss)
        assert (lost.reason, lost.why) == (
            Absence.TAKEN,
            f"{getpass.getuser()} holds 49% of its memory, more than 10%",
        )
        box.use(100)
        box.wait_for("polite", lambda e: isinstance(e, events.DeviceReturned))
        out, _ = run.communicate(timeout=120)
    assert run.returncode == 0, out
    happened = box.events("polite")
    state = RunState(find_run(tmp_path / "runs", "polite").facts.mix.jobs)
    for event in happened:
        state.apply(event)
    assert [len(job.done) for job in state.jobs.values()] == [450, 450]
    since = happened[happened.index(lost) :]
    assert not [e for e in since if isinstance(e, events.CopyLost)]  # it handed in
    back = next(i for i, e in enumerate(since) if isinstance(e, events.DeviceReturned))
    assert any(isinstance(e, events.CopyStarted) and e.device == "box:1" for e in since[back:])


def test_a_second_run_waits_for_the_cards_and_is_told_whose_they_are(tmp_path):
    box = Box(tmp_path)
    box.mix(600)
    with box.running("first") as first:
        box.wait_for("first", lambda e: isinstance(e, events.CopyStarted))
        box.mix(50)
        with box.running("second") as second:
            taken = box.wait_for("second", lambda e: isinstance(e, events.DeviceLost))
            assert taken.reason is Absence.TURN
            assert "run first of" in taken.why
            for run in (first, second):
                out, _ = run.communicate(timeout=200)
                assert run.returncode == 0, out
    assert not any("on-" in path.name for path in tmp_path.iterdir())  # nobody met anybody


def test_the_locks_of_a_run_are_gone_with_it(tmp_path):
    box = Box(tmp_path)
    box.mix(20)
    with box.running("short") as run:
        out, _ = run.communicate(timeout=100)
    assert run.returncode == 0, out
    assert not list(cards.LOCKS.glob(f"hadar-{box.uuid}*"))
    results = [e for e in box.events("short") if isinstance(e, events.CopyFinished)]
    assert sum(e.steps for e in results) >= 40


def test_a_torch_that_does_not_see_the_gpu_trains_nothing_on_the_processor(tmp_path):
    box = Box(tmp_path)
    box.mix(40)
    (tmp_path / "train.py").write_text("import torch\nopen('trained', 'w')\n")
    with box.running("blind") as run:
        out, _ = run.communicate(timeout=100)
    assert run.returncode == 3, out
    lost = [e for e in box.events("blind") if isinstance(e, events.DeviceLost)]
    assert {e.reason for e in lost} == {Absence.UNFIT}
    assert "sees no GPU: install a build for its driver there" in lost[0].why
    assert not (tmp_path / "trained").exists()
