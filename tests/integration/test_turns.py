"""Two runs on the same machines take turns on their devices: two people's over real SSH, and two of
one folder on this computer."""

from __future__ import annotations

import json
import os
import sys
from itertools import pairwise
from pathlib import Path
from subprocess import PIPE, STDOUT, Popen
from typing import NamedTuple, TypeAlias

from hadar_cli.core import events
from hadar_cli.core.state import RunState
from hadar_cli.runs.store import find_run, read_journal
from tests.support.lab import running

ROOT = Path(__file__).parents[2]
TURN_S = 2
Stay: TypeAlias = tuple[str, str, float, float]  # node, person, from, to


class Jobs(NamedTuple):
    count: int
    steps: int  # 350 are seven seconds of training: three turns and what is left


# Every process says when it trained, and where, by clocks and files that hadar does not know of.
SCRIPT = """
import json, os, signal, time

asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
import numpy as np
from safetensors.numpy import load_file, save_file

node = os.environ.get("STAND_IN") or os.environ["SSH_CONNECTION"].split()[3]
alone = f"{os.environ['SEEN']}/on-{node}"
os.close(os.open(alone, os.O_CREAT | os.O_EXCL))  # fails where another one trains
began, left = time.monotonic(), float(os.environ["HADAR_SECONDS_LEFT"])
try:
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
finally:
    os.unlink(alone)
    with open(f"{os.environ['SEEN']}/log", "a") as log:
        log.write(json.dumps([node, os.environ["WHO"], began, time.monotonic()]) + "\\n")
with open(os.environ["HADAR_RESULT"] + ".part", "w") as file:
    json.dump({"steps": done, "seconds": {"train": time.monotonic() - began}}, file)
os.rename(os.environ["HADAR_RESULT"] + ".part", os.environ["HADAR_RESULT"])
"""
MIX = """
slot_s: 4
merge: {{solo: 0}}
jobs: [{{script: train.py, steps: {steps}, batch_size: 8, count: {jobs}, fork: 1,
         env: {{WHO: {who}, SEEN: "{seen}"}}}}]
"""


LOCAL = """
[[node]]
name = "{name}"
host = "local"
turn_s = 1
env = {{ STAND_IN = "{name}" }}
"""


def start(folder: Path, who: str, jobs: Jobs, inventory: Path, seen: Path) -> Popen[str]:
    folder.mkdir(exist_ok=True)
    (folder / "train.py").write_text(SCRIPT)
    mix = MIX.format(steps=jobs.steps, jobs=jobs.count, who=who, seen=seen)
    (folder / f"{who}.yaml").write_text(mix)
    words = ["run", f"{who}.yaml", "--name", f"of-{who}", "--no-live", "-n", str(inventory)]
    return Popen(
        [sys.executable, "-m", "hadar_cli.cli.main", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
        stdout=PIPE,
        stderr=STDOUT,
        text=True,
    )


def journal(folder: Path, who: str) -> tuple[RunState, list[events.Event]]:
    run = find_run(folder / "runs", f"of-{who}")
    happened, state = read_journal(run.journal_path), RunState(run.facts.mix.jobs)
    for event in happened:
        state.apply(event)
    return state, happened


def turns(stays: list[Stay], node: str) -> list[tuple[str, float]]:
    """Who trained there for how long, one after another. The first turn of each has cold starts
    in it, the last may be cut short: they are left out."""
    there = sorted((began, ended, who) for at, who, began, ended in stays if at == node)
    found: list[tuple[str, float]] = []
    for began, ended, who in there:
        if found and found[-1][0] == who:
            found[-1] = (who, found[-1][1] + ended - began)
        else:
            found.append((who, ended - began))
    return found[2:-2]


def shares(stays: list[Stay]) -> dict[str, float]:
    """Of the device time of all whole turns, as many of one run as of the other."""
    had = dict.fromkeys(("ada", "bob"), 0.0)
    for node in {node for node, *_ in stays}:
        taken = turns(stays, node)
        for who, seconds in taken[: len(taken) // 2 * 2]:
            had[who] += seconds
    return {who: seconds / sum(had.values()) for who, seconds in had.items()}


def share(folders: dict[str, Path], jobs: Jobs, inventory: Path, seen: Path) -> list[Stay]:
    """Both run to their end. Each is exact and knows of the other, no device trains two at once."""
    seen.mkdir()
    runs = {who: start(folder, who, jobs, inventory, seen) for who, folder in folders.items()}
    try:
        told = {who: run.communicate(timeout=300)[0] for who, run in runs.items()}
    finally:
        for run in runs.values():
            run.kill()
    assert [run.returncode for run in runs.values()] == [0, 0], told
    stays = [tuple(json.loads(line)) for line in (seen / "log").read_text().splitlines()]
    for node in {node for node, *_ in stays}:
        alone = sorted((began, ended) for at, _, began, ended in stays if at == node)
        assert all(ended <= began for (_, ended), (began, _) in pairwise(alone)), "two at once"
    for who, folder in folders.items():
        state, happened = journal(folder, who)
        assert [len(job.done) for job in state.jobs.values()] == [jobs.steps] * jobs.count
        lost = [e.why for e in happened if isinstance(e, events.DeviceLost)]
        other = "bob" if who == "ada" else "ada"
        assert any(f"run of-{other} of" in why for why in lost), lost
        assert any(isinstance(e, events.DeviceWanted) and e.by for e in happened)
    return stays


def test_two_people_s_runs_share_five_nodes_fairly(tmp_path):
    with running(tmp_path / "lab", 5) as lab:
        text = lab.inventory.read_text()
        lab.inventory.write_text(text.replace("[defaults]", f"[defaults]\nturn_s = {TURN_S}"))
        folders = {who: tmp_path / who for who in ("ada", "bob")}
        had = shares(share(folders, Jobs(5, 350), lab.inventory, tmp_path / "seen"))
    # The rule itself is held to a tenth of a share in tests/unit; here the machine's load joins in.
    assert abs(had["ada"] - 0.5) < 0.1, had


def test_two_runs_of_one_folder_share_this_computer_s_stand_ins(tmp_path):
    (tmp_path / "nodes.toml").write_text(LOCAL.format(name="one") + LOCAL.format(name="two"))
    folders = dict.fromkeys(("ada", "bob"), tmp_path)
    share(folders, Jobs(2, 150), tmp_path / "nodes.toml", tmp_path / "seen")
