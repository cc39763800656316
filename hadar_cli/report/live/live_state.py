"""What there is to see of a run at this moment: its events so far, and what copies tell."""

from __future__ import annotations

import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from hadar_cli.core import events
from hadar_cli.core.estimates.throughput import RateModel
from hadar_cli.core.model import Device, devices_of
from hadar_cli.core.reasons import Absence
from hadar_cli.core.state import JobState, RunState
from hadar_cli.engine.ports import Progressed
from hadar_cli.report.format import count
from hadar_cli.report.live.eta import UNSTEADY, Estimate, Workload, extrapolate
from hadar_cli.report.live.sparkline import Series
from hadar_cli.report.log import Entry, RunLog
from hadar_cli.runs.store import RunFacts

WINDOWS = 12  # the recent past, in which paces are measured
_WINDOW_S = (5.0, 60.0)  # a window is a slot, within these
_SILENCE_S = 3.0  # a copy that told nothing for longer than this may have stopped
_LEAST_S = 2.0  # of a pace that says anything
_REMEMBERED = 500  # entries of the log
_AWAY = {
    Absence.AWAITED: "awaited",
    Absence.AWAY: "away",
    Absence.TAKEN: "left alone",
    Absence.TURN: "another's turn",
    Absence.UNTOLD: "left alone",
    Absence.DRAINED: "drained",
}
_DOING = {"evaluate": "measuring", "prepare": "preparing"}


@dataclass(frozen=True, slots=True)
class Stretch:
    """A device trained a job without a break."""

    device: str
    job: int
    begin: float
    end: float
    steps: float

    def share_in(self, begin: float, end: float) -> float:
        overlap = min(end, self.end) - max(begin, self.begin)
        return max(0.0, overlap) / (self.end - self.begin) if self.end > self.begin else 0.0


@dataclass(frozen=True, slots=True)
class DeviceNow:
    """``doing`` is training, starting, measuring, preparing or idle; or why it is not used: lost,
    awaited, left alone to others, or drained."""

    device: Device
    doing: str
    job: str | None = None
    steps: int = 0  # in this round
    goal: int = 0  # what the round means it to do
    rate: float | None = None  # steps per second
    of_estimate: float | None = None  # the rate, relative to the formula's
    busy: tuple[float, ...] = ()  # share of recent windows that it trained, oldest first


@dataclass(frozen=True, slots=True)
class JobNow:
    """``standing`` is training, waiting, at rung, paused, coming or how it ended: see JobState."""

    name: str
    standing: str
    steps: int
    target: int
    effective: float
    copies: int  # devices that train it now
    shares: bool  # whether some of these share its steps; else copies are merged
    merges: int
    losses: tuple[float, ...]
    left: Estimate | None = None
    at: float | None = None  # when it was done, or arrives


