"""What real runs tell of costs, speeds and sizes, for simulations and forecasts to rest on."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TypeAlias

from hadar_cli.core import events
from hadar_cli.core.estimates.throughput import RateModel
from hadar_cli.core.model import Device, Job, Mix, devices_of
from hadar_cli.core.state import RunState
from hadar_cli.runs.store import RunFacts
from hadar_cli.simulation.executor import Costs
from hadar_cli.simulation.scenario import Scenario
from hadar_cli.simulation.speeds import ModelledSpeeds

# A class of jobs on a device; the device by all its facts, not only by a name that may move.
_Pair: TypeAlias = tuple[tuple[object, ...], Device]

# What a later cold start costs of a device's first, in the runs looked at: 2.6 of 9.2 s, 3.8 of
# 10.7 s, 16.5 of 40 s. Used while no later one has been seen.
_LATER_SHARE = 1 / 3

_ON_GPUS = Costs(start_s=10.0, sync_s=10.0)
_SHORTEST_SLOT_S, _LONGEST_SLOT_S = 5.0, 720.0


def assumed_costs(accelerators: bool) -> Costs:
    """What is assumed before any run has told: the paper's 10 s, or less for local stand-ins."""
    return _ON_GPUS if accelerators else Costs()


def slot_for(costs: Costs) -> float:
    """``slot_s: auto``: a slot at whose end handing in takes a thirty-sixth of the time.

    That is the paper's best slot, 360 s, at its 10 s; see the sweep in docs/paper.md.
    """
    return min(_LONGEST_SLOT_S, max(_SHORTEST_SLOT_S, 36 * costs.sync_s))


@dataclass(slots=True)
class Fit:
    """What journals say; of several runs, the one added first is believed where they differ."""

    first_start_s: list[float] = field(default_factory=list)
    start_s: list[float] = field(default_factory=list)
    sync_s: list[float] = field(default_factory=list)
    merge_s: list[float] = field(default_factory=list)
    bytes: dict[Hashable, int] = field(default_factory=dict)  # of a class's weights
    trained: dict[_Pair, tuple[float, float]] = field(default_factory=dict)  # steps, seconds
    ttd_s: float = 0.0

    @property
    def costs(self) -> Costs:
        """Medians over all copies; a device's first start is apart, as it imports everything."""
        first_s = _median(self.first_start_s)
        return Costs(
            start_s=_median(self.start_s) if self.start_s else first_s * _LATER_SHARE,
            sync_s=_median(self.sync_s) + _median(self.merge_s),
            first_start_s=first_s if self.first_start_s else None,
        )

    def rates(self, jobs: Sequence[Job], devices: Sequence[Device]) -> RateModel:
        """The rates measured on the whole, and what they make of the pairs not yet seen."""
        # A stand-in trains at the pace it is given, whatever GPU the scheduler takes it for.
        paced = [replace(d, gpu=None) if d.emulated_speed else d for d in devices]
        model = RateModel(jobs, paced)
        for job in {job.throughput_class: job for job in reversed(jobs)}.values():
            mine = {
                d: work for (kind, d), work in self.trained.items() if kind == job.throughput_class
            }
            per_pace = _steps_at_full_pace(mine)
            for device in devices:
                # The model forgets; told everything about a pair at once, it cannot.
                if device in mine:
                    model.observe(job.id, device.name, *mine[device])
                elif device.emulated_speed and per_pace:
                    model.observe(job.id, device.name, per_pace * device.emulated_speed, 1.0)
        return model

    def add(self, mix: Mix, devices: Sequence[Device], happened: Iterable[events.Event]) -> None:
        """Takes in a run's journal, as far as it goes."""
        state, by_name = RunState(mix.jobs), {device.name: device for device in devices}
        visited: set[str] = set()
        fresh: dict[_Pair, tuple[float, float]] = {}
        costs = Fit()
        for event in state.following(happened):
            match event:
                case events.HeadStarted():
                    visited.clear()
                case events.WeightsMerged() if event.bytes:
                    costs.merge_s.append(event.seconds)
                    self.bytes.setdefault(state.jobs[event.job].job.throughput_class, event.bytes)
                case events.CopyFinished():
                    copy = state.started[event.attempt]
                    costs._add_start(event, first=copy.device not in visited)
                    visited.add(copy.device)
                    if event.steps and copy.device in by_name:
                        lasted_s = event.t - copy.t - event.start_s - event.train_s
                        costs.sync_s.append(max(0.0, lasted_s))
                        kind = state.jobs[copy.job].job.throughput_class
                        pair = kind, by_name[copy.device]
                        steps, seconds = fresh.get(pair, (0.0, 0.0))
                        fresh[pair] = steps + event.steps, seconds + event.train_s
        self.trained = {**fresh, **self.trained}
        self.ttd_s = self.ttd_s or state.now
        for name in ("first_start_s", "start_s", "sync_s", "merge_s"):
            setattr(self, name, getattr(self, name) or getattr(costs, name))

    def _add_start(self, event: events.CopyFinished, first: bool) -> None:
        if not event.warm:
            (self.first_start_s if first else self.start_s).append(event.start_s)


def _steps_at_full_pace(trained: Mapping[Device, tuple[float, float]]) -> float:
    """Steps per second of one whole core, as the stand-ins tell it; 0 if none has trained."""
    paced = [(steps, s * d.emulated_speed) for d, (steps, s) in trained.items() if d.emulated_speed]
    core_s = sum(seconds for _, seconds in paced)
    return sum(steps for steps, _ in paced) / core_s if core_s else 0.0


def _median(seconds: Sequence[float]) -> float:
    return median(seconds) if seconds else 0.0


def fit(mix: Mix, devices: Sequence[Device], happened: Iterable[events.Event]) -> Fit:
    """What one run's journal says."""
    fitted = Fit()
    fitted.add(mix, devices, happened)
    return fitted


def scenario_like(facts: RunFacts, happened: Sequence[events.Event]) -> tuple[Scenario, Fit]:
    """A run as a scenario: its jobs and machines at the costs and speeds that it measured.

    Devices that it lost for good are lost at the same time again.
    """
    devices = tuple(devices_of(facts.nodes))
    fitted = fit(facts.mix, devices, happened)
    truth, jobs = fitted.rates(facts.mix.jobs, devices), facts.mix.jobs
    return (
        Scenario(
            facts.mix,
            devices,
            fitted.costs,
            lambda _: ModelledSpeeds(jobs, devices, truth),
            prolongs=False,
            losses=_losses(happened),
        ),
        fitted,
    )


def _losses(happened: Iterable[events.Event]) -> tuple[tuple[str, float], ...]:
    gone: dict[str, float] = {}
    for event in happened:
        match event:
            case events.DeviceLost():
                gone[event.device] = event.t
            case events.DeviceReturned():
                gone.pop(event.device, None)
            case events.HeadStarted():
                gone.clear()  # a new head tries every machine again
    return tuple(gone.items())
