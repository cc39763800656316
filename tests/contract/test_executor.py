"""One suite for every executor: what the round loop relies on, simulated and for real."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from hadar_cli.core.model import Job, Launch
from hadar_cli.core.steps import StepSet
from hadar_cli.engine.ports import CopyOrder, Executor, Failed, HandedIn, NodeBack, NodeGone, Report
from hadar_cli.nodes.session import decisions, returning
from tests.contract.places import (
    FaultyPlace,
    Place,
    RayPlace,
    SimulatedPlace,
    SlurmPlace,
    local_place,
    piped_place,
    sshd_place,
)
from tests.support.lab import Lab, running
from tests.support.raylets import RayLab, running_ray
from tests.support.slurm import SlurmLab, running_slurm

SUPPORT = Path(__file__).parents[1] / "support"
SCRIPT = str(SUPPORT / "plain_script.py")


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


@pytest.fixture(scope="module")
def slurm(tmp_path_factory) -> Iterator[SlurmLab]:
    with running_slurm(tmp_path_factory.mktemp("contract") / "slurm", count=2) as lab:
        yield lab


@pytest.fixture(scope="module")
def ray(tmp_path_factory) -> Iterator[RayLab]:
    with running_ray(tmp_path_factory.mktemp("contract") / "ray", count=2) as lab:
        yield lab
        RayPlace.end(lab)


@pytest.fixture(params=["simulated", "local", "sshd", "slurm", "ray", "pipes", "faulty"])
def place(request, tmp_path) -> Iterator[Place]:
    match request.param:
        case "simulated":
            place: Place = SimulatedPlace()
        case "local":
            place = local_place(tmp_path)
        case "sshd":
            place = sshd_place(tmp_path, request.getfixturevalue("lab"))
        case "slurm":
            place = SlurmPlace(tmp_path, request.getfixturevalue("slurm"))
        case "ray":
            place = RayPlace(tmp_path, request.getfixturevalue("ray"))
        case "pipes":
            place = piped_place(tmp_path)
        case _:
            place = FaultyPlace(tmp_path)
    yield place
    place.close()


@pytest.fixture
def executor(place: Place) -> Executor:
    return place.executor


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


def test_a_copy_that_is_recalled_at_once_ends_as_well(executor):
    """Its process is only being born when it is asked to leave."""
    executor.start(order("a", (0, 100_000), seconds=300.0))
    executor.recall()
    [report] = collect(executor, 1, within=30.0)
    assert report.attempt == "a"


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


# -- orders sent ahead ---------------------------------------------------------------------------


def waiting_job() -> Job:
    return Job(1, "waiting", 10_000, 8, launch=Launch(script=str(SUPPORT / "waiting_script.py")))


def test_an_order_sent_ahead_is_done_in_the_same_process(executor):
    mine = waiting_job()
    executor.start(order("a", (0, 50), job=mine))
    executor.start(order("b", (50, 80), job=mine, follows="a"))
    first, second = collect(executor, 2)
    assert (first.attempt, first.result.slices) == ("a", ((0, 50),))
    assert (second.attempt, second.result.slices) == ("b", ((50, 80),))
    assert second.warm and second.stays and second.weights != first.weights


def test_an_order_sent_ahead_fails_with_the_one_it_follows(executor):
    mine = waiting_job()
    executor.start(order("a", (0, 100_000), seconds=300.0, job=mine))
    executor.start(order("b", (100_000, 100_010), job=mine, follows="a"))
    executor.wait(executor.now() + 3.0)
    executor.recall()
    reports = {report.attempt: report for report in collect(executor, 2)}
    assert set(reports) == {"a", "b"}
    ahead = reports["b"]
    assert isinstance(ahead, HandedIn) or ahead.reason.is_node_fault


# -- a head that was killed ------------------------------------------------------------------------


def test_a_copy_under_way_is_adopted_or_reported_as_lost(place):
    """And it is told once, whatever became of it; one that no node knows of is lost."""
    under_way, never = order("a", (0, 400)), order("never", (400, 500), device="two")
    place.executor.start(under_way)
    place.executor.wait(place.executor.now() + 1.5)
    head = place.next_head()
    head.adopt([under_way, never])
    reports = {report.attempt: report for report in collect(head, 2)}
    assert isinstance(reports["never"], Failed) and reports["never"].reason.is_node_fault
    mine = reports["a"]
    if isinstance(mine, HandedIn):
        assert mine.result.slices == ((0, 400),) and mine.weights
    else:
        assert mine.reason.is_node_fault
    head.start(order("b", (400, 420)))
    [report] = collect(head, 1)
    assert (report.attempt, report.result.slices) == ("b", ((400, 420),))


# -- a node that goes and comes --------------------------------------------------------------------


def until(executor: Executor, kind: type[Report], within: float = 60.0) -> list[Report]:
    reports: list[Report] = []
    deadline = executor.now() + within
    while not any(isinstance(report, kind) for report in reports):
        assert executor.now() < deadline, reports
        reports += executor.wait(executor.now() + 0.5)
    return reports


@pytest.fixture
def impatient(monkeypatch) -> None:
    monkeypatch.setattr(decisions, "LEASE_S", 4.0)
    monkeypatch.setattr(returning, "RETURN_EVERY_S", 0.5)
    monkeypatch.setattr(decisions, "LOOK_EVERY_S", 0.5)


def test_a_node_that_goes_costs_its_copy_and_is_welcome_back(impatient, place):
    executor = place.executor
    executor.start(order("a", (0, 100_000), seconds=300.0))
    executor.start(order("b", (0, 20), device="two"))
    [other] = collect(executor, 1)
    assert (other.attempt, other.result.steps) == ("b", 20)
    executor.wait(executor.now() + 1.0)
    place.take_away()
    reports = until(executor, NodeGone)
    [gone] = [report for report in reports if isinstance(report, NodeGone)]
    assert gone.devices == ("one",)
    lost = [r for r in (*reports, *collect(executor, 1, 2.0)) if isinstance(r, Failed)]
    assert [(r.attempt, r.reason.is_node_fault) for r in lost] == [("a", True)]
    executor.start(order("c", (0, 20)))
    [refused] = collect(executor, 1)
    assert isinstance(refused, Failed) and refused.reason.is_node_fault
    place.bring_back()
    assert [r.devices for r in until(executor, NodeBack) if isinstance(r, NodeBack)] == [("one",)]
    executor.start(order("d", (0, 20)))
    [report] = collect(executor, 1)
    assert (report.attempt, report.result.steps) == ("d", 20)
