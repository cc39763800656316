"""The state of a run: a fold over its events. Totals are never counted apart from it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from hadar_cli.core import events
from hadar_cli.core.merging import is_better
from hadar_cli.core.model import Job
from hadar_cli.core.steps import StepSet, all_steps

_CRUMB_S = 0.5  # of a job's max_duration: nobody starts a copy for it


@dataclass(slots=True)
class JobState:
    """One job's progress as committed, and what its copies still have in hand."""

    job: Job
    done: StepSet = field(default_factory=StepSet)
    generation: int = 0
    weights: str | None = None
    made_by: tuple[str, ...] = ()  # the attempts that these weights were merged of
    effective_steps: float = 0.0
    finished_at: float | None = None
    untrained: dict[str, float] | None = None
    quality: dict[str, float] | None = None
    rival: str | None = None  # the last merge's leader, until it is known which of them is better
    failures: int = 0  # in a row
    last_failure: tuple[str, str, str] = ("", "", "")  # on which device, why, and the copy's log
    active: dict[str, events.CopyStarted] = field(default_factory=dict)
    errands: dict[str, events.CopyStarted] = field(default_factory=dict)
    handed_in: dict[str, events.CopyFinished] = field(default_factory=dict)

    trained_s: float = 0.0  # time in which a copy was at work, however many were
    began_at: float | None = None  # of those at work now, the first
    cut_short: str | None = None  # why it ended without its last steps

    remaining: int = field(init=False)  # steps not committed yet
    free: StepSet = field(init=False)  # steps that nobody has done or holds

    def __post_init__(self) -> None:
        self.remaining = self.job.target_steps
        self.free = all_steps(self.job.target_steps)

    @property
    def is_trained(self) -> bool:
        return self.remaining == 0 or self.cut_short is not None

    def trained_by(self, now: float) -> float:
        """Seconds in which it had copies at work."""
        return self.trained_s + (0.0 if self.began_at is None else now - self.began_at)

    def allowance_s(self, now: float) -> float:
        """What its ``max_duration`` leaves it to train."""
        most = self.job.max_duration_s
        return math.inf if most is None else most - self.trained_by(now)

    def is_used_up(self, now: float) -> bool:
        """Whether no more than a crumb is left of that: copies end with a whole step."""
        return self.allowance_s(now) <= max(_CRUMB_S, 0.01 * (self.job.max_duration_s or 0.0))

    def is_based_on_latest(self, copy: events.CopyStarted) -> bool:
        """Whether the copy trains the weights as they are committed now, and none before them."""
        if copy.follows and self.made_by != (copy.follows,):
            return False
        return copy.generation == self.generation

    @property
    def in_hand(self) -> StepSet:
        """Steps that copies are working on, or have handed in but that are not committed yet."""
        held = StepSet()
        for started in self.active.values():
            held = held | StepSet.of(started.slices)
        for finished in self.handed_in.values():
            held = held | StepSet.of(finished.slices)
        return held

    @property
    def is_unmeasured(self) -> bool:
        """Whether the final weights still wait for their evaluation, or their rival's."""
        waits = self.quality is None or self.rival is not None
        return self.untrained is not None and waits and self.is_trained


