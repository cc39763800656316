"""What a script prints, and what it leaves to its end, when it runs as a fork of the nursery."""

import json
import sys
import time
from pathlib import Path

import pytest

from hadar_cli.node.agent.nursery import Nursery
from hadar_cli.node.agent.supervisor import WorkerSpec
from hadar_cli.node.lease import Lease


class Bench:
    """A nursery and one worker of it, whose script is given."""

    def __init__(self, tmp_path: Path) -> None:
        self.here = tmp_path
        self.nursery = Nursery(tmp_path / "nursery.log", [])
        self.directory = tmp_path / "worker"
        (self.directory / "orders").mkdir(parents=True)

    def run(self, script: str) -> None:
        (self.here / "train.py").write_text(script)
        Lease(self.here / "lease").renew()
        variables = {
            "HADAR_STEPS": "1",
            "HADAR_SLICES": "0:1",
            "HADAR_TOTAL_STEPS": "1",
            "HADAR_SECONDS_LEFT": "100",
            "HADAR_ISSUED_AT": repr(time.monotonic()),
            "HADAR_RESULT": str(self.here / "result"),
            "HADAR_PROGRESS": str(self.here / "progress"),
        }
        (self.directory / "orders" / "1.json").write_text(json.dumps(variables))
        spec = WorkerSpec(
            argv=[sys.executable, str(self.here / "train.py")],
            env={"PATH": "/usr/bin:/bin"},
            cwd=str(self.here),
            lease=str(self.here / "lease"),
            lease_s=100.0,
            tag="t",
            setup="",
            setup_stamp="",
        )
        self.nursery.start(self.directory, spec)

    def log(self) -> str:
        return (self.directory / "log").read_text()

    def ended(self) -> dict:
        path = self.directory / "exit.json"
        until(path.exists)
        return json.loads(path.read_text())


def until(holds) -> None:
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.fixture
def bench(tmp_path):
    bench = Bench(tmp_path)
    yield bench
    bench.nursery.end()


def test_what_is_printed_is_in_the_log_at_once(bench):
    bench.run(
        "import os, time\nprint('step 1')\nwhile not os.path.exists('seen'): time.sleep(0.01)\n"
    )
    until(lambda: (bench.directory / "log").exists() and "step 1\n" in bench.log())
    assert not (bench.directory / "exit.json").exists()
    (bench.here / "seen").touch()
    assert bench.ended()["code"] == 0


def test_a_failure_ends_the_log_with_its_traceback(bench):
    bench.run("print('before')\nprint('half a line', end='')\nraise ValueError('the reason')\n")
    assert bench.ended()["code"] == 1
    assert bench.log().startswith("before\nhalf a line")
    assert bench.log().endswith("ValueError: the reason\n")


def test_exit_handlers_and_threads_finish_their_work(bench):
    bench.run(
        "import atexit, sys, threading, time\n"
        "atexit.register(print, 'handler ran')\n"
        "def upload():\n"
        "    time.sleep(0.2)\n"
        "    print('thread ended')\n"
        "threading.Thread(target=upload).start()\n"
        "sys.exit(3)\n"
    )
    assert bench.ended()["code"] == 3
    assert bench.log() == "thread ended\nhandler ran\n"


def test_a_failing_exit_handler_changes_nothing(bench):
    bench.run("import atexit\natexit.register(lambda: 1 / 0)\nprint('done')\n")
    assert bench.ended()["code"] == 0
    assert bench.log().startswith("done\n")
    assert "ZeroDivisionError" in bench.log()


BREAKS = """
import sys, torch
from hadar_cli import training
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
t = training(model, optimizer)
for x in t.loader(torch.ones(8, 1), batch_size=4):
    t.step(model(x).mean())
    break
"""


@pytest.mark.parametrize(("then", "is_done"), [("", True), ("sys.exit(2)", False), ("1/0", False)])
def test_a_script_that_ends_after_a_break_is_done_unless_it_fails(bench, then, is_done):
    bench.run(BREAKS + then)
    assert (bench.ended()["code"] == 0) == is_done
    assert (bench.here / "result").exists() == is_done
    if is_done:
        assert json.loads((bench.here / "result").read_text())["stopped"] == "script"
