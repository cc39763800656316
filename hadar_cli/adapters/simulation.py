"""Whole simulations: jobs on a cluster that exists on paper, one result for each policy.

Every policy is run by the one round loop over ``SimulatedExecutor``. Gangs run on from slot to slot
and pay the restart cost whenever their devices change; forked copies hand in at every slot's end
and pay the sync cost for it. Gangs on more nodes than they need, or on mixed kinds, run at the
rates measured for spread gangs, except Gavel's, whose authors' simulator knows no such loss.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Protocol

import numpy as np

from hadar_cli.adapters.simulated import Costs, NoJournal, NoWeights, SimulatedExecutor
from hadar_cli.adapters.traces import Throughputs
from hadar_cli.app.ports import Observer, Progressed
from hadar_cli.app.rounds import RoundLoop
from hadar_cli.app.tracker import Tracker
from hadar_cli.core import events
from hadar_cli.core.fluid import forked_optimum, gang_bound_s
from hadar_cli.core.gpu_table import find_gpu
from hadar_cli.core.model import Device, Gpu, Job, Mix, PolicyChoice
from hadar_cli.core.policies import registry
from hadar_cli.core.policies.registry import ClusterView, Policy, Stint
from hadar_cli.core.queue import IntArray
from hadar_cli.core.row_index import RowIndex
from hadar_cli.core.site import Site
from hadar_cli.core.state import RunState
from hadar_cli.core.throughput import Matrix, RateModel, Rates
from hadar_cli.core.timeline import Stretches
from hadar_cli.errors import HadarError, InputError

ALWAYS_CONSOLIDATED = ("gavel", "gavel-makespan")
_UNKNOWN_GPU = (1.0, 1.0)  # TFLOPS and VRAM, where a table tells the rates anyway


class Speeds(Protocol):
    """The true speeds of a simulation, and what a scheduler may know of them."""

    def gang(self, job: int, devices: tuple[str, ...]) -> float:
        """Steps per second of the job on all these devices together."""
        ...

    def known(self) -> Rates: ...

    def pools(self) -> tuple[Matrix, IntArray]:
        """Devices of equal speed as one column of jobs × pools, in steps per second of one device,
        consolidated, and how many there are of each."""
        ...


@dataclass(frozen=True, slots=True)
class Scenario:
    """What is simulated; ``speeds`` makes the truth, told whether spread gangs lose nothing.

    With ``prolongs``, jobs that are not forked run on from slot to slot and never pay for a sync;
    without it they hand in at every slot's end, as on real nodes.
    """

    mix: Mix
    devices: tuple[Device, ...]
    costs: Costs
    speeds: Callable[[bool], Speeds]
    prolongs: bool = True
    losses: tuple[tuple[str, float], ...] = ()  # devices that go for good, and when


@dataclass(frozen=True, slots=True)
class Work:
    """``devices`` devices trained from ``begin`` to ``end``."""

    begin: float
    end: float
    devices: int


@dataclass(frozen=True, slots=True)
class PolicyResult:
    """What one policy made of a scenario. Times of unfinished batches are not told."""

    policy: str
    ttd_s: float | None
    mean_jct_s: float | None
    median_jct_s: float | None
    cru: float | None
    gru: float | None  # like CRU, but only over the time in which some job ran
    lower_bound_s: float | None
    rounds: int
    restarts: int  # starts that were not a job's first, and not warm
    changed_rounds: float  # share of rounds in which an unfinished job's devices changed
    decision_ms: Mapping[str, float]
    wall_s: float
    unfinished: int
    problem: str | None = None
    finished_s: tuple[float, ...] = ()
    work: tuple[Work, ...] = ()

    def facts(self) -> dict[str, object]:
        """All but the curves."""
        curves = ("finished_s", "work")
        return {name: getattr(self, name) for name in self.__slots__ if name not in curves}


@dataclass(frozen=True, slots=True)
class RealRun:
    """A run that took place; reaching its nodes, before the first round, is not simulated."""

    name: str
    ttd_s: float
    connect_s: float

    @property
    def rounds_s(self) -> float:
        return self.ttd_s - self.connect_s


# -- clusters and speeds ---------------------------------------------------------------------


def parse_cluster(text: str, gpus_per_node: int) -> tuple[Device, ...]:
    """``v100:20,p100:20`` as devices on nodes of one kind each."""
    counts: dict[str, int] = {}
    for part in text.split(","):
        kind, _, number = part.strip().partition(":")
        if not kind or not number.isdigit() or not 0 < int(number) <= 100_000:
            raise InputError(
                f"{part.strip()!r} is not KIND:COUNT", field="--cluster", fix="e.g. v100:20,k80:8"
            )
        if kind in counts:
            raise InputError(f"{kind!r} is listed twice", field="--cluster")
        counts[kind] = int(number)
    return tuple(
        Device(f"{kind}-{i // gpus_per_node}:{i % gpus_per_node}", node, i % gpus_per_node, gpu)
        for kind, count in counts.items()
        for gpu in (_gpu(kind),)
        for i in range(count)
        for node in (f"{kind}-{i // gpus_per_node}",)
    )


def _gpu(kind: str) -> Gpu:
    """The GPU by the name given here, which the tables of throughputs go by."""
    spec = find_gpu(kind)
    return Gpu(kind, spec.tflops, spec.vram_gb, spec.pcie) if spec else Gpu(kind, *_UNKNOWN_GPU)


def require_known_gpus(devices: Sequence[Device]) -> None:
    """Refuses kinds that nobody has told the speed of."""
    for kind in dict.fromkeys(device.kind for device in devices):
        if kind != "CPU" and find_gpu(kind) is None:
            raise InputError(
                f"nothing is known of the GPU {kind!r}",
                field="--cluster",
                fix="give --throughputs, or an inventory with its figures: -n nodes.toml",
            )


class TableSpeeds:
    """Measured speeds, which the scheduler knows as well."""

    def __init__(
        self, table: Throughputs, jobs: Sequence[Job], devices: Sequence[Device], loses: bool
    ) -> None:
        self._site = Site.of(devices)
        self._row = {job.id: row for row, job in enumerate(jobs)}
        column = {kind: r for r, kind in enumerate(self._site.kinds)}
        self._column = {device.name: column[device.kind] for device in devices}
        self._packed, self._spread = table.matrices(jobs, self._site.kinds)
        self._loses = loses
        self._slow: dict[tuple[str, ...], bool] = {}
        self._index = RowIndex(np.array(list(self._row), dtype=np.int64))
        self._asked: IntArray | None = None  # in the last question, with its answer
        self._answer = self._packed, self._spread

    def gang(self, job: int, devices: tuple[str, ...]) -> float:
        rates = (self._spread if self._is_slow(devices) else self._packed)[self._row[job]]
        return float(len(devices) * min(rates[self._column[name]] for name in devices))

    def _is_slow(self, devices: tuple[str, ...]) -> bool:
        if not self._loses or len(devices) == 1:
            return False
        if devices not in self._slow:
            self._slow[devices] = self._site.is_spread(devices)
        return self._slow[devices]

    def known(self) -> Rates:
        return self

    def pools(self) -> tuple[Matrix, IntArray]:
        here = np.bincount(list(self._column.values()), minlength=len(self._site.kinds))
        return _pools(self._packed, here)

    def rate(self, job_id: int, device_name: str) -> float:
        return float(self._packed[self._row[job_id], self._column[device_name]])

    def matrix(self, job_ids: Sequence[int], device_names: Sequence[str]) -> Matrix:
        rows, columns = [self._row[j] for j in job_ids], [self._column[d] for d in device_names]
        return self._packed[np.ix_(rows, columns)]

    def by_kind(
        self, job_ids: IntArray, kinds: Sequence[str], devices: Sequence[Device]
    ) -> tuple[Matrix, Matrix | None]:
        if job_ids is not self._asked:
            rows = self._index.rows(job_ids)
            self._asked, self._answer = job_ids, (self._packed[rows], self._spread[rows])
        packed, spread = self._answer[0], self._answer[1] if self._loses else None
        if tuple(kinds) == self._site.kinds:
            return packed, spread
        columns = [self._site.kinds.index(kind) for kind in kinds]
        return packed[:, columns], None if spread is None else spread[:, columns]

    def observe(self, job_id: int, device_name: str, steps: float, seconds: float) -> None: ...


class ModelledSpeeds:
    """Speeds by the throughput estimate, or as a real run measured them.

    The scheduler starts from the estimate in both cases, and learns as on real nodes.
    """

    def __init__(
        self, jobs: Sequence[Job], devices: Sequence[Device], truth: RateModel | None = None
    ) -> None:
        self._jobs, self._devices = jobs, devices
        self._truth = truth or RateModel(jobs, devices)

    def gang(self, job: int, devices: tuple[str, ...]) -> float:
        return len(devices) * min(self._truth.rate(job, name) for name in devices)

    def known(self) -> Rates:
        return RateModel(self._jobs, self._devices)

    def pools(self) -> tuple[Matrix, IntArray]:
        rates = self._truth.matrix([job.id for job in self._jobs])
        return _pools(rates, np.ones(rates.shape[1], dtype=np.int64))


def _pools(rates: Matrix, counts: IntArray) -> tuple[Matrix, IntArray]:
    """Equal columns put together."""
    pools, which = np.unique(rates, axis=1, return_inverse=True)
    return pools, np.bincount(which.reshape(-1), weights=counts).astype(np.int64)


# -- one policy's run ------------------------------------------------------------------------


def simulate(
    scenario: Scenario, choice: PolicyChoice, label: str, watch: Callable[[int], None]
) -> PolicyResult:
    """Runs the jobs under one policy; ``watch`` is told at every round how many are done."""
    mix, devices = scenario.mix, scenario.devices
    state = RunState(mix.jobs)
    policy = _Watched(registry.create(choice), state)
    speeds = scenario.speeds(choice.name in ALWAYS_CONSOLIDATED)
    prolongs = scenario.prolongs and not policy.forks
    costs = replace(scenario.costs, sync_s=0.0) if prolongs else scenario.costs
    executor = SimulatedExecutor(speeds.gang, costs, prolongs=prolongs)
    for device, at in scenario.losses:
        executor.lose_device(device, at)
    tally = _Tally(state, policy, watch)
    began, problem = time.perf_counter(), None
    try:
        play(mix, devices, policy, executor, speeds.known(), state, tally)
    except HadarError as error:
        problem = str(error)
    wall_s = time.perf_counter() - began
    bound_s = lower_bound_s(scenario, forks=policy.forks)
    return _result(scenario, tally, label, wall_s, bound_s, problem)


def play(
    mix: Mix,
    devices: Sequence[Device],
    policy: Policy,
    executor: SimulatedExecutor,
    rates: Rates,
    state: RunState,
    observer: Observer,
) -> None:
    """Drives the state's run to its end on paper, by the same loop as a real one."""
    names = [device.name for device in devices]
    tracker = Tracker(mix, names, state, NoJournal(), NoWeights(), executor.now, observer)
    loop = RoundLoop(mix, devices, policy, executor, tracker, rates, observer)
    tracker.record(events.HeadStarted(executor.now(), state.epoch + 1))
    loop.run()


