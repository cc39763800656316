"""Data goes to a node once: after a cut from where it was, never again for other code."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hadar_cli.assembly import connect
from hadar_cli.config.inventory import read_nodes
from hadar_cli.config.mixes import read_mix
from hadar_cli.core.model import Job, Mix, Node
from hadar_cli.engine.ports import HandedIn, Preparing, Report
from hadar_cli.nodes.executor import NodeExecutor
from hadar_cli.nodes.supply.preparation import prepare
from hadar_cli.nodes.wire import Wire
from hadar_cli.runs.store import RunFacts, RunStore
from hadar_cli.visits.visit import tidy
from tests.contract.test_executor import collect, order
from tests.integration.test_adoption import wait_until
from tests.support.lab import Lab, running

LARGE = 24 << 20  # goes alone
SMALL = [1000 * number for number in range(1, 60)]  # go together
TRAIN = """
import json, os
from pathlib import Path
files = sorted(path for path in Path("data/train").rglob("*") if path.is_file())
assert os.environ["HADAR_DATA"] == str(Path.cwd() / "data/train"), os.environ["HADAR_DATA"]
seen = {"files": len(files), "bytes": sum(path.stat().st_size for path in files)}
Path("data/train/cache").write_text("a script may write beside its data")
result = {"steps": 0, "evaluation": seen}
Path(os.environ["HADAR_RESULT"] + ".part").write_text(json.dumps(result))
os.rename(os.environ["HADAR_RESULT"] + ".part", os.environ["HADAR_RESULT"])
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Iterator[Lab]:
    with running(tmp_path_factory.mktemp("data") / "lab") as lab:
        yield lab


@pytest.fixture
def project(tmp_path) -> Path:
    root = tmp_path / "project"
    (root / "data" / "train" / "parts").mkdir(parents=True)
    (root / "data" / "train" / "large.bin").write_bytes(os.urandom(LARGE))
    for size in SMALL:
        (root / "data" / "train" / "parts" / f"{size}.bin").write_bytes(os.urandom(size))
    (root / ".gitignore").write_text("data/\n")
    (root / "train.py").write_text(TRAIN)
    (root / "mix.yaml").write_text("data: data/train\njobs: [{script: train.py, steps: 10}]")
    return root


@pytest.fixture
def node(lab, tmp_path) -> Node:
    [node] = read_nodes(lab.inventory)
    workdir = str(tmp_path / "workdir")
    return replace(node, gpus=(), emulated_speed=None, workdir=workdir)


