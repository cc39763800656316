"""Small clusters and mixes for tests, and a loop over the simulator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hadar_cli import policies
from hadar_cli.core import events
from hadar_cli.core.estimates.throughput import RateModel
from hadar_cli.core.model import Gpu, Job, Mix, Node, PolicyChoice
from hadar_cli.core.state import RunState
from hadar_cli.engine.ports import Journal, Observer, Observers
from hadar_cli.engine.rounds import RoundLoop
from hadar_cli.engine.tracker import Tracker
from hadar_cli.simulation.executor import Costs, NoWeights, SimulatedExecutor

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


class MemoryJournal:
    """A journal for runs that somebody will look into."""

    def __init__(self) -> None:
        self.events: list[events.Event] = []

    def append(self, event: events.Event) -> None:
        self.events.append(event)


class Validator(Observer):
    """Looks after every wait of the loop whether its parts agree."""

    loop: RoundLoop

    def tick(self) -> None:
        self.loop.validate()


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
    state, rates = RunState(mix.jobs, past), RateModel(mix.jobs, devices)
    executor = SimulatedExecutor(
        rate or (lambda job, gang: 20.0 * speeds[gang[0]]), costs, starts_at=state.now
    )
    memory, validator = MemoryJournal(), Validator()
    tracker = Tracker(mix, names, state, journal or memory, NoWeights(), executor.now, Observers())
    policy = policies.create(PolicyChoice(mix.policy.name, mix.policy.fields))
    loop = RoundLoop(mix, devices, policy, executor, tracker, rates, Observers([validator]))
    validator.loop = loop
    tracker.record(events.HeadStarted(executor.now(), state.epoch + 1))
    return World(mix, nodes, executor, tracker, loop, memory)
