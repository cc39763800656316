"""Forecasts: the run simulated on paper, by its own policy and the one loop.

The simulation trains at the best knowledge of the speeds: measured in earlier runs on the same
machines, else the formula's. Its scheduler knows what the run's will: the formula, and what it
sees. Costs are fitted to the newest of those runs, or assumed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from hadar_cli import policies
from hadar_cli.core import events
from hadar_cli.core.estimates.gangs import speeds_seen
from hadar_cli.core.estimates.throughput import RateModel
from hadar_cli.core.measures.forecast import Forecast, Verdict, judge
from hadar_cli.core.measures.summary import Ways
from hadar_cli.core.measures.ways import ways_of
from hadar_cli.core.model import Device, Job, Mix, Node, are_accelerators, devices_of
from hadar_cli.core.state import RunState
from hadar_cli.engine.ports import Observer
from hadar_cli.errors import HadarError, StorageError
from hadar_cli.runs.store import RunFacts, RunStore, list_runs, read_journal
from hadar_cli.simulation.executor import Costs, SimulatedExecutor
from hadar_cli.simulation.fitting import Fit, assumed_costs
from hadar_cli.simulation.scenario import Scenario, lower_bound_s, run_rounds
from hadar_cli.simulation.speeds import ModelledSpeeds

# Beyond these, a simulation takes longer than anyone wants to wait for a plan.
MOST_JOBS = 500
MOST_ROUNDS = 300
_MOST_WORTH_ROUNDS = 400  # of all simulations without a node together
_RUNS_READ = 10


@dataclass(frozen=True, slots=True)
class EarlierRuns:
    """What earlier runs tell of a mix and its machines; ``runs`` are their names, newest first."""

    fit: Fit
    costs: Costs
    runs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Worth:
    """What a node adds: the TTD without it, None where the mix cannot do without it."""

    node: str
    ttd_s: float | None
    saves_s: float | None


@dataclass(frozen=True, slots=True)
class Stay:
    """A device trains copies of a job from some second on, until its next stay."""

    device: str
    job: str
    from_s: float


@dataclass(frozen=True, slots=True)
class RunForecast:
    """Everything that a dry run tells of what is to come."""

    forecast: Forecast
    rounds: tuple[events.RoundPlanned, ...]
    stays: tuple[Stay, ...]
    moved_bytes: int | None  # over the network; None where nobody knows the weights' size
    cost: float | None  # of all priced nodes for the whole time; None where no node has a price
    worths: tuple[Worth, ...]
    ways: Mapping[str, Ways]  # by job


# -- what is known ---------------------------------------------------------------------------


def gather(mix: Mix, nodes: Sequence[Node], runs: Path) -> EarlierRuns:
    """What the newest runs on the same machines say of jobs like these."""
    fitted, used = Fit(), []
    for facts, store in _recent(runs):
        devices = [d for node in facts.nodes for d in node.devices if _is_same(node, nodes)]
        if devices and {j.throughput_class for j in facts.mix.jobs} & _classes(mix):
            try:
                fitted.add(facts.mix, devices, read_journal(store.journal_path))
            except (StorageError, KeyError, ValueError):
                continue  # a damaged journal tells nothing
            used.append(facts.id)
    is_real = are_accelerators(devices_of(nodes))
    costs = fitted.costs if fitted.sync_s else assumed_costs(is_real)
    return EarlierRuns(fitted, costs, tuple(used))


def _recent(runs: Path) -> Iterator[tuple[RunFacts, RunStore]]:
    for path in reversed(list_runs(runs)[-_RUNS_READ:]):
        store = RunStore(path)
        try:
            yield store.facts, store
        except StorageError:
            continue


def _is_same(node: Node, nodes: Sequence[Node]) -> bool:
    return any((node.name, node.host) == (other.name, other.host) for other in nodes)


def _classes(mix: Mix) -> set[tuple[object, ...]]:
    return {job.throughput_class for job in mix.jobs}


# -- simulations -----------------------------------------------------------------------------


@dataclass(slots=True)
class _Simulated(Observer):
    """Writes down what a simulation tells."""

    state: RunState
    rounds: list[events.RoundPlanned] = field(default_factory=list)
    starts: list[events.CopyStarted] = field(default_factory=list)
    finishes: list[events.CopyFinished] = field(default_factory=list)
    all: list[events.Event] = field(default_factory=list)

    def happened(self, event: events.Event) -> None:
        self.all.append(event)
        match event:
            case events.RoundPlanned():
                self.rounds.append(event)
            case events.CopyStarted() if event.purpose == "train":
                self.starts.append(event)
            case events.CopyFinished() if event.steps:
                self.finishes.append(event)


def _simulate(
    mix: Mix,
    devices: Sequence[Device],
    truth: RateModel,
    costs: Costs,
    *,
    known: RateModel | None = None,
    state: RunState | None = None,
    warm: Mapping[str, int] | None = None,
) -> _Simulated:
    """Plays the run to its end, from its beginning or from ``state``."""
    state = state or RunState(mix.jobs)
    simulated = _Simulated(state)
    speeds = ModelledSpeeds(mix.jobs, devices, truth)
    executor = SimulatedExecutor(speeds.gang, costs, state.now, warm=warm or {})
    policy = policies.create(mix.policy)
    run_rounds(mix, devices, policy, executor, known or speeds.known(), state, simulated)
    return simulated


def _forecast(
    mix: Mix,
    devices: Sequence[Device],
    simulated: _Simulated,
    truth: RateModel,
    runs: Sequence[str],
    at_s: float = 0.0,
) -> Forecast:
    state = simulated.state
    ends = {s.job.name: (s.finished_at or 0.0, s.job.arrives_s) for s in state.jobs.values()}
    share = _measured_share(simulated, truth)
    return Forecast(
        ttd_s=max(end for end, _ in ends.values()),
        jct_s={name: end - arrives for name, (end, arrives) in ends.items()},
        lower_bound_s=_bound_s(mix, devices, truth),
        basis=_basis(share, runs),
        measured_share=share,
        at_s=at_s,
    )


def _bound_s(mix: Mix, devices: Sequence[Device], truth: RateModel) -> float | None:
    speeds = ModelledSpeeds(mix.jobs, devices, truth)
    scenario = Scenario(mix, tuple(devices), Costs(), lambda _: speeds)
    return lower_bound_s(scenario, policies.create(mix.policy).forks)


def _measured_share(simulated: _Simulated, truth: RateModel) -> float:
    started = {copy.attempt: copy for copy in simulated.starts}
    total = measured = 0.0
    for done in simulated.finishes:
        copy = started[done.attempt]
        total += done.train_s
        if all(truth.measured(copy.job, device) for device in copy.devices):
            measured += done.train_s
    return measured / total if total else 0.0


def _basis(share: float, runs: Sequence[str]) -> str:
    if not runs or not share:
        return "speeds by the formula alone, nothing measured"
    where = f"run {runs[0]}" if len(runs) == 1 else f"{len(runs)} runs, the newest {runs[0]}"
    if share > 0.995:
        return f"speeds measured in {where}"
    return f"speeds measured for {share:.0%} of the training in {where}, else by the formula"


# -- before the run --------------------------------------------------------------------------


def forecast_run(
    mix: Mix, nodes: Sequence[Node], knowledge: EarlierRuns, worths: bool = True
) -> RunForecast | None:
    """What is to come, or None where the mix is too large, or cannot run, to be simulated."""
    open_ended = {job.name for job in mix.jobs if job.promote}
    mix, devices = _with_steps_expected(mix), devices_of(nodes)
    if len(mix.jobs) > MOST_JOBS or not devices:
        return None
    truth = knowledge.fit.rates(mix.jobs, devices)
    if (_bound_s(mix, devices, truth) or 0.0) > MOST_ROUNDS * mix.slot_s:
        return None
    try:
        simulated = _simulate(mix, devices, truth, knowledge.costs)
    except HadarError:
        return None
    forecast = _forecast(mix, devices, simulated, truth, knowledge.runs)
    certain = {name: t for name, t in forecast.jct_s.items() if name not in open_ended}
    forecast = replace(forecast, jct_s=certain)
    return RunForecast(
        forecast=forecast,
        rounds=tuple(simulated.rounds),
        stays=tuple(_stays(mix, simulated)),
        moved_bytes=_moved_bytes(simulated, nodes, knowledge.fit),
        cost=_cost(nodes, forecast.ttd_s),
        worths=tuple(_worths(mix, nodes, knowledge, forecast.ttd_s)) if worths else (),
        ways=_ways(mix, devices, simulated, open_ended),
    )


def _with_steps_expected(mix: Mix) -> Mix:
    """Nobody is measured on paper. As many trials are promoted as will be, though others than
    these; who would be stopped on a plateau trains to the end."""
    sweeps = Counter(job.trial.sweep for job in mix.jobs if job.trial)
    jobs: list[Job] = []
    for job in mix.jobs:
        steps = job.target_steps
        if job.promote and job.trial:
            trials = sweeps[job.trial.sweep]
            steps = job.promote.steps_at_place(job.trial.number, trials, steps)
        jobs.append(replace(job, target_steps=steps, promote=None, stop=None))
    return replace(mix, jobs=tuple(jobs))


def _ways(
    mix: Mix, devices: Sequence[Device], simulated: _Simulated, open_ended: Collection[str]
) -> dict[str, Ways]:
    found = ways_of(mix.jobs, devices, mix.policy.name, simulated.all)
    jobs = [job for job in mix.jobs if job.id in found and job.name not in open_ended]
    return {job.name: found[job.id] for job in jobs}


def forecast(mix: Mix, nodes: Sequence[Node], runs: Path) -> Forecast | None:
    """What the mix is expected to take here, by all that earlier runs have told."""
    expected = forecast_run(mix, nodes, gather(mix, nodes, runs), worths=False)
    return expected.forecast if expected else None


def _worths(
    mix: Mix, nodes: Sequence[Node], knowledge: EarlierRuns, ttd_s: float
) -> Iterator[Worth]:
    enabled = [node for node in nodes if node.enabled]
    if len(enabled) < 2 or len(enabled) * ttd_s > _MOST_WORTH_ROUNDS * mix.slot_s:
        return
    for node in enabled:
        rest = [device for other in enabled if other is not node for device in other.devices]
        truth = knowledge.fit.rates(mix.jobs, rest)
        try:
            states = _simulate(mix, rest, truth, knowledge.costs).state.jobs.values()
        except HadarError:  # a gang no longer fits
            yield Worth(node.name, None, None)
            continue
        without_s = max(state.finished_at or 0.0 for state in states)
        yield Worth(node.name, without_s, without_s - ttd_s)


def _cost(nodes: Sequence[Node], ttd_s: float) -> float | None:
    prices = [n.price_per_hour for n in nodes if n.enabled and n.price_per_hour is not None]
    return sum(prices) * ttd_s / 3600 if prices else None


def _stays(mix: Mix, simulated: _Simulated) -> Iterator[Stay]:
    names = {job.id: job.name for job in mix.jobs}
    latest: dict[str, int] = {}
    for copy in simulated.starts:
        for device in copy.devices:
            if latest.get(device) != copy.job:
                latest[device] = copy.job
                yield Stay(device, names[copy.job], copy.t)


def _moved_bytes(simulated: _Simulated, nodes: Sequence[Node], fitted: Fit) -> int | None:
    """Weights up from every copy, and down to each that does not hold the latest already."""
    far = {device.name for node in nodes if not node.is_local for device in node.devices}
    if not far:
        return 0
    jobs = simulated.state.jobs
    held: dict[tuple[int, str], int] = {}  # a sole copy's weights are the merged ones
    total = 0
    moves = [(copy.job, copy.device, copy.generation) for copy in simulated.starts]
    for job, device, generation in moves:
        size = fitted.bytes.get(jobs[job].job.throughput_class)
        if device not in far:
            continue
        if size is None:
            return None
        is_down = generation > 0 and held.get((job, device)) != generation
        total += size * (1 + is_down)
        held[job, device] = generation + 1 if _is_sole(moves, job, generation) else -1
    return total


def _is_sole(moves: Iterable[tuple[int, str, int]], job: int, generation: int) -> bool:
    return sum(move[0] == job and move[2] == generation for move in moves) == 1


# -- while it runs, and after ----------------------------------------------------------------


def forecast_after(
    facts: RunFacts, happened: Sequence[events.Event], rounds: int
) -> Forecast | None:
    """The forecast as it stood after so many rounds, from the journal alone; None before that.

    It knows what the run had measured by then, and its own costs. What copies still had in hand
    is taken as not done.
    """
    past = list(_first_rounds(happened, rounds))
    if len(past) == len(happened):
        return None
    devices = devices_of(facts.nodes)
    fitted = Fit()
    fitted.add(facts.mix, devices, past)
    state, known = RunState(facts.mix.jobs), RateModel(facts.mix.jobs, devices)
    warm: dict[str, int] = {}
    for event in past:
        if isinstance(event, events.CopyFinished):
            event = replace(event, quality=None)  # nobody evaluates on paper
            copy = state.started[event.attempt]
            for device, *seen in speeds_seen(copy, event):
                known.observe(copy.job, device, *seen)
            warm |= dict.fromkeys(copy.devices, copy.job)
        state.apply(event)
    left = [device for device in devices if device.name not in state.lost_devices]
    at_s = state.now
    state.apply(events.RunStopped(at_s, "the rest is simulated"))
    truth = fitted.rates(facts.mix.jobs, devices)
    costs = replace(fitted.costs, first_start_s=None)
    try:
        simulated = _simulate(facts.mix, left, truth, costs, known=known, state=state, warm=warm)
    except HadarError:
        return None
    return _forecast(facts.mix, left, simulated, truth, [facts.id], at_s)


def _first_rounds(happened: Iterable[events.Event], rounds: int) -> Iterator[events.Event]:
    for event in happened:
        if isinstance(event, events.RoundPlanned) and event.round > rounds:
            return
        yield event


def review(facts: RunFacts, happened: Sequence[events.Event]) -> list[Verdict]:
    """The run's forecasts beside what happened: before its first round, and after its second."""
    state = RunState(facts.mix.jobs, happened)
    jobs = state.jobs.values()
    jct_s = {s.job.name: s.finished_at - s.job.arrives_s for s in jobs if s.finished_at is not None}
    ttd_s = state.now if state.finished else None
    told = {
        "before the first round": facts.forecast,
        "after the second round": forecast_after(facts, happened, rounds=2),
    }
    return [judge(when, forecast, ttd_s, jct_s) for when, forecast in told.items() if forecast]
