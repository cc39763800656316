"""Finished and unlucky runs for reports: simulated, and stored like real ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hadar_cli.config.inventory import read_nodes
from hadar_cli.config.mixes import read_mix
from hadar_cli.core import events as e
from hadar_cli.core.measures.forecast import Forecast
from hadar_cli.core.measures.metrics import lower_bound
from hadar_cli.core.model import Device, PolicyChoice, Trial
from hadar_cli.runs.store import FileJournal, RunFacts, RunStore
from hadar_cli.simulation.executor import Costs
from tests.support.worlds import World, make_mix, make_world

ROOT = Path(__file__).parents[2]
HOSTILE = "\x1b[2J\x1b]0;owned\x07[bold red]boom[/] \u202enrut\r\nsecond line " + "x" * 5000
MARKUP = "</script><img src='https://example.org/x' onerror='document.title=`owned`'>"


def devices_of(world: World) -> list[Device]:
    return [device for node in world.nodes for device in node.devices]


def trained_world(targets: tuple[int, ...] = (300, 200, 100)) -> World:
    return _trained(make_world(make_mix(targets), costs=Costs(start_s=2.0, sync_s=0.3)))


def trained_sweep() -> World:
    """Three trials that nobody judges."""
    mix = make_mix((60, 60, 60))
    trials = [replace(j, trial=Trial("sweep", j.id, {"lr": 0.1**j.id})) for j in mix.jobs]
    return _trained(make_world(replace(mix, jobs=tuple(trials))))


def m5_world(policy: str = "hadare") -> World:
    """The paper's M-5 on its five devices, as fast as these would be, with losses and quality."""
    mix = replace(read_mix(ROOT / "mixes/m5.yaml"), policy=PolicyChoice(policy))
    nodes = read_nodes(ROOT / "nodes.toml")
    world = _trained(make_world(mix, nodes, costs=Costs(start_s=2.0, sync_s=0.3)))
    world.journal.events[:] = _with_learning(world)
    return world


def _trained(world: World) -> World:
    world.loop.run(lambda: lower_bound(world.mix, devices_of(world), world.journal.events))
    return world


def _with_learning(world: World) -> list[e.Event]:
    """The run's events with falling losses, and measured quality at both ends."""
    started, *happened, finished = world.journal.events
    learnt = [
        replace(event, loss=4.0 / (1 + event.t)) if isinstance(event, e.CopyFinished) else event
        for event in happened
    ]
    jobs, device = [job.id for job in world.mix.jobs], devices_of(world)[0].name
    generations = {job: world.state.jobs[job].generation for job in jobs}
    return [
        started,
        *(x for job in jobs for x in _evaluation(started.t, job, device, 0, 0.1)),
        *learnt,
        *(x for job in jobs for x in _evaluation(finished.t, job, device, generations[job], 0.9)),
        finished,
    ]


def _evaluation(
    t: float, job: int, device: str, generation: int, accuracy: float
) -> tuple[e.Event, e.Event]:
    attempt = f"evaluate-{job}-{generation}"
    begun = e.CopyStarted(t, attempt, job, job, device, 1, generation, (), purpose="evaluate")
    quality = {"accuracy": accuracy}
    return begun, e.CopyFinished(t, attempt, 0, (), 0.0, 0.0, 0.0, "done", quality=quality)


def unlucky_world(why: str = HOSTILE) -> World:
    """Loses a copy, a device and weights, is killed, goes on and is interrupted."""
    world = trained_world()
    happened = world.journal.events
    merged = next(event for event in happened if isinstance(event, e.WeightsMerged))
    cut, t = happened.index(merged), merged.t
    begun = [event for event in happened[:cut] if isinstance(event, e.CopyStarted)]
    closed = {x.attempt for x in happened[:cut] if isinstance(x, e.CopyFinished)}
    (lost, *_) = [copy for copy in begun if copy.attempt not in closed]
    world.journal.events[cut:] = [
        e.WeightsMerged(t, merged.job, 1, "", (), tuple((a, why) for a in merged.accepted)),
        e.CopyLost(t + 1, lost.attempt, why),
        e.DeviceLost(t + 2, lost.device, why),
        e.HeadStarted(t + 3, 2),
        e.RunStopped(t + 4, why),
    ]
    return world


def stored(
    world: World, runs: Path, name: str = "run-1", forecast: Forecast | None = None
) -> RunStore:
    facts = RunFacts(name, world.mix, world.nodes, "2026-11-16T06:26:18+00:00", "0", forecast)
    store = RunStore.create(runs, facts)
    journal = FileJournal(store.journal_path)
    for event in world.journal.events:
        journal.append(event)
    journal.close()
    return store
