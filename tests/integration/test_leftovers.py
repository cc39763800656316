"""What is found, ended and removed on a node, with real processes and files."""

import json
import os
import subprocess
import sys
import time

import pytest

from hadar_cli.node.agent import leftovers, processes
from hadar_cli.node.agent.leftovers import Place
from hadar_cli.node.lease import boot

SLEEPS = [sys.executable, "-c", "import time; time.sleep(600)"]


class Node:
    """A node's directories as runs leave them, and processes as runs start them."""

    def __init__(self, base):
        self.base, self.started = base, []

    def run(self, name):
        directory = self.base / name / "t4"
        (directory / "workers" / "0-3-1-e1" / "orders").mkdir(parents=True)
        (directory / "weights").write_bytes(bytes(1000))
        return directory

    def start(self, **environment):
        process = subprocess.Popen(
            SLEEPS, env={**os.environ, **environment}, start_new_session=True
        )
        self.started.append(process)
        return process

    def worker(self, directory):
        """A worker that its supervisor has recorded."""
        process = self.start()
        known = {"worker": [process.pid, processes.start_time(process.pid)]}
        (directory / "workers" / "0-3-1-e1" / "worker.json").write_text(json.dumps(known))
        return process

    def stray(self, directory):
        """Something that a worker started, and that nobody has recorded."""
        process = self.start(HADAR_WORKER=f"{directory}/0-3-1-e1")
        while not processes.tagged("HADAR_WORKER", f"{directory}/0-3-1-e1"):
            time.sleep(0.01)  # the new process has not begun its program yet
        return process


@pytest.fixture
def node(tmp_path):
    node = Node(tmp_path / "work" / "runs")
    yield node
    for process in node.started:
        process.kill()
        process.wait()


def test_bytes_and_processes_are_counted_run_by_run(node):
    one, two = node.run("one"), node.run("two")
    node.worker(one)
    node.stray(two)
    node.start()  # nobody's business
    (two / "link").symlink_to(sys.executable)
    found = leftovers.measure(Place(node.base, "t4"))
    recorded = (one / "workers/0-3-1-e1/worker.json").stat().st_size
    link = (two / "link").lstat().st_size
    assert found["runs"] == [
        {"run": "one", "bytes": 1000 + recorded, "processes": 1},
        {"run": "two", "bytes": 1000 + link, "processes": 1},
    ]
    assert found["bytes"] == 2000 + recorded + link
    assert found["processes"] == 2


def test_removing_one_run_leaves_the_others_alone(node):
    one, two = node.run("one"), node.run("two")
    ended, stray, other = node.worker(one), node.stray(one), node.worker(two)
    place = Place(node.base, "t4", run="one")
    leftovers.remove(place)
    assert ended.wait(5) and stray.wait(5)
    assert leftovers.measure(place)["bytes"] == 0
    assert not one.parent.exists() and two.exists()
    assert other.poll() is None


def test_removing_everything_takes_only_what_hadar_made(node, tmp_path):
    node.worker(node.run("one"))
    code = tmp_path / "work" / "code"
    (code / "abc").mkdir(parents=True)
    (code / "abc" / "agent.py").write_text("pass")
    mine = tmp_path / "work" / "thesis.tex"
    mine.touch()
    place = Place(node.base, "t4", workdir=tmp_path / "work")
    leftovers.remove(place)
    assert os.listdir(tmp_path / "work") == ["thesis.tex"]
    assert leftovers.measure(place) == {"runs": [], "code_bytes": 0, "bytes": 0, "processes": 0}
    mine.unlink()
    leftovers.remove(place)
    assert not (tmp_path / "work").exists()


def test_a_link_in_place_of_a_run_is_not_followed(node, tmp_path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "data").touch()
    (node.base / "one").mkdir(parents=True)
    (node.base / "one" / "t4").symlink_to(precious)
    place = Place(node.base, "t4")
    assert leftovers.measure(place)["runs"] == []
    leftovers.remove(place)
    assert (precious / "data").exists()


def test_a_reused_pid_is_not_taken_for_a_worker(node):
    directory = node.run("one")
    bystander = node.worker(directory)
    record = directory / "workers" / "0-3-1-e1" / "worker.json"
    record.write_text(json.dumps({"worker": [bystander.pid, 1]}))
    leftovers.stop(Place(node.base, "t4"))
    assert bystander.poll() is None


@pytest.mark.parametrize(("age_s", "driven"), [(1.0, ["one"]), (1000.0, [])])
def test_a_run_is_driven_while_its_lease_is_renewed(node, age_s, driven):
    directory = node.run("one")
    (directory / "lease").write_text(f"{boot()} {time.monotonic() - age_s!r}")
    assert leftovers.driven(Place(node.base, "t4")) == []  # nothing of it lives
    node.worker(directory)
    assert leftovers.driven(Place(node.base, "t4")) == driven


def test_logs_are_read_on_from_where_one_stopped(node):
    log = node.run("one") / "workers" / "0-3-1-e1" / "log"
    log.write_text("one\ntwo\n")
    place = Place(node.base, "t4")
    [first] = leftovers.read_logs(place, 3, {}, 4)
    assert first == {"worker": "one/0-3-1-e1", "offset": 8, "text": "two\n"}
    with log.open("a") as file:
        file.write("three\n")
    [second] = leftovers.read_logs(place, 3, {"one/0-3-1-e1": 8}, 1000)
    assert second["text"] == "three\n"
    assert leftovers.read_logs(place, 4, {}, 1000) == []
