"""How long a copy may take before its supervisor ends it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from hadar_cli.node.agent import supervisor
from hadar_cli.node.agent.nursery import Nursery
from hadar_cli.node.agent.supervisor import LEAVING, WorkerSpec, _hold_device, _limits
from hadar_cli.node.agent.watch import AttemptWatch
from hadar_cli.node.agent_events import Progress, WorkerEnd
from hadar_cli.node.contract import AttemptFiles, Order
from hadar_cli.node.gpus.cards import CardLock
from hadar_cli.node.lease import Lease


@pytest.fixture
def limits(tmp_path):
    def of(number: int):
        files = AttemptFiles(tmp_path)
        order = Order(
            1, ((0, 1),), 10.0, result=files.result, progress=files.progress, issued_at=100.0
        )
        (tmp_path / f"{number}.json").write_text(json.dumps(order.variables()))
        return _limits(tmp_path / f"{number}.json")

    return of


def test_a_later_order_has_its_time_and_some_for_saving(limits):
    assert not limits(2).are_passed(114.9)
    assert limits(2).are_passed(115.1)


def test_a_first_order_may_take_minutes_to_start(limits):
    """It may build a CUDA extension, or tokenize its data, before it comes to its loop."""
    assert not limits(1).are_passed(714.9)
    assert limits(1).are_passed(715.1)


def test_a_copy_that_trains_is_past_starting_and_has_its_time_from_then(limits, tmp_path):
    first = limits(1)
    (tmp_path / "progress.json").touch()
    assert not first.are_passed(150.0)  # seen to train for the first time
    assert not first.are_passed(164.9)
    assert first.are_passed(165.1)


def test_what_was_handed_in_or_collected_is_never_late(limits, tmp_path):
    (tmp_path / "result.json").touch()
    assert not limits(2).are_passed(1000.0)


def say(path: Path, phase: str, longest_s: float = 0.0, steps: int = 0) -> None:
    Progress(steps, 1.0, None, phase, longest_s).write(path / "progress.json")


def test_an_evaluation_longer_than_the_slot_is_let_finish_but_not_for_ever(limits, tmp_path):
    later = limits(2)
    say(tmp_path, "evaluate")
    assert not later.are_passed(116.0)  # seen out of time for the first time
    assert not later.are_passed(715.0)
    assert later.are_passed(717.0)


@pytest.mark.parametrize("phase", ["load", "train", "save"])
def test_a_phase_that_was_never_measured_may_take_minutes(limits, tmp_path, phase):
    """The first step compiles (``max-autotune``), the first save of 10 GB goes to a file server."""
    first = limits(1)
    say(tmp_path, phase)
    assert not first.are_passed(150.0)
    assert not first.are_passed(166.0)  # out of time, were it not in the middle of something
    assert not first.are_passed(765.0)
    assert first.are_passed(767.0)


def test_a_step_may_take_thrice_the_longest_one_and_ten_seconds(limits, tmp_path):
    later = limits(2)
    say(tmp_path, "train", 16.0)
    assert not later.are_passed(116.0)
    assert not later.are_passed(116.0 + 57.9)
    assert later.are_passed(116.0 + 58.1)


def test_whoever_goes_on_with_steps_out_of_time_wins_no_more_of_it(limits, tmp_path):
    later = limits(2)
    say(tmp_path, "train", 1.0, steps=1)
    assert not later.are_passed(116.0)
    say(tmp_path, "train", 1.0, steps=9)
    assert not later.are_passed(128.9)
    assert later.are_passed(129.1)


def test_each_phase_has_its_own_time_once(limits, tmp_path):
    later = limits(2)
    for phase in ("train", "save", "train"):
        say(tmp_path, phase, 1.0)
        later.are_passed(116.0 if phase == "train" else 128.0)
    assert later.are_passed(129.1)  # the second time that it trains is no second time
    say(tmp_path, "save", 1.0)
    assert not later.are_passed(140.9)
    assert later.are_passed(141.1)


@pytest.mark.parametrize("told", ["[]", '{"phase": ["save"]}', '{"phase": "sleep"}', "{"])
def test_a_phase_that_nobody_knows_is_none(limits, tmp_path, told):
    (tmp_path / "progress.json").write_text(told)
    assert limits(2).are_passed(115.1)


def test_an_order_sent_ahead_waits_for_the_one_before_it_to_be_saved(limits, tmp_path):
    say(tmp_path, "save", 1.0)
    ahead = _limits(tmp_path / "2.json", limits(2))
    ahead.result, ahead.progress = tmp_path / "r3.json", tmp_path / "p3.json"
    assert not ahead.are_passed(116.0)
    assert ahead.are_passed(129.1)
    (tmp_path / "result.json").touch()  # what goes on is this order now, and says nothing
    assert ahead.are_passed(116.5)


def worker_of(tmp_path: Path, script: str) -> tuple[AttemptFiles, subprocess.Popen[bytes]]:
    """A supervisor and its worker, which does what ``script`` says."""
    files, orders = AttemptFiles(tmp_path / "attempts" / "a"), tmp_path / "worker" / "orders"
    files.directory.mkdir(parents=True)
    orders.mkdir(parents=True)
    order = Order(1, ((0, 1),), 60.0, result=files.result, progress=files.progress)
    order = replace(order, issued_at=time.monotonic())
    (orders / "1.json").write_text(json.dumps(order.variables()))
    lease = tmp_path / "run" / "lease"
    lease.parent.mkdir()
    Lease(lease).renew()
    words = f"""