class _Watched:
    """A policy whose decisions are timed and compared with those before."""

    def __init__(self, policy: Policy, state: RunState) -> None:
        self._policy, self._state = policy, state
        self.name, self.forks = policy.name, policy.forks
        self.seconds: list[float] = []
        self.changed = 0
        self._planned: set[tuple[int, tuple[str, ...]]] = set()  # gangs by job
        self._held: set[tuple[int, tuple[str, ...]]] = set()
        self._last: list[Stint] = []

    def plan(self, view: ClusterView) -> list[Stint]:
        began = time.perf_counter()
        stints = self._policy.plan(view)
        self.seconds.append(time.perf_counter() - began)
        if stints is not self._last:
            self._last, self._planned = stints, {(stint.job, stint.devices) for stint in stints}
        if view.seconds < view.slot_s:
            self._held |= self._planned
        return stints

    def begin_round(self) -> None:
        """The last plan is now in force: is it another than the one before?"""
        if self._planned is self._held:
            return
        jobs = self._state.jobs
        before = {gang for gang in self._held if not jobs[gang[0]].is_trained}
        self.changed += self._planned != before
        self._held = self._planned


class _Tally:
    """Adds up what the loop tells."""

    def __init__(self, state: RunState, policy: _Watched, watch: Callable[[int], None]) -> None:
        self.state, self.policy, self._watch = state, policy, watch
        self.work: list[Work] = []
        self.running: list[tuple[float, float]] = []
        self.cold: dict[int, int] = {}  # starts that were not warm, by job

    def happened(self, event: events.Event) -> None:
        match event:
            case events.CopyFinished():
                started = self.state.started[event.attempt]
                self.running.append((started.t, event.t))
                begin = started.t + event.start_s
                self.work.append(Work(begin, begin + event.train_s, len(started.devices)))
                self.cold[started.job] = self.cold.get(started.job, 0) + (not event.warm)
            case events.RoundPlanned():
                self.policy.begin_round()
                self._watch(len(self.state.jobs) - len(self.state.unfinished))

    def progressed(self, report: Progressed) -> None: ...

    def tick(self) -> None: ...


