"""A thousand nodes and a hundred thousand jobs through the product's loop, and the head's limit."""

from __future__ import annotations

import math
import resource
import time
from dataclasses import dataclass
from functools import partial

from bench.__main__ import BASELINE
from bench.frame import Run, read
from bench.paper.batches import batch, own_table
from bench.paper.cache import Cache, NotMeasured
from bench.paper.section import Setting, Text
from hadar_cli.core.model import Mix, PolicyChoice
from hadar_cli.simulation.executor import Costs
from hadar_cli.simulation.scenario import Scenario, simulate
from hadar_cli.simulation.speeds import TableSpeeds, parse_cluster

TITLE = "Scale: 1,000 nodes, 100,000 jobs, and the head's bandwidth"
SHORTER = 25.0  # than the trace's jobs, or the batch would last for a month of rounds
POLICY = "hadar"
LARGEST = (1000, 100_000)
MODEL_MB = 45.0  # ResNet-18


@dataclass(frozen=True, slots=True)
class Outcome:
    nodes: int
    gpus: int
    jobs: int
    cpu_s: float
    peak_mb: float
    rounds: int
    copies: int
    decision_s: float  # the slowest
    ttd_h: float
    bound_ratio: float


def sizes(quick: bool) -> tuple[tuple[int, int], ...]:
    """Nodes and jobs."""
    few = ((5, 500), (10, 1000), (20, 2000))
    return few if quick else (*few, (40, 4000), (100, 10_000), LARGEST)


def play(nodes: int, jobs: int, seed: int) -> Outcome:
    table, each = own_table(), nodes * 4 // 3
    devices = parse_cluster(f"v100:{each},p100:{each},k80:{nodes * 4 - 2 * each}", 4)
    members = batch(seed, jobs, table, SHORTER).jobs

    def speeds(consolidated: bool) -> TableSpeeds:
        return TableSpeeds(table, members, devices, loses=not consolidated)

    scenario = Scenario(Mix("scale", members), devices, Costs(10.0, 10.0), speeds)
    began = time.process_time()
    result = simulate(scenario, PolicyChoice(POLICY), POLICY, lambda done: None)
    if result.ttd_s is None:
        raise RuntimeError(f"{result.unfinished} jobs left: {result.problem}")
    return Outcome(
        nodes=nodes,
        gpus=len(devices),
        jobs=jobs,
        cpu_s=time.process_time() - began,
        peak_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        rounds=result.rounds,
        copies=len(result.work),
        decision_s=result.decision_ms["max"] / 1e3,
        ttd_h=result.ttd_s / 3600,
        bound_ratio=result.ttd_s / (result.lower_bound_s or result.ttd_s),
    )


@dataclass(frozen=True, slots=True)
class Measured:
    runs: list[Outcome]
    rates: Run | None  # of transfers and merges, from the stored benchmarks


def measure(setting: Setting, cache: Cache) -> Measured:
    """Whatever is there, from the smallest on: the largest takes hours."""
    runs = []
    for nodes, jobs in sizes(setting.quick):
        key = f"{nodes} nodes, {jobs} jobs, seed {setting.seed}"
        try:
            runs.append(cache.get(key, Outcome, partial(play, nodes, jobs, setting.seed)))
        except NotMeasured:
            if not runs:
                raise
            break
    return Measured(runs, read(BASELINE) if BASELINE.exists() else None)


def write(found: Measured, text: Text) -> None:
    text.say(
        "`simulate()` of the product, Hadar's policy, nodes of four GPUs of three kinds, jobs as "
        f"in the trace-driven evaluation but {SHORTER:.0f} × shorter; 360 s slots, 10 s restarts."
    )
    rows = [
        (
            f"{one.nodes:,} ({one.gpus:,})",
            f"{one.jobs:,}",
            f"{one.cpu_s:,.0f}",
            f"{1e3 * one.cpu_s / one.jobs:,.1f}",
            f"{one.peak_mb:,.0f}",
            f"{one.rounds:,}",
            # In wall time; one longer than all the work was interrupted.
            f"{one.decision_s:.2f}" if one.decision_s < one.cpu_s else "paused",
            f"{one.ttd_h:,.1f}",
            f"{one.bound_ratio:.3f}",
        )
        for one in found.runs
    ]
    head = ("nodes (GPUs)", "jobs", "CPU, s", "ms a job", "peak MB", "rounds")
    text.table((*head, "slowest decision, s", "TTD, h", "TTD ÷ bound"), rows)
    text.say("Decisions are in wall time, beside other work on the machine.")
    _growth(found.runs, text)
    if found.rates:
        _bandwidth(found.rates, text)


