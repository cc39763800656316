"""When the copies of each job meet in the mix M-5, as HadarE schedules it on the paper's lab."""

from __future__ import annotations

import functools
from dataclasses import replace
from pathlib import Path

from hadar_cli.adapters.config import read_mix, read_nodes
from hadar_cli.adapters.head import devices_of
from hadar_cli.adapters.simulated import Costs, SimulatedExecutor
from hadar_cli.adapters.simulation import ModelledSpeeds, play
from hadar_cli.app.ports import Progressed
from hadar_cli.core import events
from hadar_cli.core.model import MergeRules, Mix
from hadar_cli.core.policies import registry
from hadar_cli.core.state import RunState

ROOT = Path(__file__).parents[2]
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
def merges_in_mix(rules: MergeRules) -> dict[str, list[list[int]]]:
    """The steps of every device of ``nodes.toml`` until each merge, by workload."""
    mix = read_mix(ROOT / "mixes/m5.yaml")
    jobs = tuple(replace(job, target_steps=STEPS[job.workload]) for job in mix.jobs)
    mix = replace(mix, jobs=jobs, merge=rules)
    devices = devices_of(read_nodes(ROOT / "nodes.toml"))
    state = RunState(mix.jobs)
    seen = _Merges(mix, [device.name for device in devices], state)
    speeds = ModelledSpeeds(mix.jobs, devices)
    executor = SimulatedExecutor(speeds.gang, Costs())
    play(mix, devices, registry.create(mix.policy), executor, speeds.known(), state, seen)
    return seen.of


def forked_in_mix(rules: MergeRules, workload: str) -> int:
    """The steps that several copies of the job do between two merges."""
    merges = merges_in_mix(rules)[workload]
    return sum(sum(counts) for counts in merges if sum(count > 0 for count in counts) > 1)