import json, os, signal, time
from pathlib import Path
from hadar_cli.node.agent import supervisor
from hadar_cli.node.contract import Result

here, result = Path({str(tmp_path)!r}), Path({str(files.result)!r})
def script(spec, environment):
{textwrap.indent(script, "    ")}

spec = supervisor.WorkerSpec([], {{}}, ".", {str(lease)!r}, 60.0, "tag", "", "")
supervisor._TERM_GRACE_S = 3600.0
supervisor.supervise(here / "worker", spec, script)
"""
    return files, subprocess.Popen([sys.executable, "-c", words])


def await_file(path: Path, process: subprocess.Popen[bytes]) -> None:
    while not path.exists():
        assert process.poll() is None
        time.sleep(0.01)


def test_what_stands_after_a_script_s_last_result_is_let_finish(tmp_path):
    """A plain script has its result written before its ``atexit`` handlers run."""
    script = """
Result(steps=0).write(result)
while not (here / "worker" / "stop").exists():
    time.sleep(0.01)
time.sleep(0.5)
(here / "after").touch()
os._exit(0)
"""
    files, process = worker_of(tmp_path, script)
    await_file(files.result, process)
    (tmp_path / "worker" / LEAVING).touch()  # as the agent does, which collects it at once
    (tmp_path / "worker" / "stop").touch()
    assert process.wait(60) == 0
    assert json.loads((tmp_path / "worker" / "exit.json").read_text())["code"] == 0
    assert (tmp_path / "after").exists()


def test_whoever_is_given_up_and_hears_no_signal_is_not_waited_for(tmp_path):
    """A member of a gang that waits in the depths of a library for another, which is gone: its
    device is wanted for the gang's next try."""
    script = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
(here / "deaf").touch()
while True:
    time.sleep(1.0)
"""
    files, process = worker_of(tmp_path, script)
    await_file(tmp_path / "deaf", process)
    watch = AttemptWatch(tmp_path, cast(Nursery, None))
    watch.add("a", tmp_path / "worker")
    watch.forget("a")
    shutil.rmtree(files.directory)
    (tmp_path / "worker" / "stop").touch()
    try:
        assert process.wait(60) == 0
    finally:
        process.kill()
    assert json.loads((tmp_path / "worker" / "exit.json").read_text())["code"] == -signal.SIGKILL


@pytest.mark.parametrize("silent_s", [1.0, 100.0])
def test_the_runs_own_last_worker_that_leaves_late_is_no_other_run(tmp_path, monkeypatch, silent_s):
    """Between a lock's taking and its note, or after its giving back, nobody says who holds it."""
    clock = [0.0]
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(supervisor, "_reason_to_stop", lambda *_: None)
    before = CardLock("device-0", tmp_path)
    before.take({"at": str(tmp_path), "worker": "w1"})

    def sleep(_: float) -> None:
        clock[0] += 1.0
        if clock[0] == 60.0:
            os.ftruncate(before._descriptor, 0)
        elif clock[0] == 60.0 + silent_s:
            before.give_back()

    monkeypatch.setattr(supervisor.time, "sleep", sleep)
    (tmp_path / "w2").mkdir()
    spec = WorkerSpec([], {}, "", str(tmp_path / "lease"), 10.0, "", "", "")
    _, end = _hold_device(tmp_path / "w2", spec, Lease(tmp_path / "lease"), {})
    assert end == (WorkerEnd.CARD_TAKEN if silent_s > 10.0 else None)