def _growth(runs: list[Outcome], text: Text) -> None:
    before, last = runs[-2:]
    power = math.log(last.cpu_s / before.cpu_s) / math.log(last.jobs / before.jobs)
    said = (
        f"Between the last two rows the time grows with the number of jobs (and of nodes, which "
        f"grow with it) to the power of {power:.2f}."
    )
    if (last.nodes, last.jobs) != LARGEST:
        hours = last.cpu_s * (LARGEST[1] / last.jobs) ** power / 3600
        said += (
            f" At that pace {LARGEST[0]:,} nodes and {LARGEST[1]:,} jobs take {hours:,.1f} hours: "
            "computed, not measured."
        )
    text.say(said)


def _figure(run: Run, bench: str, case: str) -> float | None:
    return next((row.ours for row in run.rows.get(bench, ()) if row.case == case), None)


def _bandwidth(run: Run, text: Text) -> None:
    pull = _figure(run, "transfer", "five pulls of 100 MB, beside five scp")
    merge_s = _figure(run, "merge", "5 copies of 400 MB")
    if pull is None or merge_s is None:
        return
    merge = 5 * 400 / merge_s  # MB/s read
    text.say(
        "### The head's bandwidth",
        "Every merge brings each copy's weights to the head and the merged ones back. Measured "
        f"({run.commit}, {run.when}, {run.machine}): {pull:,.0f} MB/s of pulls in all over "
        f"loopback SSH with both ends on the same cores, and {merge:,.0f} MB/s of copies merged. "
        f"With c copies of S MB, a merge at the head takes about 2·c·S/{pull:,.0f} s of "
        f"transfer and c·S/{merge:,.0f} s of merging. For {MODEL_MB:.0f} MB (ResNet-18):",
    )
    rows = []
    for copies in (5, 16, 64, 256, 1000):
        head_s = 2 * copies * MODEL_MB / pull + copies * MODEL_MB / merge
        tree_s, depth = _tree_s(copies, pull, merge)
        ring_s = 2 * MODEL_MB / pull + MODEL_MB / merge
        rows.append(
            (
                f"{copies:,}",
                f"{head_s:,.1f}",
                f"{20 * head_s / 60:,.1f}",
                f"{tree_s:,.1f} ({depth} levels)",
                f"{ring_s:,.1f}",
                f"{head_s / tree_s:,.1f} × / {head_s / ring_s:,.1f} ×",
            )
        )
    text.table(
        (
            "copies merged at once",
            "all through the head, s",
            "least minutes between merges (5 % of the time)",
            "tree of merges on nodes, fan-in 8, s",
            "each block merged on one node (all-reduce), s",
            "bought",
        ),
        rows,
    )
    text.say(
        "The last two are computed, not built: a tree has every node pull from eight others, merge "
        "and pass on, with one node's bandwidth at each level; node-to-node transfer by blocks "
        "moves twice the weights over every node's own link whatever the number of copies. Both "
        "need nodes that may reach each other, which SSH from the head alone does not; up to some "
        "sixteen copies of a model of this size the head's own link is enough. What is built, "
        "`merge.hand_in: bf16`, halves the way up: a quarter of all bytes. Jobs are merged "
        "apart, so it is the bytes of all copies together that count: 1,000 nodes with one copy "
        "each bring as much as one job with 1,000 copies, unless their jobs are not forked at all."
    )


def _tree_s(copies: int, pull: float, merge: float, fan_in: int = 8) -> tuple[float, int]:
    """Seconds of going up and down a tree whose levels take turns."""
    depth, left, seconds = 0, copies, 0.0
    while left > 1:
        width = min(fan_in, left)
        seconds += 2 * width * MODEL_MB / pull + width * MODEL_MB / merge
        left, depth = -(-left // width), depth + 1
    return seconds, depth
