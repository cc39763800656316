"""When the copies of each job met in real runs of the mix M-5 over SSH on the lab's five nodes."""

from __future__ import annotations

import functools
import json
from pathlib import Path

from hadar_cli.core import events
from hadar_cli.runs.store import RunFacts, find_run, read_journal

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "bench/results/m5.json"
# Long enough for all five to learn most of what their data hold, short enough for many seeds.
STEPS = {
    "image_classification": 600,
    "language_model": 900,
    "translation": 1000,
    "recommender": 900,
    "weather": 600,
}

Merges = dict[str, list[list[int]]]  # by workload: the steps of every device until each merge


def keep(runs: list[Path]) -> None:
    """Takes the merges of these runs for those that every seed in turn is trained by."""
    lines = [json.dumps(_merges_of(run)) for run in runs]
    KEPT.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def _merges_of(run: Path) -> Merges:
    store = find_run(run.parent, run.name)
    return fold(store.facts, read_journal(store.journal_path))


def fold(facts: RunFacts, happened: list[events.Event]) -> Merges:
    column = {node.name: i for i, node in enumerate(facts.nodes)}
    workload = {job.id: job.workload for job in facts.mix.jobs}
    merges: Merges = {job.workload: [] for job in facts.mix.jobs}
    where: dict[str, int] = {}
    steps: dict[str, int] = {}
    for event in happened:
        if isinstance(event, events.CopyStarted):
            where[event.attempt] = column[event.device.partition(":")[0]]
        if isinstance(event, events.CopyFinished):
            steps[event.attempt] = event.steps
        if isinstance(event, events.WeightsMerged):
            counts = [0] * len(column)
            for attempt in event.accepted:
                counts[where[attempt]] += steps[attempt]
            merges[workload[event.job]].append(counts)
    return merges


@functools.cache
def _kept() -> list[Merges]:
    runs: list[Merges] = json.loads(KEPT.read_text())
    return runs


def merges_in_mix(workload: str, seed: int) -> list[list[int]]:
    """As in one of the runs that were kept, another one for every seed."""
    return _kept()[seed % len(_kept())][workload]


def steps_in_mix(workload: str) -> int:
    return sum(map(sum, merges_in_mix(workload, 0)))


def forked_in_mix(workload: str, seed: int) -> int:
    """The steps that several copies of the job did between two merges."""
    merges = merges_in_mix(workload, seed)
    return sum(sum(counts) for counts in merges if sum(count > 0 for count in counts) > 1)
