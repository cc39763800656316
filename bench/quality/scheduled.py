"""When the copies of each job meet in the mix M-5, as HadarE schedules it on the paper's lab."""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path

from hadar_cli.adapters.config import read_mix, read_nodes
from hadar_cli.adapters.head import devices_of
from hadar_cli.adapters.simulated import Costs, SimulatedExecutor
from hadar_cli.adapters.simulation import ModelledSpeeds, play
from hadar_cli.app.ports import Progressed
from hadar_cli.core import events
from hadar_cli.core.model import Mix
from hadar_cli.core.policies import registry
from hadar_cli.core.state import RunState

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


class _Merges:
    """Notes the steps of every device at each merge."""

    def __init__(self, mix: Mix, devices: list[str], state: RunState) -> None:
        self._state, self._column = state, {device: i for i, device in enumerate(devices)}
        self._steps: dict[str, int] = {}
        self.of: dict[str, list[list[int]]] = {job.workload: [] for job in mix.jobs}

    def happened(self, event: events.Event) -> None:
        if isinstance(event, events.CopyFinished):
            self._steps[event.attempt] = event.steps
        if isinstance(event, events.WeightsMerged):
            counts = [0] * len(self._column)
            for attempt in event.accepted:
                counts[self._column[self._state.device_of(attempt)]] += self._steps[attempt]
            self.of[self._state.jobs[event.job].job.workload].append(counts)

    def progressed(self, report: Progressed) -> None: ...

    def tick(self) -> None: ...


@functools.cache
def merges_in_mix() -> dict[str, list[list[int]]]:
    """The steps of every device of ``nodes.toml`` until each merge, by workload.

    Kept in a file: a change to the scheduler would otherwise make waste of what was measured.
    Remove the file to have M-5 scheduled anew.
    """
    if not KEPT.exists():
        lines = (f"{json.dumps(job)}: {json.dumps(merges)}" for job, merges in _schedule().items())
        KEPT.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    merges: dict[str, list[list[int]]] = json.loads(KEPT.read_text())
    return merges


def _schedule() -> dict[str, list[list[int]]]:
    mix = read_mix(ROOT / "mixes/m5.yaml")
    jobs = tuple(replace(job, target_steps=STEPS[job.workload]) for job in mix.jobs)
    mix = replace(mix, jobs=jobs)
    devices = devices_of(read_nodes(ROOT / "nodes.toml"))
    state = RunState(mix.jobs)
    seen = _Merges(mix, [device.name for device in devices], state)
    speeds = ModelledSpeeds(mix.jobs, devices)
    executor = SimulatedExecutor(speeds.gang, Costs())
    play(mix, devices, registry.create(mix.policy), executor, speeds.known(), state, seen)
    return seen.of


def forked_in_mix(workload: str) -> int:
    """The steps that several copies of the job do between two merges."""
    merges = merges_in_mix()[workload]
    return sum(sum(counts) for counts in merges if sum(count > 0 for count in counts) > 1)
