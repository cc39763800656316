"""The state of a run: a fold over its events. Totals are never counted apart from it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import get_args

from hadar_cli.core import events, grants
from hadar_cli.core.events import TRAIN
from hadar_cli.core.job_state import Failure, JobState
from hadar_cli.core.model import Job
from hadar_cli.core.reasons import Absence, Loss
from hadar_cli.core.steps import StepSet, all_steps

__all__ = ["JobState", "RunState"]
_GRANTS = get_args(grants.Grant)


class RunState:
    """Folds events one by one with ``apply``. What ``check`` refuses has changed nothing."""

    def __init__(self, jobs: Iterable[Job], happened: Iterable[events.Event] = ()) -> None:
        self.jobs = {job.id: JobState(job) for job in jobs}
        #: jobs to be trained now: not trained, failed or resting
        self._open = dict(self.jobs)
        self.has_priorities = any(job.priority for job in self.jobs.values())
        #: how often jobs have begun to rest or gone on; who depends on that can tell by it
        self.rests = 0
        #: paused or cancelled, when that was last asked for
        self._called_off: list[JobState] = []
        #: the others, in the order in which they ended
        self.ended: list[int] = []
        #: those of them whose final quality is still to be measured
        self._unmeasured: dict[int, JobState] = {}
        #: every attempt of the run; it is active, a side task or handed in with its job, or over
        self.started: dict[str, events.CopyStarted] = {}
        self.lost_devices: dict[str, events.DeviceLost] = {}
        #: what people asked for, and whether they got it
        self.requests: dict[str, bool] = {}
        #: nobody will add work any more
        self.is_closed = False
        #: by job and device: pairs that are not used any more
        self.avoided: dict[tuple[int, str], events.PairAvoided] = {}
        #: the time of the latest event
        self.now = 0.0
        self.epoch = self.round = 0
        self.finished = False
        for event in happened:
            self.apply(event)

    @property
    def unfinished(self) -> Collection[JobState]:
        """Jobs to be trained now; those that rest are not among them."""
        return self._open.values()

    @property
    def resting(self) -> list[JobState]:
        """Jobs that are neither over nor to be trained now."""
        any_rest = len(self._open) + len(self.ended) < len(self.jobs)
        return [job for job in self.jobs.values() if job.is_resting] if any_rest else []

    @property
    def unwanted(self) -> list[JobState]:
        """Those, and cancelled ones that somebody is still at work on."""
        at_work = [job for job in self._called_off if job.is_unwanted and not job.is_resting]
        return self.resting + at_work

    @property
    def unmeasured(self) -> list[JobState]:
        """Trained jobs whose quality is not known yet."""
        return list(self._unmeasured.values())

    @property
    def failed(self) -> list[JobState]:
        """Jobs that this head could not train."""
        return [job for job in self.jobs.values() if job.failed]

    def device_of(self, attempt: str) -> str:
        return self.started[attempt].device

    def was_called_back(self, event: events.CopyLost) -> bool:
        """Whether it had nothing to hand in yet when people called off its job or its device."""
        copy, released = self.started[event.attempt], (Loss.TERMINATED, Loss.PROCESS_GONE)
        lost = (self.lost_devices.get(device) for device in copy.devices)
        is_needed = any(one and one.reason.is_polite for one in lost)  # by others
        is_unwanted = self.jobs[copy.job].is_unwanted or bool(self.drained & {*copy.devices})
        return event.reason in released and (is_unwanted or is_needed)

    def following(self, happened: Iterable[events.Event]) -> Iterator[events.Event]:
        """Takes in what happened, event by event, and gives each on afterwards."""
        for event in happened:
            self.apply(event)
            yield event

    def apply(self, event: events.Event) -> None:
        """Takes an event in; raises as ``check`` does, and then stays as it was."""
        self.check(event)
        self.take(event)

    def take(self, event: events.Event) -> None:
        """Takes an event in that ``check`` has let pass."""
        self.now = max(self.now, event.t)
        match event:
            case events.HeadStarted():
                self._begin_anew(event)
            case events.RoundPlanned():
                self.round = event.round
            case events.DeviceLost():
                if event.device not in self.drained:
                    self.lost_devices[event.device] = event
            case events.DeviceReturned():
                if event.device not in self.drained:
                    self.lost_devices.pop(event.device, None)
            case events.RunStopped():
                self._drop_copies()
            case events.RunFinished():
                self.finished = True
            case _ if isinstance(event, _GRANTS):
                self._grant(event)
            case _:
                self._apply_to_job(event)

    def _grant(self, event: grants.Grant) -> None:
        """What people asked for, or were refused."""
        self.requests[event.request] = not isinstance(event, events.RequestRefused)
        grants.apply(event, self.jobs)
        match event:
            case events.NodesReplaced():
                self._forget_devices(event.gone)
                for device in (*event.added, *event.gone):
                    self.lost_devices.pop(device, None)
            case events.NodeDrained():
                why = "it is drained: nothing more is started there"
                for device in event.devices:
                    lost = events.DeviceLost(event.t, device, why, Absence.DRAINED)
                    self.lost_devices[device] = lost
            case events.QueueClosed():
                self.is_closed = True
            case events.JobsCancelled():
                for number in event.jobs:
                    self._look_for_quality(self.jobs[number])
        self._sort()

    def _sort(self) -> None:
        """Looks who is to be trained now, after jobs have come, been put to rest or gone on."""
        self.rests += 1
        self.has_priorities = any(job.priority for job in self.jobs.values())
        self._open = {n: job for n, job in self.jobs.items() if not job.is_over | job.is_resting}
        self._called_off = [job for job in self.jobs.values() if job.is_unwanted]

    @property
    def drained(self) -> set[str]:
        """Devices that are to be left."""
        return {d for d, lost in self.lost_devices.items() if lost.reason is Absence.DRAINED}

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
            case events.MilestonePassed():
                self.jobs[event.job].passed.add(event.step)
                self._sort()
            case events.PairAvoided():
                self.avoided[event.job, event.device] = event
            case events.JobFailed():
                self._fail(event)

    def _begin_anew(self, event: events.HeadStarted) -> None:
        """Someone may have mended what failed; but a card has not grown."""
        self.epoch = event.epoch
        drained = self.drained
        self.lost_devices = {d: lost for d, lost in self.lost_devices.items() if d in drained}
        self.avoided = {
            pair: one
            for pair, one in self.avoided.items()
            if one.reason.is_too_large and not self.jobs[one.job].failed
        }
        for job in self.jobs.values():
            job.failures.clear()
            if job.failed:  # nobody has room for it; then it is tried everywhere again, and whole
                job.failed = None
                job.pieces.clear()
                self._look_for_quality(job)
        self.ended = [number for number in self.ended if self.jobs[number].is_over]
        self._sort()

    # -- what cannot have happened -----------------------------------------------------------

    def check(self, event: events.Event) -> None:
        """Raises ValueError or LookupError for an event that contradicts those before it."""
        events.check_figures(event)
        match event:
            case events.CopyStarted():
                self._check_start(event)
            case events.CopyFinished():
                self._check_claim(event)
            case events.CopyLost():
                self._under_way(event.attempt)
            case events.WeightsMerged():
                self._check_merge(event)
            case events.JobCutShort() | events.JobFailed() | events.MilestonePassed():
                self._check_turn(event, self.jobs[event.job])
            case events.PairAvoided() | events.DeviceTooDear() | events.SlotTooShort():
                _ = self.jobs[event.job]  # raises where it is none
            case _ if isinstance(event, _GRANTS):
                grants.check(event, self.jobs, self.requests)

    def _check_turn(self, event: events.Event, job: JobState) -> None:
        match event:
            case events.JobCutShort() if job.is_over or job.active:
                raise ValueError(f"job {job.job.id} is done, or at work: it cannot be cut short")
            case events.JobFailed() if job.active or (job.is_over and not job.is_unmeasured):
                raise ValueError(f"job {job.job.id} is done, or at work: it cannot fail")
            case events.MilestonePassed(step=s) if not job.waits_at(s):
                raise ValueError(f"job {job.job.id} is not at step {s}")

    def _check_start(self, event: events.CopyStarted) -> None:
        if event.attempt in self.started:
            raise ValueError(f"attempt {event.attempt} started twice")
        if not StepSet.of(event.slices) <= self.jobs[event.job].free:
            raise ValueError(f"attempt {event.attempt} was given steps done or held")

    def _under_way(self, attempt: str) -> tuple[JobState, events.CopyStarted]:
        started = self.started[attempt]
        job = self.jobs[started.job]
        if attempt not in job.active and attempt not in job.side_tasks:
            raise ValueError(f"attempt {attempt} is not under way")
        return job, started

    def _check_claim(self, event: events.CopyFinished) -> None:
        job, started = self._under_way(event.attempt)
        done = StepSet.of(event.slices)
        if len(done) != event.steps or not done <= StepSet.of(started.slices):
            raise ValueError(f"attempt {event.attempt} claims steps it was not given")
        if done and not job.may_count(started):
            raise ValueError(f"attempt {event.attempt} trained weights that never were the job's")

    def _check_merge(self, event: events.WeightsMerged) -> None:
        job = self.jobs[event.job]
        if event.generation != job.generation + 1:
            raise ValueError(f"job {event.job} has no generation {event.generation} to commit")
        named = (*event.accepted, *(attempt for attempt, _ in event.refused))
        if len(set(named)) < len(named):
            raise ValueError(f"job {event.job} cannot take a copy twice, or take and refuse it")
        for attempt in named:
            if self.started[attempt].job != event.job:
                raise ValueError(f"attempt {attempt} is not of job {event.job}")
        for attempt in event.accepted:
            if attempt not in job.handed_in:
                raise ValueError(f"attempt {attempt} has nothing to commit")

    # -- what has happened -------------------------------------------------------------------

    def _start(self, event: events.CopyStarted) -> None:
        job = self.jobs[event.job]
        job.free -= StepSet.of(event.slices)
        self.started[event.attempt] = event
        if event.purpose == TRAIN and job.began_at is None:
            job.began_at = event.t
        (job.active if event.purpose == TRAIN else job.side_tasks)[event.attempt] = event

    def _close(self, job: JobState, attempt: str) -> None:
        job.active.pop(attempt, None)
        job.side_tasks.pop(attempt, None)
        if not job.active and job.began_at is not None:
            job.trained_s, job.began_at = job.trained_by(self.now), None

    def _lose(self, event: events.CopyLost) -> None:
        job, started = self._under_way(event.attempt)
        self._close(job, event.attempt)
        job.free |= StepSet.of(started.slices)
        job.cannot_share |= event.reason.is_of_sharing
        if not event.node_fault:
            device = event.device or started.device
            failure = Failure(event.attempt, device, event.reason, event.why, event.log)
            job.fail(failure, started.micro_batches)

    def _finish(self, event: events.CopyFinished) -> None:
        job, started = self._under_way(event.attempt)
        self._close(job, event.attempt)
        if heir := job.take_back(started, StepSet.of(event.slices)):
            self.started[heir.attempt] = heir
        if event.quality is not None:  # it may be empty, of a model that diverged
            # Quality is of the weights the copy was *given*: generation 0 means untrained ones.
            if started.generation == 0:
                job.untrained = event.quality
            else:
                job.quality, job.measured = event.quality, started.generation
                if job.is_at_milestone and started.generation == job.generation:
                    job.scores[job.limit] = event.quality
            if job.higher_is_better is None:
                job.higher_is_better = event.higher_is_better
            self._look_for_quality(job)
        if event.steps:
            job.handed_in[event.attempt] = event
            job.cannot_share |= bool(started.gang) and not event.members
        job.is_stopping |= event.stopped == events.BY_SCRIPT and started.purpose == TRAIN

    def _commit(self, event: events.WeightsMerged) -> None:
        job = self.jobs[event.job]
        copies = [self.started[attempt] for attempt in event.accepted]
        in_time = [copy for copy in copies if job.is_based_on_latest(copy)]
        gained = job.steps_gained(in_time, [c for c in copies if c not in in_time], event.late)
        for copy in copies:
            job.done = job.done | StepSet.of(job.handed_in.pop(copy.attempt).slices)
            for device in copy.devices:
                job.failures.pop(device, None)
        for attempt, why in event.refused:
            if unused := job.handed_in.pop(attempt, None):
                job.free |= StepSet.of(unused.slices)
            job.fail(Failure(attempt, self.device_of(attempt), Loss.REFUSED, why))
        if not event.accepted:
            job.is_stopping = False  # whoever said so is not believed
            return
        job.generation = event.generation
        job.weights, job.made_by = event.weights, tuple(c.attempt for c in in_time)
        if event.optimizer:
            job.optimizer = event.weights
        job.effective_steps += gained
        under_way = (*job.active, *job.side_tasks, *job.handed_in)
        job.remember(self.started[attempt].generation for attempt in under_way)
        job.remaining = job.job.target_steps - len(job.done)
        if job.is_trained:
            job.finished_at = event.t
            self._end(job)
        elif job.is_at_milestone:
            self._look_for_quality(job)
            self._sort()

    def _cut_short(self, event: events.JobCutShort) -> None:
        job = self.jobs[event.job]
        job.is_stopping |= event.is_planned
        job.cut_short, job.finished_at, job.free = event.why, event.t, StepSet()
        self._end(job)

    def _fail(self, event: events.JobFailed) -> None:
        job = self.jobs[event.job]
        job.failed = event
        if job.is_trained:  # it is its evaluation that fails
            self._look_for_quality(job)
        else:
            self._end(job)

    def _end(self, job: JobState) -> None:
        self._open.pop(job.job.id, None)
        job.is_paused = False
        self.ended.append(job.job.id)
        self._look_for_quality(job)

    def _look_for_quality(self, job: JobState) -> None:
        if job.is_unmeasured:
            self._unmeasured[job.job.id] = job
        else:
            self._unmeasured.pop(job.job.id, None)

    def _forget_devices(self, devices: set[str]) -> None:
        """Nothing that was learned of them holds for whatever has their names now."""
        self.avoided = {pair: one for pair, one in self.avoided.items() if pair[1] not in devices}
        for job in self.jobs.values():
            for device in devices:
                job.pieces.pop(device, None)
                job.failures.pop(device, None)
            for copy in (*job.active.values(), *job.side_tasks.values()):
                if not devices.isdisjoint(copy.devices):
                    self._close(job, copy.attempt)
                    job.free |= StepSet.of(copy.slices)

    def _drop_copies(self) -> None:
        """The head left in order and ended its copies: what they held goes back to the pool."""
        for job in self.jobs.values():
            job.trained_s, job.began_at = job.trained_by(self.now), None
            job.active.clear()
            job.side_tasks.clear()
            job.handed_in.clear()
            job.remember(())
            if not job.cut_short:
                job.is_stopping = False
                job.free = all_steps(job.job.target_steps) - job.done

    def validate(self) -> None:
        """Raises AssertionError where parts of the state contradict each other."""
        for job in self.jobs.values():
            job.validate()
            for attempt, copy in (*job.active.items(), *job.side_tasks.items()):
                assert self.started[attempt] is copy, f"attempt {attempt} is another's"
            assert job.handed_in.keys() <= self.started.keys(), "an attempt never started"
        over = {number for number, job in self.jobs.items() if job.is_over}
        is_open = {number for number, job in self.jobs.items() if not job.is_over | job.is_resting}
        assert self._open.keys() == is_open, "a job is open and over"
        assert sorted(self.ended) == sorted(over), "a job ended twice, or was not told"
        unmeasured = {number for number, job in self.jobs.items() if job.is_unmeasured}
        assert self._unmeasured.keys() == unmeasured, "a job's quality is not asked for"
