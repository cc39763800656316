"""A job's ``setup`` on real nodes: this computer, and one reached by SSH."""

from pathlib import Path

import pytest

from hadar_cli.assembly import connect
from hadar_cli.config.inventory import read_nodes
from hadar_cli.core.gpu_table import KNOWN_GPUS
from hadar_cli.core.model import Job, Launch, Mix, Node
from hadar_cli.engine.ports import Failed, HandedIn
from hadar_cli.nodes.executor import NodeExecutor
from hadar_cli.runs.store import RunFacts, RunStore
from tests.contract.test_executor import collect, order
from tests.support.lab import running

# Written by setup alone: without it the script fails.
SCRIPT = """
import json, os
assert open("made-by-setup").read(), "setup has not run"
with open(os.environ["HADAR_RESULT"] + ".part", "w") as file:
    json.dump({"steps": 1}, file)
os.rename(file.name, os.environ["HADAR_RESULT"])
"""
# Long enough for the copy on the other device to come and find it under way.
SLOW = "echo ran >> count; sleep 1; python -c 'import sys; print(sys.executable)' > made-by-setup"


class Rig:
    """One node, with two devices if it is this computer, and a code folder."""

    def __init__(self, tmp_path: Path, node: Node | None = None) -> None:
        self.folder = tmp_path / "code"
        self.folder.mkdir()
        (self.folder / "train.py").write_text(SCRIPT)
        gpus = (KNOWN_GPUS["T4"],) * 2
        node = node or Node("one", "local", gpus=gpus, emulated_speed=1.0)
        self.store = RunStore.create(
            tmp_path / "runs", RunFacts("r", Mix("m", ()), (node,), "", "")
        )
        self.executor = NodeExecutor(connect([node], self.store), 1, 0.0)

    def start(self, attempt: str, device: str, setup: str, job: int = 0) -> None:
        script, folder = str(self.folder / "train.py"), str(self.folder)
        launch = Launch(script=script, sync=folder, setup=setup)
        training = Job(job, f"job-{job}", 100, 8, launch=launch)
        wanted = order(attempt, (0, 1), job=training, device=device, returns_weights=False)
        self.executor.start(wanted)

    def left(self, name: str) -> list[str]:
        """What the jobs' working directories hold under this name."""
        found = (self.store.directory / "nodes" / "one" / "work").glob(f"*/{name}")
        return [path.read_text() for path in found]

    def logs(self) -> str:
        paths = (self.store.directory / "nodes" / "one" / "workers").glob("*/log")
        return "".join(path.read_text() for path in paths)


@pytest.fixture
def rig(tmp_path):
    rig = Rig(tmp_path)
    yield rig
    rig.executor.stop(0.0)


def test_it_runs_once_a_node_before_the_first_copies(rig):
    rig.start("a", "one:0", SLOW)
    rig.start("b", "one:1", SLOW)
    reports = collect(rig.executor, 2)
    assert [type(report) for report in reports] == [HandedIn, HandedIn], reports
    rig.start("c", "one:0", SLOW)
    assert isinstance(collect(rig.executor, 1)[0], HandedIn)
    assert rig.left("count") == ["ran\n"]
    assert not (rig.folder / "count").exists()
    assert rig.logs().count("setup begins") == 1


def test_another_job_has_a_setup_of_its_own(rig):
    rig.start("a", "one:0", SLOW)
    rig.start("b", "one:1", SLOW, job=1)
    assert all(isinstance(report, HandedIn) for report in collect(rig.executor, 2))
    assert rig.left("count") == ["ran\n", "ran\n"]


def test_a_failing_one_fails_the_copy_and_is_tried_again(rig):
    setup = "echo again >> tries; echo no such package >&2; exit 7"
    for attempt in ("a", "b"):
        rig.start(attempt, "one:0", setup)
        [report] = collect(rig.executor, 1)
        assert isinstance(report, Failed)
        assert report.why == "it exited with code 7"
        assert report.log.splitlines()[-2:] == ["no such package", "setup failed with exit code 7"]
    assert rig.left("tries") == ["again\nagain\n"]


def test_over_ssh_it_runs_on_the_node_in_the_folder_that_was_sent(tmp_path):
    with running(tmp_path / "lab") as lab:
        [node] = read_nodes(lab.inventory)
        rig = Rig(tmp_path, node)
        rig.start("a", node.name, "echo $HOME > made-by-setup")
        [report] = collect(rig.executor, 1)
        rig.executor.stop(0.0)
        assert isinstance(report, HandedIn), report
        [made] = lab.nodes[0].home.glob(".hadar/runs/r/*/work/*/made-by-setup")
        assert made.read_text() == f"{lab.nodes[0].home}\n"
        assert not (rig.folder / "made-by-setup").exists()
