"""One suite for every executor: what the round loop relies on, simulated and for real."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hadar_cli.adapters.config import read_nodes
from hadar_cli.adapters.executor import NodeExecutor
from hadar_cli.adapters.head import connect
from hadar_cli.adapters.simulated import Costs, SimulatedExecutor
from hadar_cli.adapters.store import RunFacts, RunStore
from hadar_cli.app.ports import CopyOrder, Executor, Failed, HandedIn, Report
from hadar_cli.core.model import Job, Launch, Mix, Node
from hadar_cli.core.steps import StepSet
from hadar_cli.node import processes
from tests.support.lab import Lab, running

SCRIPT = str(Path(__file__).parents[1] / "support" / "plain_script.py")


def job(mode: str = "train") -> Job:
    return Job(0, "plain", 10_000, 8, launch=Launch(script=SCRIPT, args=(mode,)))


def order(attempt: str, steps: tuple[int, int], seconds: float = 30.0, **fields) -> CopyOrder:
    defaults = {
        "job": job(),
        "device": "one",
        "weights": None,
        "round": 1,
        "copy": 1,
        "num_copies": 1,
        "global_step": 0,
        "job_seed": 1,
        "seed": 2,
    }
    return CopyOrder(
        attempt=attempt, steps=StepSet.of([steps]), seconds=seconds, **{**defaults, **fields}
    )


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Iterator[Lab]:
    with running(tmp_path_factory.mktemp("contract") / "lab", count=2) as lab:
        yield lab


@pytest.fixture(params=["simulated", "local", "sshd"])
def executor(request, tmp_path) -> Iterator[Executor]:
    if request.param == "simulated":
        yield SimulatedExecutor(lambda job, device: 100.0, Costs(0.5, 0.1))
        return
    nodes = (Node("one", "local"), Node("two", "local"))
    if request.param == "sshd":
        found = read_nodes(request.getfixturevalue("lab").inventory)
        workdir = str(tmp_path / "workdir")
        pairs = zip(("one", "two"), found, strict=True)
        nodes = tuple(replace(node, name=name, workdir=workdir, gpus=()) for name, node in pairs)
    store = RunStore.create(tmp_path, RunFacts("r", Mix("m", (job(),)), nodes, "", ""))
    executor = NodeExecutor(connect(nodes, store), 1, 0.0)
    executor.adopt([])
    yield executor
    executor.stop(0.0)
    assert _strays(tmp_path) == []


def _strays(below: Path) -> list[int]:
    """Processes that a worker anywhere below the directory left behind."""
    workers = {path.parent.resolve() for path in below.rglob("worker.json")}
    return [
        pid
        for worker in workers
        for pid in processes.tagged("HADAR_WORKER", f"{worker.parents[1]}/{worker.name}")
    ]


def collect(executor: Executor, count: int, within: float = 60.0) -> list[Report]:
    reports: list[Report] = []
    deadline = executor.now() + within
    while len(reports) < count and executor.now() < deadline:
        found = executor.wait(executor.now() + 1.0)
        reports += [r for r in found if isinstance(r, (HandedIn, Failed))]
    return reports


def test_a_copy_does_its_quota_and_hands_in(executor):
    executor.start(order("a", (0, 50)))
    [report] = collect(executor, 1)
    assert isinstance(report, HandedIn)
    assert (report.attempt, report.result.steps, report.result.slices) == ("a", 50, ((0, 50),))
    assert report.weights


def test_a_copy_stops_at_its_deadline_with_what_it_has(executor):
    executor.start(order("a", (0, 10_000), seconds=2.0))
    [report] = collect(executor, 1)
    assert isinstance(report, HandedIn)
    assert 0 < report.result.steps < 10_000
    assert report.result.slices == ((0, report.result.steps),)


def test_devices_work_at_the_same_time(executor):
    executor.start(order("a", (0, 30)))
    executor.start(order("b", (30, 70), device="two"))
    reports = collect(executor, 2)
    assert {r.attempt: r.result.slices for r in reports} == {"a": ((0, 30),), "b": ((30, 70),)}


def test_a_device_takes_the_next_order_after_the_first(executor):
    executor.start(order("a", (0, 20)))
    [first] = collect(executor, 1)
    executor.start(order("b", (20, 40), weights=first.weights, global_step=20))
    [second] = collect(executor, 1)
    assert second.result.slices == ((20, 40),)


def test_time_only_moves_on(executor):
    before = executor.now()
    assert executor.wait(before + 0.05) == []
    assert executor.now() >= before + 0.05


def test_recalled_copies_hand_in_early_or_fail(executor):
    executor.start(order("a", (0, 100_000), seconds=300.0))
    executor.wait(executor.now() + 3.0)
    executor.recall()
    [report] = collect(executor, 1)
    assert report.attempt == "a"
    if isinstance(report, HandedIn):
        assert report.result.steps < 100_000


def test_stopping_is_final(executor):
    executor.start(order("a", (0, 100_000), seconds=300.0))
    executor.wait(executor.now() + 0.5)
    executor.stop(0.0)
    assert not any(isinstance(r, HandedIn) for r in executor.wait(executor.now() + 0.2))
