"""Small clusters and mixes for tests, and a loop over the simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hadar_cli.adapters.simulated import Costs, MemoryJournal, NoWeights, SimulatedExecutor
from hadar_cli.app.ports import Journal, Observers
from hadar_cli.app.rounds import RoundLoop
from hadar_cli.app.tracker import Tracker
from hadar_cli.core import events
from hadar_cli.core.model import Gpu, Job, Mix, Node, PolicyChoice
from hadar_cli.core.policies import registry
from hadar_cli.core.state import RunState
from hadar_cli.core.throughput import RateModel

SPEEDS = {"rtx3090": 1.0, "titan-rtx": 0.8, "a2000": 0.45, "t4": 0.42, "t400": 0.12}


def make_mix(targets: Sequence[int], slot_s: float = 10.0, **fields: object) -> Mix:
    jobs = tuple(
        Job(number, f"job-{number}", target, batch_size=16, workload=f"w{number}")
        for number, target in enumerate(targets)
    )
    return Mix("test", jobs, slot_s=slot_s, **fields)  # type: ignore[arg-type]


def make_nodes(speeds: dict[str, float] | None = None) -> tuple[Node, ...]:
    return tuple(
        Node(name, "local", gpus=(Gpu(name, 100 * speed, 16),), emulated_speed=speed)
        for name, speed in (speeds or SPEEDS).items()
    )


@dataclass
class World:
    """A mix on a simulated cluster, ready to run."""

    mix: Mix
    nodes: tuple[Node, ...]
    executor: SimulatedExecutor
    tracker: Tracker
    loop: RoundLoop
    journal: MemoryJournal

    @property
    def state(self) -> RunState:
        return self.tracker.state


def make_world(
    mix: Mix,
    nodes: tuple[Node, ...] | None = None,
    *,
    rate: Callable[[int, tuple[str, ...]], float] | None = None,
    costs: Costs = Costs(),
    past: Sequence[events.Event] = (),
    journal: Journal | None = None,
) -> World:
    nodes = nodes or make_nodes()
    devices = [device for node in nodes for device in node.devices]
    names = [device.name for device in devices]
    speeds = {device.name: device.emulated_speed or 1.0 for device in devices}
    state, rates = RunState(mix.jobs), RateModel(mix.jobs, devices)
    for event in past:
        state.apply(event)
    executor = SimulatedExecutor(
        rate or (lambda job, gang: 20.0 * speeds[gang[0]]), costs, starts_at=state.now
    )
    memory = MemoryJournal()
    tracker = Tracker(mix, names, state, journal or memory, NoWeights(), executor.now, Observers())
    policy = registry.create(PolicyChoice(mix.policy.name, mix.policy.fields))
    loop = RoundLoop(mix, devices, policy, executor, tracker, rates, Observers())
    tracker.record(events.HeadStarted(executor.now(), state.epoch + 1))
    return World(mix, nodes, executor, tracker, loop, memory)