def _result(
    scenario: Scenario,
    tally: _Tally,
    label: str,
    wall_s: float,
    bound_s: float | None,
    problem: str | None,
) -> PolicyResult:
    state, policy, count = tally.state, tally.policy, len(scenario.devices)
    ended = [s for s in state.jobs.values() if s.finished_at is not None]
    finished = sorted(s.finished_at or 0.0 for s in ended)
    jcts = [(s.finished_at or 0.0) - s.job.arrives_s for s in ended]
    busy_s = sum((w.end - w.begin) * w.devices for w in tally.work)
    running_s = sum(end - begin for begin, end in Stretches(tally.running))
    is_done = len(ended) == len(state.jobs)
    ttd_s = finished[-1] if finished else 0.0
    decisions = policy.seconds or [0.0]
    return PolicyResult(
        policy=label,
        ttd_s=ttd_s if is_done else None,
        mean_jct_s=fmean(jcts) if is_done else None,
        median_jct_s=median(jcts) if is_done else None,
        cru=busy_s / (count * ttd_s) if ttd_s else None,
        gru=busy_s / (count * running_s) if running_s else None,
        lower_bound_s=bound_s,
        rounds=state.round,
        restarts=sum(starts - 1 for starts in tally.cold.values() if starts),
        changed_rounds=policy.changed / max(1, state.round),
        decision_ms={"mean": 1e3 * fmean(decisions), "max": 1e3 * max(decisions)},
        wall_s=wall_s,
        unfinished=len(state.jobs) - len(ended),
        problem=problem,
        finished_s=tuple(finished),
        work=tuple(tally.work),
    )


def lower_bound_s(scenario: Scenario, forks: bool) -> float | None:
    """What no schedule of gangs, or of forked jobs, can beat."""
    jobs = scenario.mix.jobs
    pools, counts = scenario.speeds(True).pools()
    steps = np.array([job.target_steps for job in jobs], dtype=np.float64)
    arrivals = np.array([job.arrives_s for job in jobs])
    if forks:
        makespan_s = forked_optimum(steps.tolist(), pools * counts).makespan_s
        shortest_s = steps / np.maximum(pools @ counts, 1e-300)
    else:
        gang = np.array([job.gpus for job in jobs], dtype=np.float64)
        elastic = np.array([job.elastic for job in jobs], dtype=np.bool_)
        size = counts.astype(np.float64)
        makespan_s = gang_bound_s(steps, pools, gang, size, elastic)
        shortest_s = steps / np.maximum(gang * pools.max(axis=1), 1e-300)
    bound_s = max(makespan_s, float((arrivals + shortest_s).max(initial=0.0)))
    return bound_s if np.isfinite(bound_s) else None