class RunState:
    """Folds events one by one with ``apply``; refuses those that break an invariant."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.jobs = {job.id: JobState(job) for job in jobs}
        self._open = dict(self.jobs)
        self.ended: list[int] = []  # trained or cut short, in the order in which they were
        self._unmeasured: dict[int, JobState] = {}
        self.started: dict[str, events.CopyStarted] = {}
        self.lost_devices: dict[str, str] = {}
        self.now = 0.0
        self.epoch = 0
        self.round = 0
        self.finished = False

    @property
    def unfinished(self) -> Collection[JobState]:
        return self._open.values()

    @property
    def unmeasured(self) -> list[JobState]:
        """Trained jobs whose quality is not known yet."""
        return list(self._unmeasured.values())

    def device_of(self, attempt: str) -> str:
        return self.started[attempt].device

    def apply(self, event: events.Event) -> None:
        self.now = max(self.now, event.t)
        match event:
            case events.HeadStarted():
                self.epoch = event.epoch
                self.lost_devices.clear()
                for job in self.jobs.values():
                    job.failures = 0  # someone may have mended it
            case events.RoundPlanned():
                self.round = event.round
            case events.DeviceLost():
                self.lost_devices[event.device] = event.why
            case events.DeviceReturned():
                self.lost_devices.pop(event.device, None)
            case events.RunStopped():
                self._drop_copies()
            case events.RunFinished():
                self.finished = True
            case _:
                self._apply_to_job(event)

    def _apply_to_job(self, event: events.Event) -> None:
        match event:
            case events.CopyStarted():
                self._start(event)
            case events.CopyFinished():
                self._finish(event)
            case events.CopyLost():
                self._lose(event)
            case events.WeightsMerged():
                self._commit(event)
            case events.JobCutShort():
                self._cut_short(event)

    def _start(self, event: events.CopyStarted) -> None:
        if event.attempt in self.started:
            raise ValueError(f"attempt {event.attempt} started twice")
        job, steps = self.jobs[event.job], StepSet.of(event.slices)
        if not steps <= job.free:
            raise ValueError(f"attempt {event.attempt} was given steps that are done or held")
        job.free -= steps
        self.started[event.attempt] = event
        if event.purpose == "train" and job.began_at is None:
            job.began_at = event.t
        (job.active if event.purpose == "train" else job.errands)[event.attempt] = event

    def _close(self, job: JobState, attempt: str) -> None:
        if job.active.pop(attempt, None) is None and job.errands.pop(attempt, None) is None:
            raise ValueError(f"attempt {attempt} is not under way")
        if not job.active and job.began_at is not None:
            job.trained_s, job.began_at = job.trained_by(self.now), None

    def _lose(self, event: events.CopyLost) -> None:
        started = self.started[event.attempt]
        job = self.jobs[started.job]
        self._close(job, event.attempt)
        job.free |= StepSet.of(started.slices)
        if not event.node_fault:
            job.failures += 1
            job.last_failure = (started.device, event.why, event.log)

    def _finish(self, event: events.CopyFinished) -> None:
        started = self.started[event.attempt]
        job = self.jobs[started.job]
        self._close(job, event.attempt)
        done, given = StepSet.of(event.slices), StepSet.of(started.slices)
        if len(done) != event.steps or not done <= given:
            raise ValueError(f"attempt {event.attempt} claims steps it was not given")
        if done and not job.is_based_on_latest(started):
            raise ValueError(f"attempt {event.attempt} trained weights that are merged already")
        job.free |= given - done
        if event.quality is not None:  # it may be empty, of a model that diverged
            # Quality is of the weights the copy was *given*: generation 0 means untrained ones.
            if started.generation == 0:
                job.untrained = event.quality
            elif started.purpose == "compare":
                self._compare(job, event.quality)
            else:
                job.quality = event.quality
            self._look_for_quality(job)
        if event.steps:
            job.handed_in[event.attempt] = event

    def _compare(self, job: JobState, quality: dict[str, float]) -> None:
        """The rival's quality decides which weights are the job's: nothing else records it."""
        if is_better(quality, job.quality or {}):
            job.weights, job.quality = job.rival, quality
        job.rival = None

    def _commit(self, event: events.WeightsMerged) -> None:
        job = self.jobs[event.job]
        if event.generation != job.generation + 1:
            raise ValueError(f"job {event.job} has no generation {event.generation} to commit")
        steps = []
        for attempt in event.accepted:
            finished = job.handed_in.pop(attempt)
            job.done = job.done | StepSet.of(finished.slices)
            job.failures = 0
            steps.append(finished.steps)
        for attempt, why in event.refused:
            if unused := job.handed_in.pop(attempt, None):
                job.free |= StepSet.of(unused.slices)
            job.failures += 1
            job.last_failure = (self.device_of(attempt), why, "")
        if not steps:
            return
        job.generation = event.generation
        job.weights, job.made_by = event.weights, event.accepted
        job.effective_steps += sum(s * s for s in steps) / sum(steps) * self._lr_gain(event)
        job.remaining = job.job.target_steps - len(job.done)
        if job.is_trained:
            job.finished_at = event.t
            job.rival = event.rival or None
            self._end(job)

    def _cut_short(self, event: events.JobCutShort) -> None:
        job = self.jobs[event.job]
        if job.is_trained or job.active:
            raise ValueError(f"job {event.job} is done, or at work, and cannot be cut short")
        job.cut_short, job.finished_at, job.free = event.why, event.t, StepSet()
        self._end(job)

    def _end(self, job: JobState) -> None:
        del self._open[job.job.id]
        self.ended.append(job.job.id)
        self._look_for_quality(job)

    def _look_for_quality(self, job: JobState) -> None:
        if job.is_unmeasured:
            self._unmeasured[job.job.id] = job
        else:
            self._unmeasured.pop(job.job.id, None)

    def _lr_gain(self, event: events.WeightsMerged) -> float:
        """A scaled learning rate makes up for the averaging: see DESIGN of merging in the docs."""
        scales = [self.started[attempt].lr_scale for attempt in event.accepted]
        return sum(scales) / len(scales)

    def _drop_copies(self) -> None:
        """The head left in order and ended its copies: what they held goes back to the pool."""
        for job in self.jobs.values():
            job.trained_s, job.began_at = job.trained_by(self.now), None
            job.active.clear()
            job.errands.clear()
            job.handed_in.clear()
            if not job.cut_short:
                job.free = all_steps(job.job.target_steps) - job.done