class Sent:
    """Counts what is sent to nodes, and can do something on the way."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes, self._at, self._then = 0, float("inf"), lambda: None
        send = Wire.send_bytes

        def counted(wire: Wire, content: bytes) -> None:
            self.bytes += len(content)
            if self.bytes >= self._at:
                self._at = float("inf")
                self._then()
            send(wire, content)

        monkeypatch.setattr(Wire, "send_bytes", counted)

    def after(self, count: int, then: Callable[[], None]) -> None:
        self._at, self._then = self.bytes + count, then


@pytest.fixture
def sent(monkeypatch) -> Sent:
    return Sent(monkeypatch)


def read_job(project: Path) -> Job:
    return read_mix(project / "mix.yaml").jobs[0]


def run(node: Node, job: Job, runs: Path, name: str) -> tuple[Report, list[Preparing]]:
    store = RunStore.create(runs, RunFacts(name, Mix("m", (job,)), (node,), "", ""))
    told: list[Preparing] = []
    connections = connect([node], store)
    assert prepare(connections, [job], told.append, lambda: None) == {}
    executor = NodeExecutor(connections, 1, 0.0)
    try:
        executor.start(order("a", (0, 1), job=job, device=node.name, returns_weights=False))
        return collect(executor, 1)[0], told
    finally:
        executor.stop(0.0)


def saw_all(report: Report) -> bool:
    assert isinstance(report, HandedIn), report
    return report.result.quality == {"files": 1.0 + len(SMALL), "bytes": LARGE + sum(SMALL)}


def test_it_is_sent_once_and_not_again_for_other_code(node, project, sent, tmp_path):
    report, told = run(node, read_job(project), tmp_path / "runs", "first")
    assert saw_all(report)
    assert told[-1] == Preparing(node.name, "data", *[LARGE + sum(SMALL)] * 2)
    assert sent.bytes > LARGE
    before = sent.bytes
    (project / "train.py").write_text(TRAIN + "# other code\n")
    report, told = run(node, read_job(project), tmp_path / "runs", "second")
    assert saw_all(report)
    assert [one for one in told if not one.now] == []  # it may have been read again, not sent
    assert sent.bytes - before < 20_000  # the code


def test_after_a_cut_it_goes_on_where_it_was(node, project, sent, lab, tmp_path):
    def cut() -> None:
        lab.stop(lab.names[0])
        lab.start(lab.names[0])

    sent.after(16 << 20, cut)
    report, told = run(node, read_job(project), tmp_path / "runs", "first")
    assert saw_all(report)
    assert told[-1].done == told[-1].total
    assert LARGE < sent.bytes < LARGE + (12 << 20)  # not twice


def test_only_a_changed_file_is_sent(node, project, sent, tmp_path):
    run(node, read_job(project), tmp_path / "runs", "first")
    before = sent.bytes
    (project / "data" / "train" / "parts" / "1000.bin").write_bytes(os.urandom(1000))
    report, told = run(node, read_job(project), tmp_path / "runs", "second")
    assert saw_all(report)
    assert told[-1].total == 1000
    assert sent.bytes - before < 50_000


def test_a_local_node_uses_it_in_place(project, tmp_path):
    before = sorted((project / "data").rglob("*"))
    report, told = run(Node("one", "local"), read_job(project), tmp_path / "runs", "first")
    assert saw_all(report)
    assert told == []
    assert sorted((project / "data").rglob("*")) == before


def test_a_node_without_room_is_left_out_and_told_why(node, project, tmp_path, monkeypatch):
    monkeypatch.setattr("hadar_cli.nodes.supply.data_sender._SPARE", 1 << 60)
    job = read_job(project)
    store = RunStore.create(tmp_path, RunFacts("r", Mix("m", (job,)), (node,), "", ""))
    failed = prepare(connect([node], store), [job], lambda report: None, lambda: None)
    assert "GB free" in failed[node.name]
    assert "hadar clean" in failed[node.name]


@pytest.mark.parametrize("setup", [None, "true"])
def test_data_that_should_lie_there_and_does_not_is_told_before_training(
    node, project, setup, tmp_path
):
    """By each node for itself; what a ``setup`` will put there nobody can know yet."""
    place = tmp_path / "on the node"
    job = read_job(project)
    job = replace(job, launch=replace(job.launch, data=(), data_dir=str(place), setup=setup))
    here = Node("here", "local")
    store = RunStore.create(tmp_path, RunFacts("r", Mix("m", (job,)), (node, here), "", ""))

    def failed() -> dict[str, str]:
        return prepare(connect([node, here], store), [job], lambda report: None, lambda: None)

    told = {} if setup else dict.fromkeys((node.name, "here"), f"there is no {place} there")
    assert {name: why.partition(",")[0] for name, why in failed().items()} == told
    place.mkdir()
    assert failed() == {}


def test_what_is_prepared_leaves_the_agent_alone(node, project, tmp_path):
    """A head opens agents first, to take over what an earlier one left, and then prepares: at the
    same time, over the same connections."""
    job = read_job(project)
    store = RunStore.create(tmp_path, RunFacts("r", Mix("m", (job,)), (node,), "", ""))
    connections = connect([node], store)
    executor = NodeExecutor(connections, 1, 0.0)
    try:
        executor.adopt([])
        wait_until(lambda: bool(executor._nodes[0]._link))
        link = executor._nodes[0]._link
        assert prepare(connections, [job], lambda report: None, lambda: None) == {}
        assert not link.why_ended
        executor.start(order("a", (0, 1), job=job, device=node.name, returns_weights=False))
        assert saw_all(collect(executor, 1)[0])
        assert executor._nodes[0]._link is link
    finally:
        executor.stop(0.0)


def test_clean_removes_it(node, project, tmp_path):
    run(node, read_job(project), tmp_path / "runs", "first")
    assert list(Path(node.workdir).glob("data/files/*/*"))
    [(_, tidied)] = tidy([node], tmp_path / "runs", "remove", None, ["first"], 30.0)
    assert tidied.before.bytes > LARGE
    assert tidied.after.bytes == 0
    assert not (Path(node.workdir) / "data").exists()
