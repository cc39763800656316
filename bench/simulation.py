"""How long whole simulations take, beside a million turns of a bare heap.

    python -m bench --only simulation

The heap is a yardstick of this Python and this processor, so that runs on other machines can be
compared. Processor time is counted, so that a busy machine does not matter much.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Iterator

from bench.frame import Row, beside
from bench.paper.batches import batch, own_table
from hadar_cli.core.model import Mix, PolicyChoice
from hadar_cli.simulation.executor import Costs
from hadar_cli.simulation.scenario import Scenario, simulate
from hadar_cli.simulation.speeds import TableSpeeds, parse_cluster

CLUSTER = "v100:20,p100:20,k80:20"


def scenario(jobs: int, seed: int = 0) -> Scenario:
    table, devices = own_table(), parse_cluster(CLUSTER, 4)
    trace = batch(seed, jobs, table)

    def speeds(consolidated: bool) -> TableSpeeds:
        return TableSpeeds(table, trace.jobs, devices, loses=not consolidated)

    return Scenario(Mix(f"batch{jobs}", trace.jobs), devices, Costs(10.0, 10.0), speeds)


def heap_s(turns: int = 1_000_000) -> float:
    began, heap = time.process_time(), list(range(500))
    for number in range(turns):
        heapq.heappush(heap, (number * 7919) % 100_003)
        heapq.heappop(heap)
    return time.process_time() - began


def rows(quick: bool) -> Iterator[Row]:
    cases = [("hadar", 120), ("hadare", 24)]
    if not quick:
        cases += [("hadar", 480), ("tiresias", 480), ("yarn-cs", 480)]
    for policy, jobs in cases:
        ours, theirs = [], []
        for _ in range(3):
            began = time.process_time()
            result = simulate(scenario(jobs), PolicyChoice(policy), policy, lambda done: None)
            ours.append(time.process_time() - began)
            theirs.append(heap_s())
            if result.unfinished:
                raise RuntimeError(f"{policy} left {result.unfinished} jobs: {result.problem}")
        yield beside(f"{jobs} jobs on 60 GPUs, {policy}", "s", ours, "a million turns", theirs)
