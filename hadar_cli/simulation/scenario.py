"""Whole simulations: jobs on a cluster that exists on paper, one result for each policy.

Every policy is run by the one round loop over ``SimulatedExecutor``. Gangs run on from slot to slot
and pay the restart cost whenever their devices change; forked copies hand in at every slot's end
and pay the sync cost for it. Gangs on more nodes than they need, or on mixed kinds, run at the
rates measured for spread gangs, except Gavel's, whose authors' simulator knows no such loss.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from statistics import fmean, median

import numpy as np

from hadar_cli import policies
from hadar_cli.core import events
from hadar_cli.core.arrays import FloatArray
from hadar_cli.core.estimates.fluid import forked_optimum, gang_bound_s
from hadar_cli.core.estimates.gangs import PROPORTIONAL
from hadar_cli.core.estimates.throughput import LearningRates
from hadar_cli.core.measures.fairness import by_user, finish_time_fairness
from hadar_cli.core.measures.timeline import Stretches
from hadar_cli.core.model import Device, Job, Mix, PolicyChoice
from hadar_cli.core.policies.job_queue import JobQueue
from hadar_cli.core.policies.port import ClusterView, Policy, Stint
from hadar_cli.core.state import RunState
from hadar_cli.engine.ports import NoJournal, Observer
from hadar_cli.engine.rounds import RoundLoop
from hadar_cli.engine.tracker import Tracker
from hadar_cli.errors import HadarError
from hadar_cli.simulation.executor import Costs, NoWeights, SimulatedExecutor
from hadar_cli.simulation.speeds import Speeds, widest_gang

ALWAYS_CONSOLIDATED = ("gavel", "gavel-makespan")  # unless their ``pays_spread`` says otherwise


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
    told: Mapping[int, float] | None = None  # lengths, where the scheduler does not know the true


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
    worst_rho: float | None = None  # finish-time fairness: JCT over that in an equal share
    beyond_fair: float | None = None  # share of jobs with a rho above 1
    user_rho: Mapping[str, float] = field(default_factory=dict)  # the mean of each user's jobs
    problem: str | None = None
    finished_s: tuple[float, ...] = ()
    work: tuple[Work, ...] = ()

    def facts(self) -> dict[str, object]:
        """All but the curves."""
        curves = ("finished_s", "work")
        return {name: getattr(self, name) for name in self.__slots__ if name not in curves}


# -- one policy's run ------------------------------------------------------------------------


def wrong_lengths(jobs: Sequence[Job], noise: float, seed: int = 0) -> dict[int, float]:
    """Lengths as people tell them: off by up to this share, either way."""
    off = np.random.default_rng([seed, len(jobs)]).uniform(-noise, noise, len(jobs))
    return {job.id: job.target_steps * (1 + x) for job, x in zip(jobs, off.tolist(), strict=True)}


def simulate(
    scenario: Scenario, choice: PolicyChoice, label: str, watch: Callable[[int], None]
) -> PolicyResult:
    """Runs the jobs under one policy; ``watch`` is told at every round how many are done."""
    mix, devices = scenario.mix, scenario.devices
    state = RunState(mix.jobs)
    policy = _Watched(policies.create(choice), state, scenario.told)
    is_packed = choice.name in ALWAYS_CONSOLIDATED and not choice.fields.get("pays_spread")
    speeds = scenario.speeds(is_packed)
    prolongs = scenario.prolongs and not policy.forks
    costs = replace(scenario.costs, sync_s=0.0) if prolongs else scenario.costs
    executor = SimulatedExecutor(speeds.gang, costs, prolongs=prolongs)
    for device, at in scenario.losses:
        executor.lose_device(device, at)
    tally = _Tally(state, policy, watch)
    began, problem = time.perf_counter(), None
    try:
        run_rounds(mix, devices, policy, executor, speeds.known(), state, tally)
    except HadarError as error:
        problem = str(error)
    wall_s = time.perf_counter() - began
    bound_s = lower_bound_s(scenario, forks=policy.forks)
    return _result(scenario, tally, label, wall_s, bound_s, problem)


def run_rounds(
    mix: Mix,
    devices: Sequence[Device],
    policy: Policy,
    executor: SimulatedExecutor,
    rates: LearningRates,
    state: RunState,
    observer: Observer,
) -> None:
    """Drives the state's run to its end on paper, by the same loop as a real one."""
    names = [device.name for device in devices]
    tracker = Tracker(mix, names, state, NoJournal(), NoWeights(), executor.now, observer)
    loop = RoundLoop(mix, devices, policy, executor, tracker, rates, observer)
    tracker.record(events.HeadStarted(executor.now(), state.epoch + 1))
    with _nothing_thrown_away():
        loop.run()


@contextmanager
def _nothing_thrown_away() -> Iterator[None]:
    """Without searches for garbage: there is none before the end, and each looks at all it has."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class _Watched:
    """A policy whose decisions are timed and compared with those before."""

    def __init__(
        self, policy: Policy, state: RunState, told: Mapping[int, float] | None = None
    ) -> None:
        self._policy, self._state, self._told = policy, state, told
        self.name, self.forks = policy.name, policy.forks
        self.seconds: list[float] = []
        self.changed = 0
        self._planned: set[tuple[int, tuple[str, ...]]] = set()  # gangs by job
        self._held: set[tuple[int, tuple[str, ...]]] = set()
        self._last: list[Stint] = []
        self._queue = self._misled = JobQueue.empty()

    def __deepcopy__(self, memo: dict[int, object]) -> _Watched:
        """Another one that remembers nothing yet; the run that it looks at is the same."""
        return _Watched(deepcopy(self._policy, memo), self._state, self._told)

    def plan(self, view: ClusterView) -> list[Stint]:
        if self._told is not None:
            if view.queue is not self._queue:
                self._queue, self._misled = view.queue, view.queue.misled(self._told)
            view = replace(view, queue=self._misled)
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


class _Tally(Observer):
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
    rhos = finish_time_fairness(jcts, _alone_s(scenario), count) if is_done else None
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
        worst_rho=float(rhos.max()) if rhos is not None else None,
        beyond_fair=float((rhos > 1).mean()) if rhos is not None else None,
        user_rho={} if rhos is None else by_user(rhos, [s.job.user for s in ended]),
        problem=problem,
        finished_s=tuple(finished),
        work=tuple(tally.work),
    )


def _alone_s(scenario: Scenario) -> FloatArray:
    """What each job needs on its fastest devices."""
    steps = np.array([job.target_steps for job in scenario.mix.jobs])
    return np.asarray(steps / np.maximum(scenario.speeds(True).alone(), 1e-300))


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
        most = int(counts.sum())
        gang = np.array([widest_gang(job, most) for job in jobs], dtype=np.float64)
        elastic = np.array([job.elastic or bool(job.sizes) for job in jobs], dtype=np.bool_)
        shared = np.array([job.shares == PROPORTIONAL for job in jobs], dtype=np.bool_)
        makespan_s = gang_bound_s(steps, pools, gang, counts.astype(np.float64), elastic, shared)
        shortest_s = _alone_s(scenario)
    bound_s = max(makespan_s, float((arrivals + shortest_s).max(initial=0.0)))
    return bound_s if np.isfinite(bound_s) else None
