"""Which way a job took, and why, from the journal: alone, by shared steps, by merged copies."""

from __future__ import annotations

from dataclasses import replace

from hadar_cli.core import events
from hadar_cli.core.measures.metrics import summarise
from hadar_cli.core.measures.ways import ways_of
from hadar_cli.core.model import Gpu, Job, Launch, Mix, Node, PolicyChoice
from hadar_cli.core.reasons import Loss
from hadar_cli.report.ways import way_words, why_words
from hadar_cli.simulation.forecast import forecast_run, gather

T4 = Gpu("T4", 65.0, 16.0)
NODES = tuple(Node(name, "local", gpus=(T4,)) for name in ("x", "y"))
DEVICES = [device for node in NODES for device in node.devices]
JOB = Job(0, "job", 600, 32, shares="proportional", launch=Launch(workload="weather"))


def copy(attempt: str, gang: tuple[str, ...], steps: int, step_s: float) -> list[events.Event]:
    fields = {"job": 0, "copy": 1, "round": 1, "generation": 0, "slices": ((0, steps),)}
    shared = gang if len(gang) > 1 else ()
    started = events.CopyStarted(0.0, attempt, device=gang[0], gang=shared, **fields)
    members = tuple((1 / len(gang), 0.016) for _ in gang) if len(gang) > 1 else ()  # without waits
    train_s = steps * step_s
    done = events.CopyFinished(
        1.0, attempt, steps, ((0, steps),), 0.1, train_s, 0.1, "quota", members=members
    )
    return [started, done]


def merged(*accepted: str) -> events.Event:
    return events.WeightsMerged(2.0, 0, 1, "w", accepted, bytes=400_000)


STORY = [
    *(*copy("a", ("x",), 100, 0.03), merged("a")),
    *(*copy("b", ("x", "y"), 200, 0.02), merged("b")),
    *(*copy("c", ("x",), 200, 0.03), *copy("d", ("y",), 100, 0.06), merged("c", "d")),
]


def test_steps_are_told_by_the_way_they_came_about():
    ways = ways_of([JOB], DEVICES, "hadare", STORY)[0]
    assert (ways.alone, ways.shared, ways.merged) == (100, 200, 300)
    assert way_words(ways) == "100 steps alone, 200 shared, 300 in merged copies"
    assert ways.decided_by == "time" and ways.sharing_pays
    told = why_words(ways)
    assert told.startswith("a step takes 20 ms where 2 devices share it") and "fastest" in told


def test_what_decided_is_told():
    def why(job: Job, happened: list[events.Event], policy: str = "hadare") -> str:
        return why_words(ways_of([job], DEVICES, policy, happened)[0])

    alone, slow = STORY[:3], [*copy("b", ("x", "y"), 200, 0.029), merged("b")]
    assert why(JOB, [*STORY[6:], *slow]).startswith("sharing a step would take 29 ms, the fastest")
    heavy = replace(merged("c", "d"), bytes=100_000_000)
    assert "would take" in why(JOB, [*STORY[6:-1], heavy]), "by the bytes that it would exchange"
    assert why(replace(JOB, mode="merge"), alone) == "as its mix asks for"
    assert why(replace(JOB, gpus=2), STORY[3:6], "hadar") == "as its mix asks for"
    assert why(JOB, alone, "tiresias") == "one device at a time, by its policy"
    lost = [
        copy("e", ("x", "y"), 1, 1.0)[0],
        events.CopyLost(1.0, "e", "", reason=Loss.CANNOT_SHARE),
    ]
    assert why(JOB, [*lost, *alone]) == "its script cannot share steps"


def test_a_dry_run_foresees_the_ways(tmp_path):
    mix = Mix("m", (JOB,), policy=PolicyChoice("hadare"), slot_s=5.0)
    expected = forecast_run(mix, NODES, gather(mix, NODES, tmp_path))
    assert expected is not None
    ways = expected.ways["job"]
    assert ways.alone + ways.shared + ways.merged == 600 and ways.decided_by == "time"


def test_a_gang_is_not_told_that_forking_did_not_pay():
    mix = Mix("m", (replace(JOB, gpus=2),), policy=PolicyChoice("hadar"), slot_s=5.0)
    summary = summarise("r", mix, DEVICES, [events.HeadStarted(0.0, 1), *STORY[3:6]])
    assert summary.jobs[0].copies == 2 and summary.jobs[0].forking_pays
