"""What comes back from the devices, and what is made of it: checked, merged and counted."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from hadar_cli.core import events
from hadar_cli.core.estimates.learning import learn_speed
from hadar_cli.core.estimates.throughput import LearningRates, Rates
from hadar_cli.core.policies.promotion import decide
from hadar_cli.core.state import JobState
from hadar_cli.engine.failures import Failures
from hadar_cli.engine.follow_ons import FollowOns
from hadar_cli.engine.meetings import Meetings
from hadar_cli.engine.occupancy import Occupancy
from hadar_cli.engine.ports import (
    CopyReport,
    DeviceFree,
    DeviceTaken,
    DeviceWanted,
    Executor,
    Failed,
    HandedIn,
    Merged,
    Moving,
    NodeBack,
    NodeGone,
    NodeReport,
    NodeSilent,
    Observer,
    Progressed,
    Report,
    Surveyed,
)
from hadar_cli.engine.side_tasks import SideTasks
from hadar_cli.engine.tracker import Tracker
from hadar_cli.engine.views import Views

_SILENT_PATIENCE_S = 1.0  # past a meeting's time, with copies of which nothing is heard


@dataclass(frozen=True, slots=True)
class _Meeting:
    """A merge under way: since when, of whom, and what handing in cost them beside training."""

    began: float
    came: tuple[events.CopyFinished, ...]
    waited_s: float | None  # by those in time; None: there are none


@dataclass(slots=True)
class ReportHandler:
    """Takes reports one by one, and holds a job's meeting when all that it waits for are in."""

    executor: Executor
    tracker: Tracker
    observer: Observer
    rates: Rates
    learns: LearningRates
    held: Occupancy
    meetings: Meetings
    views: Views
    side_tasks: SideTasks
    follow_ons: FollowOns
    failures: Failures
    _has_adopted: bool = False
    _told_of_slot: set[int] = field(default_factory=set)  # jobs
    _merges: dict[int, _Meeting] = field(default_factory=dict)  # of the jobs in ``held.merging``
    _waiting: dict[int, list[Report]] = field(default_factory=dict)  # what waits for these merges

    def adopt(self) -> None:
        """Takes over, once, the copies that an earlier head left under way. From then on they hear
        of this one, whatever else it does first."""
        if self._has_adopted:
            return
        self._has_adopted = True
        orders = self.tracker.under_way()
        self.executor.adopt(orders)
        for order in orders:
            self.held.hold(replace(order, hand_in=self.meetings.rules.hand_in))  # for all we know
            copy = self.tracker.state.started[order.attempt]
            is_late = copy.generation < self.tracker.state.jobs[copy.job].generation
            if order.returns_weights and is_late:
                self.held.late.add(order.attempt)
            self.meetings.expect(order.job.id, self.executor.now() + order.seconds)

    def take(self, report: Report) -> None:
        match report:
            case Surveyed():
                self.held.progress |= report.steps
            case Merged():
                self._close_meeting(report)
                self.promote()
            case Progressed() | Moving() | HandedIn() | Failed():
                if self.tracker.is_under_way(report.attempt):  # or else it is late or repeated
                    self._take_from_copy(report)
            case _:
                self._take_from_node(report)

    def _take_from_node(self, report: NodeReport) -> None:
        now = self.executor.now()
        match report:
            case NodeGone():
                for device in report.devices:
                    self.tracker.lose_device(device, report.reason, report.why)
            case NodeSilent():
                change = set.difference_update if report.is_over else set.update
                change(self.held.silent, report.devices)
            case NodeBack():
                for device in report.devices:
                    self.tracker.record(events.DeviceReturned(now, device))
            case DeviceTaken():
                if report.device not in self.tracker.state.lost_devices:
                    self.tracker.lose_device(report.device, report.reason, report.why)
            case DeviceFree():
                lost = self.tracker.state.lost_devices.get(report.device)
                if lost and lost.reason.is_polite:
                    self.tracker.record(events.DeviceReturned(now, report.device))
            case DeviceWanted():
                self.tracker.record(events.DeviceWanted(now, report.device, report.by))

    def _take_from_copy(self, report: CopyReport) -> None:
        copy = self.tracker.state.started[report.attempt]
        match report:
            case Moving():
                self.meetings.moved(report, self.executor.now())
            case Progressed():
                self.held.hear(report, self.executor.now())
                self.observer.progressed(report)
            case _ if copy.job in self.held.merging and copy.purpose == events.TRAIN:
                self._waiting.setdefault(copy.job, []).append(report)
            case HandedIn():
                self._learn_cost(report)
                devices = self._free(report.attempt)
                self.side_tasks.note(copy.job, report.stays)
                if not report.stays:
                    self.held.cool(devices)
                if done := self.tracker.handed_in(report):
                    for device in devices:
                        self.held.failures.pop(device, None)
                    self._learn(report, done)
                    self._tell_if_slot_is_short(report)
                else:
                    self.failures.judge(report.attempt)
                self._commit_if_complete(report.attempt)
                self.promote()
            case Failed():
                devices = self._free(report.attempt)
                self.held.cool(devices)
                self.tracker.failed(report)
                self.failures.leave_device(report, report.device or devices[0])
                self._commit_if_complete(report.attempt)
                self.failures.judge(report.attempt)
                self.promote()

    def _free(self, attempt: str) -> tuple[str, ...]:
        self.meetings.ended(attempt)
        return self.held.free(attempt)

    def _learn(self, report: HandedIn, done: events.CopyFinished) -> None:
        started = self.tracker.state.started[report.attempt]
        if done.steps:
            learn_speed(self.learns, started, done)
        if not report.warm:
            self.held.learn_start(done.own_start_s)

    def _tell_if_slot_is_short(self, report: HandedIn) -> None:
        """Once a job; such a run gets on, but slowly, and its user can mend it."""
        job, result = self.tracker.state.started[report.attempt].job, report.result
        took = {"step": result.train_s / result.steps if result.steps else 0.0}
        took["save"] = result.save_s
        what = max(took, key=lambda name: took[name])
        slot_s = self.meetings.slot_s
        if took[what] > slot_s and job not in self._told_of_slot and not self.executor.prolongs:
            self._told_of_slot.add(job)
            now = self.executor.now()
            self.tracker.record(events.SlotTooShort(now, job, what, took[what], slot_s))

    def _learn_cost(self, report: HandedIn) -> None:
        """What handing in cost the device; also of a copy that was late, for that above all."""
        started, result = self.tracker.state.started[report.attempt], report.result
        if started.purpose == events.TRAIN and not started.follows and not started.gang:
            before_s = result.evaluate_s if report.warm else result.start_s
            cost_s = self.executor.now() - started.t - result.train_s - before_s
            if not self.tracker.state.jobs[started.job].generation:
                cost_s += self.meetings.arriving_s(report.attempt)  # later, they travel both ways
            if math.isfinite(cost_s):  # these times are the node's, and not checked yet
                self.meetings.learn_device(started.job, started.device, cost_s)

    # -- meetings ----------------------------------------------------------------------------

    def _commit_if_complete(self, attempt: str) -> None:
        """Merges a job as soon as no copy that anyone waits for is still training."""
        job = self.tracker.state.jobs[self.tracker.state.started[attempt].job]
        if not self.held.awaited(job):
            self.commit(job)
        elif job.is_stopping:
            self.executor.recall(list(job.active))

    def commit(self, job: JobState) -> None:
        """Holds the job's meeting with those who came. While they are merged, what else happens to
        its copies waits: it is judged by what the job is then."""
        number = job.job.id
        if number in self.held.merging:
            return
        self.meetings.close(number)
        merge = self.tracker.merge_of(job)
        if not merge:
            self._end_meeting(job)
            return
        came = tuple(job.handed_in.values())
        started = self.tracker.state.started
        waits = [self._wait_of(c) for c in came if job.is_based_on_latest(started[c.attempt])]
        waited_s = sum(waits) / len(waits) if waits else None
        # From now: patience with the late is no cost of merging.
        self._merges[number] = _Meeting(self.executor.now(), came, waited_s)
        self.held.merging.add(number)
        if report := self.executor.aside(merge):
            self._close_meeting(report)

    def _close_meeting(self, report: Merged) -> None:
        meeting = self._merges.pop(report.job)
        self.held.merging.remove(report.job)
        self.tracker.merged(report)
        for copy in meeting.came:
            self.failures.judge(copy.attempt)
        merge_s = self.executor.now() - meeting.began
        job, outcome = self.tracker.state.jobs[report.job], report.outcome
        if meeting.waited_s is not None:
            self.meetings.learn(report.job, meeting.waited_s + merge_s, outcome.bytes)
        self.learns.observe_size(report.job, outcome.bytes, outcome.optimizer)
        self._tell_what_is_too_dear(job)
        self._end_meeting(job)
        for waiting in self._waiting.pop(report.job, []):
            self.take(waiting)

    def _end_meeting(self, job: JobState) -> None:
        if orphans := self.follow_ons.orphans(job):
            self.executor.recall(orphans)
        self._end_if_over(job)

    def _end_if_over(self, job: JobState) -> None:
        """Ends a job that is to have no more steps, once nobody is at work on it."""
        now = self.executor.now()
        if job.is_used_up(now) and not job.active and not job.is_over:
            why = f"stopped early by its script at step {len(job.done):,}"
            if job.is_cancelled:
                why = f"cancelled at step {len(job.done):,}"
            elif not job.is_stopping:
                why = f"it has trained for its max_duration of {job.job.max_duration_s:g} s"
            self.tracker.record(events.JobCutShort(now, job.job.id, why))

    def heed(self) -> None:
        """Calls back copies of jobs that are cancelled or paused, and from devices that are to be
        left; a cancelled job that nobody is at work on is over."""
        drained = self.tracker.state.drained
        for job in [job for job in self.tracker.state.jobs.values() if not job.is_over]:
            copies = {**job.active, **job.side_tasks}
            if not job.is_unwanted:
                copies = {a: c for a, c in copies.items() if drained.intersection(c.devices)}
            elif not self.held.awaited(job):
                self.commit(job)
            if copies:
                self.executor.recall(list(copies))
        self.promote()

    def promote(self) -> None:
        """Decides who of those at a milestone goes on, as far as that is certain by now."""
        if any(job.is_at_milestone for job in self.tracker.state.resting):
            for event in decide(self.tracker.state.jobs.values(), self.executor.now()):
                self.tracker.record(event)

    def settle(self) -> None:
        """Takes what has arrived, and waits for merges that are under way."""
        has_arrived = True
        while has_arrived or self.held.merging:
            wait_s = self.executor.tick_s if self.held.merging else 0.0
            reports = self.executor.wait(self.executor.now() + wait_s)
            for report in reports:
                self.take(report)
            has_arrived = any(isinstance(one, HandedIn | Failed | Merged) for one in reports)

    def _tell_what_is_too_dear(self, job: JobState) -> None:
        for device, cost_s in self.meetings.newly_dear(job.job.id, self.views.too_dear(job)):
            self.tracker.record(
                events.DeviceTooDear(self.executor.now(), job.job.id, device, cost_s)
            )

    def _wait_of(self, copy: events.CopyFinished) -> float:
        """What a copy's order took beside training; a cold start or an evaluation is not the
        meeting's fault."""
        started = self.tracker.state.started[copy.attempt]
        if started.follows:
            return copy.save_s
        return copy.t - started.t - copy.train_s - copy.before_s

    def next_deadline(self) -> float:
        """When the first of the copies that are waited for will have been so long enough."""
        return min(map(self._deadline, self._awaited()), default=math.inf)

    def _deadline(self, job: int) -> float:
        moved_s = 0.0
        if self.meetings.is_anything_moving:
            copies = self.held.awaited(self.tracker.state.jobs[job])
            moved_s = min(self.meetings.moved_s(copy.attempt) for copy in copies)
        return self._overdue_at(job) + moved_s

    def close_overdue_meetings(self) -> bool:
        """Goes on without copies that are late: a hung machine costs the others only patience."""
        closed = False
        for number in self._awaited():
            job = self.tracker.state.jobs[number]
            if late := self._overdue(job):
                self.held.late.update(copy.attempt for copy in late)
                if not self.held.awaited(job):
                    self.commit(job)
                closed = True
        return closed

    def _awaited(self) -> set[int]:
        """Jobs whose next merge waits for copies that train."""
        jobs, late = self.tracker.state.jobs, self.held.late
        return {
            copy.job
            for copy in self.held.copies()
            if copy.attempt not in late and copy.generation == jobs[copy.job].generation
        }

    def _overdue_at(self, job: int) -> float:
        """When copies are that have nothing on its way."""
        return self.meetings.overdue_at(job, self.held.start_cost_s)

    def _overdue(self, job: JobState) -> list[events.CopyStarted]:
        """Copies that the job's meeting waits for no longer; before it is due there are none."""
        now, number = self.executor.now(), job.job.id
        if now < (self.meetings.due(number) or 0.0):
            return []
        is_quiet = not self.held.silent and not self.meetings.is_anything_moving
        if is_quiet and now < self._overdue_at(number):
            return []
        return [copy for copy in self.held.awaited(job) if self._is_overdue(copy, job)]

    def _is_overdue(self, copy: events.CopyStarted, job: JobState) -> bool:
        """Whether it is late, out of reach (such copies cost the others nothing so), or so long on
        its way that the others would lose more by waiting than it brings."""
        now, due = self.executor.now(), self.meetings.due(job.job.id)
        if now >= self._overdue_at(copy.job) + self.meetings.moved_s(copy.attempt):
            return True
        if self.held.silent.intersection(copy.devices):
            return now >= (due or 0.0) + _SILENT_PATIENCE_S
        left_s = self.meetings.coming_s(copy, now)
        if left_s is None:
            return False
        came = (self.tracker.state.device_of(attempt) for attempt in job.handed_in)
        idle = (device for device in came if device not in self.held.busy)
        missed = left_s * sum(self.rates.rate(copy.job, device) for device in idle)
        return missed > self.views.steps_by(copy, 0.0)