class LiveState:
    """Hears a run's events and reports, and answers what is going on.

    ``guesses``: nobody reports, as another process drives the run; rates fill the gap.
    """

    def __init__(
        self,
        facts: RunFacts,
        state: RunState,
        rates: RateModel,
        clock: Callable[[], float],
        guesses: bool = False,
    ) -> None:
        self.take_facts(facts)
        self.log: deque[Entry] = deque(maxlen=_REMEMBERED)
        self.window_s = max(_WINDOW_S[0], min(self.mix.slot_s, _WINDOW_S[1]))
        self.driven = True  # by a head, now
        self._guesses, self._log = guesses, RunLog(state)
        self.follow(state, rates, clock)
        self._reports: dict[str, tuple[float, Progressed]] = {}
        self._past: deque[Stretch] = deque()
        self._warm: dict[str, int] = {}  # device -> the job it trained last
        self._losses: dict[int, Series] = defaultdict(Series)
        self._trains_since: dict[int, float] = {}  # by job; a head's cold start is no pace
        self._round_began = self._cold_start_s = 0.0
        self._goal: Counter[str] = Counter()  # steps by device, of this round
        self._done: Counter[str] = Counter()

    def take_facts(self, facts: RunFacts) -> None:
        """Who there is to see from now on."""
        self.mix, self.devices = facts.mix, devices_of(facts.nodes)
        self.waits_for_work = facts.waits_for_work

    def follow(self, state: RunState, rates: RateModel, clock: Callable[[], float]) -> None:
        """Goes on with another fold of the same run: what was heard before stays."""
        self.state = self._log.state = state
        self._rates, self._clock = rates, clock

    # -- what it hears -----------------------------------------------------------------------

    def happened(self, event: events.Event) -> list[Entry]:
        """Takes in an event that the state already holds; returns what became certain news."""
        match event:
            case events.HeadStarted():
                self._trains_since.clear()
            case events.RoundPlanned():
                self._plan(event)
            case events.CopyFinished():
                self._finish(event)
            case events.CopyLost():
                self._reports.pop(event.attempt, None)
            case events.RunStopped():
                self._reports.clear()
        news = self._log.hear(event)
        self.log.extend(news)
        return news

    def progressed(self, report: Progressed) -> None:
        self._reports[report.attempt] = (self._clock(), report)
        if report.loss is not None:
            self._losses[self.state.started[report.attempt].job].add(report.loss)

    def _plan(self, event: events.RoundPlanned) -> None:
        """What each device can do of its list before the slot ends."""
        self._round_began = event.t
        self._goal.clear()
        self._done.clear()
        left = {device.name: self.mix.slot_s for device in self.devices}
        gangs = {gang[0]: gang for gang in event.gangs}
        for job, first, steps in event.stints:
            gang = gangs.get(first, (first,))
            if not left.keys() >= set(gang):  # taken out of the inventory since
                continue
            rate = self._rates.gang(job, gang)
            fits = min(steps, math.ceil(rate * left[first]))
            for device in gang:
                left[device] -= fits / rate if rate else 0.0
                self._goal[device] += fits

    def _finish(self, event: events.CopyFinished) -> None:
        self._reports.pop(event.attempt, None)
        started = self.state.started[event.attempt]
        if event.loss is not None:
            self._losses[started.job].add(event.loss)
        if not event.warm:
            so_far = self._cold_start_s or event.start_s
            self._cold_start_s = 0.7 * so_far + 0.3 * event.start_s
        if not event.steps or started.purpose != "train":
            return
        self._warm |= dict.fromkeys(started.devices, started.job)
        begin = started.t + event.start_s
        self._trains_since.setdefault(started.job, begin)
        end = max(begin, min(begin + event.train_s, event.t))
        for device in started.devices:
            if not self._rates.knows(device):
                continue
            self._done[device] += event.steps
            self._past.append(Stretch(device, started.job, begin, end, event.steps))
        while self._past and self._past[0].end < event.t - (WINDOWS + 1) * self.window_s:
            self._past.popleft()

    # -- the run -----------------------------------------------------------------------------

    @property
    def now(self) -> float:
        return self._clock()

    @property
    def story(self) -> list[Entry]:
        """The log in order of time; a round's merges are known late."""
        return sorted([*self.log, *self._log.growing], key=lambda entry: entry.t)

    def slot_left(self, now: float | None = None) -> float:
        now = self.now if now is None else now
        return max(0.0, self._round_began + self.mix.slot_s - now)

    @property
    def is_waiting(self) -> bool:
        """Whether it has nothing to do until somebody brings work."""
        state = self.state
        is_idle = not state.unfinished and not state.unmeasured
        return self.waits_for_work and is_idle and not state.is_closed

    def ahead(self, left: Estimate) -> str:
        """What comes next, in a word or two."""
        state = self.state
        if state.unfinished:
            return f"{left} to go"
        if not self.is_waiting:
            return "last evaluations"
        paused = sum(job.is_paused for job in state.resting)
        return f"waits for work, {count(paused, 'job')} paused" if paused else "waits for work"

    def steps_done(self, job: JobState) -> int:
        """Committed, handed in, and done by copies under way."""
        return job.job.target_steps - job.remaining + self._unmerged(job)

    @property
    def steps_unmerged(self) -> int:
        """What a sudden end would cost."""
        return sum(self._unmerged(job) for job in self.state.jobs.values())

    def _unmerged(self, job: JobState) -> int:
        under_way = sum(self._under_way(copy)[0] for copy in job.active.values())
        return under_way + sum(copy.steps for copy in job.handed_in.values())

    def left(self) -> Estimate:
        """How long the run still takes: at the pace of the recent past, which holds all overhead,
        or at the rates alone before there is one."""
        work = Workload(self.state, self._rates, [device.name for device in self.devices])
        jobs = self.state.unfinished
        bare = work.left({j.job.id: j.job.target_steps - self.steps_done(j) for j in jobs})
        since = min(self._trains_since.values(), default=self.now)
        paces = self._paces(since, {job: work.seconds(job, 1.0) for job in self.state.jobs})
        paced = extrapolate(bare.seconds, paces, self.window_s)
        steady = paced or Estimate(bare.seconds, UNSTEADY)
        # Once there are more devices than jobs, each job that ends sends its share of them to the
        # others: cold starts that no pace has seen.
        moves = math.fsum(1 / left for left in range(2, min(len(jobs), len(self.devices)) + 1))
        starts = Estimate(self._cold_start_s * moves, UNSTEADY)
        return starts + Estimate(steady.seconds, math.hypot(steady.error, bare.error))

    def _paces(self, since: float, worth: Mapping[int, float]) -> list[float]:
        """What was done a second in each recent window, steps of each job being ``worth`` that."""
        now = self.now
        since = max(since, now - WINDOWS * self.window_s)
        if now - since < _LEAST_S:
            return []
        stretches = [s for s in self._stretches() if s.job in worth]
        count = max(1, int((now - since) / self.window_s))
        length = (now - since) / count
        edges = [since + i * length for i in range(count + 1)]
        return [
            sum(s.steps * s.share_in(begin, end) * worth[s.job] for s in stretches) / length
            for begin, end in pairwise(edges)
        ]

    def _stretches(self) -> Iterator[Stretch]:
        yield from self._past
        now = self.now
        for job in self.state.jobs.values():
            for copy in job.active.values():
                steps, seconds = self._under_way(copy)
                for device in copy.devices if seconds else ():
                    yield Stretch(device, copy.job, now - seconds, now, steps)

    def _under_way(self, copy: events.CopyStarted) -> tuple[int, float]:
        """Steps and seconds of a copy, carried on from its last report to this moment."""
        if heard := self._reports.get(copy.attempt):
            at, report = heard
            seconds, silence = report.seconds, self.now - at
            rate = report.steps / seconds if seconds > 0 else 0.0
        elif self._guesses and self.driven:
            is_warm = self._warm.get(copy.device) == copy.job
            seconds, silence = 0.0, self.now - copy.t - (0.0 if is_warm else self._cold_start_s)
            rate = self._rates.gang(copy.job, copy.devices)
        else:
            return 0, 0.0
        seconds += max(0.0, silence if self._guesses else min(silence, _SILENCE_S))
        return min(copy.quota, int(rate * seconds)), seconds

    # -- devices and jobs --------------------------------------------------------------------

    def device_rows(self) -> list[DeviceNow]:
        copies = {
            device: copy
            for job in (self.state.jobs.values() if self.driven else ())
            for copy in (*job.side_tasks.values(), *job.active.values())
            for device in copy.devices
        }
        busy = self._busy()
        return [self._device(d, copies.get(d.name), busy[d.name]) for d in self.devices]

    def _device(
        self, device: Device, copy: events.CopyStarted | None, busy: tuple[float, ...]
    ) -> DeviceNow:
        name = device.name
        if lost := self.state.lost_devices.get(name):
            return DeviceNow(device, _AWAY.get(lost.reason, "lost"), busy=busy)
        done = self._done[name]
        goal = max(done, self._goal[name])
        if copy is None:
            return DeviceNow(device, "idle", None, done, goal, busy=busy)
        job = self.state.jobs[copy.job].job.name
        if copy.purpose in _DOING:
            return DeviceNow(device, _DOING[copy.purpose], job, done, goal, busy=busy)
        steps, seconds = self._under_way(copy)
        goal = max(goal, done + min(copy.quota, self._fitting(copy)))
        done += steps
        rate = self._rate(copy, steps, seconds)
        estimate = None if copy.gang else self._rates.estimated(copy.job, name)
        of_estimate = rate / estimate if rate and estimate else None
        doing = "training" if seconds else "starting"
        return DeviceNow(device, doing, job, done, max(done, goal), rate, of_estimate, busy)

    def _fitting(self, copy: events.CopyStarted) -> int:
        """Steps that a copy can do to the slot's end."""
        return math.ceil(self._rates.gang(copy.job, copy.devices) * self.slot_left(copy.t))

    def _rate(self, copy: events.CopyStarted, steps: int, seconds: float) -> float | None:
        """Of this copy if it has told enough, else of the ones before it there."""
        if steps and seconds >= _LEAST_S and not self._guesses:
            return steps / seconds
        return None if copy.gang else self._rates.measured(copy.job, copy.device)

    def _busy(self) -> dict[str, tuple[float, ...]]:
        """Each device's share of training in the windows up to now, none before the run began."""
        now, length = self.now, self.window_s
        count = min(WINDOWS, max(1, math.ceil(now / length)))
        edges = [max(0.0, now - i * length) for i in range(count, -1, -1)]
        windows = [(a, b) for a, b in pairwise(edges) if b > a]
        trained: dict[str, list[float]] = {d.name: [0.0] * len(windows) for d in self.devices}
        for stretch in self._stretches():
            for i, (begin, end) in enumerate(windows):
                overlap = min(end, stretch.end) - max(begin, stretch.begin)
                if overlap > 0 and stretch.device in trained:  # it may have been left since
                    trained[stretch.device][i] += overlap / (end - begin)
        return {device: tuple(min(1.0, x) for x in shares) for device, shares in trained.items()}

    def job_rows(self, run_left: Estimate) -> list[JobNow]:
        return [self._job(job, run_left) for job in self.state.jobs.values()]

    def _job(self, job: JobState, run_left: Estimate) -> JobNow:
        standing, at, left = "waiting", job.finished_at, None
        if job.ending:
            standing = job.ending
        elif job.is_paused:
            standing = "paused"
        elif job.job.arrives_s > self.now:
            standing, at = "coming", job.job.arrives_s
        elif job.is_at_milestone and job.job.promote:
            standing, at = "at rung", None
        elif self.driven:
            standing = "training" if job.active else "waiting"
            left = self._job_left(job, run_left)
        return JobNow(
            job.job.name,
            standing,
            self.steps_done(job),
            job.job.target_steps,
            job.effective_steps,
            len({d for copy in job.active.values() for d in copy.devices}) if self.driven else 0,
            self.driven and any(copy.gang for copy in job.active.values()),
            job.generation,
            tuple(self._losses[job.job.id].points),
            left,
            at,
        )

    def _job_left(self, job: JobState, run_left: Estimate) -> Estimate | None:
        """At its own pace so far; the run's end comes no sooner than any job's."""
        since = self._trains_since.get(job.job.id, self.now)
        steps = job.job.target_steps - self.steps_done(job)
        paces = self._paces(since, {job.job.id: 1.0})
        own = extrapolate(steps, paces, self.window_s)
        return min(own, run_left, key=lambda e: e.seconds) if own else None
