"""What comes back from the devices, and what is made of it: checked, merged and counted."""

from __future__ import annotations

from dataclasses import dataclass, field

from hadar_cli.app.errands import Errands
from hadar_cli.app.foresight import Foresight
from hadar_cli.app.meetings import Meetings
from hadar_cli.app.occupancy import Occupancy
from hadar_cli.app.ports import (
    Executor,
    Failed,
    HandedIn,
    NodeBack,
    NodeGone,
    NodeSilent,
    Observer,
    Progressed,
    Report,
    Surveyed,
)
from hadar_cli.app.tracker import Tracker
from hadar_cli.core import events
from hadar_cli.core.state import JobState
from hadar_cli.core.throughput import Rates
from hadar_cli.errors import UnfinishedError

_SILENT_PATIENCE_S = 1.0  # past a meeting's time, with copies of which nothing is heard


@dataclass(slots=True)
class Intake:
    """Takes reports one by one, and holds a job's meeting when all that it waits for are in."""

    executor: Executor
    tracker: Tracker
    observer: Observer
    rates: Rates
    held: Occupancy
    meetings: Meetings
    errands: Errands
    foresight: Foresight
    refused: set[str] = field(default_factory=set)  # devices lost for security's sake

    def take(self, report: Report) -> None:
        now = self.executor.now()
        match report:
            case NodeGone():
                for device in report.devices:
                    self.tracker.record(events.DeviceLost(now, device, report.why))
                if report.refused:
                    self.refused.update(report.devices)
            case NodeSilent():
                change = set.difference_update if report.is_over else set.update
                change(self.held.silent, report.devices)
            case NodeBack():
                for device in report.devices:
                    self.tracker.record(events.DeviceReturned(now, device))
            case Surveyed():
                self.held.progress |= report.steps
            case _ if self.tracker.is_under_way(report.attempt):
                self._take_from_copy(report)
            case _:
                pass  # late or repeated: it matches nothing

    def _take_from_copy(self, report: Progressed | HandedIn | Failed) -> None:
        match report:
            case Progressed():
                self.held.progress[report.attempt] = report.steps
                self.observer.progressed(report)
            case HandedIn():
                device = self.held.free(report.attempt)
                self.errands.note(self.tracker.state.started[report.attempt].job, report.stays)
                if not report.stays:
                    self.held.warm.pop(device, None)
                if self.tracker.handed_in(report):
                    self.held.failures.pop(device, None)
                    self._learn(report)
                self._commit_if_complete(report.attempt)
            case Failed():
                device = self.held.free(report.attempt)
                self.held.warm.pop(device, None)
                self.tracker.failed(report)
                if why := self._objection(report, device):
                    self.tracker.record(events.DeviceLost(self.executor.now(), device, why))
                self._commit_if_complete(report.attempt)

    def _objection(self, report: Failed, device: str) -> str | None:
        """Why the device had better be left alone, after this failure on it."""
        if report.unfit:
            return report.why
        if not report.node_fault and self.held.fails_too_often(device):
            return f"copy after copy fails there; last: {report.why}"
        return None

    def _learn(self, report: HandedIn) -> None:
        started, result = self.tracker.state.started[report.attempt], report.result
        if result.steps and not started.gang:
            self.rates.observe(started.job, started.device, result.steps, result.train_s)
        if not report.warm:
            self.held.learn_start(result.start_s)

    def give_up_if_hopeless(self, attempt: str) -> None:
        """Ends the run over a job whose copies fail again and again."""
        state = self.tracker.state
        started = state.started.get(attempt)
        job = state.jobs[started.job] if started else None
        if job and job.failures > job.job.retry:
            name, (device, why, log) = job.job.name, job.last_failure
            raise UnfinishedError(
                f"job {name!r} failed {job.failures} times in a row, last on {device}: {why}",
                fix="\n".join(filter(None, (_last_lines(log), f"see more by: hadar logs {name}"))),
            )

    # -- meetings ----------------------------------------------------------------------------

    def _commit_if_complete(self, attempt: str) -> None:
        """Merges a job as soon as no copy that anyone waits for is still training."""
        job = self.tracker.state.jobs[self.tracker.state.started[attempt].job]
        if not self.held.awaited(job):
            self.commit(job)

    def commit(self, job: JobState) -> None:
        """Holds the job's meeting with those who came."""
        self.meetings.close(job.job.id)
        came = list(job.handed_in.values())
        if came:
            waits = [self._wait_of(copy) for copy in came]
            began = self.executor.now()  # patience with the late is no cost of merging
            self.tracker.commit(job)
            merge_s = self.executor.now() - began
            self.meetings.learn(job.job.id, sum(waits) / len(waits) + merge_s)
        if orphans := self.foresight.orphans(job):
            self.executor.recall(orphans)
        now = self.executor.now()
        if job.is_used_up(now) and not job.active and not job.is_trained:
            why = f"it has trained for its max_duration of {job.job.max_duration_s:g} s"
            self.tracker.record(events.JobCutShort(now, job.job.id, why))

    def _wait_of(self, copy: events.CopyFinished) -> float:
        """What a copy's order took beside training; a cold start is not the meeting's fault."""
        started = self.tracker.state.started[copy.attempt]
        if started.follows:
            return copy.save_s
        cold_s = 0.0 if copy.warm else copy.start_s
        return copy.t - started.t - copy.train_s - cold_s

    def next_deadline(self) -> float:
        """When the first of the meetings will have waited long enough."""
        return min((self._overdue_at(job) for job in self._awaited()), default=float("inf"))

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
        """Jobs with copies under way that are not given up yet."""
        late = self.held.late
        return {copy.job for copy in self.held.copies() if copy.attempt not in late}

    def _overdue_at(self, job: int) -> float:
        return self.meetings.overdue_at(job, self.held.start_cost_s)

    def _overdue(self, job: JobState) -> list[events.CopyStarted]:
        """Copies that the job's meeting waits for no longer; for those out of reach it never did
        for long, as they cost the others nothing so."""
        now, due = self.executor.now(), self.meetings.due(job.job.id)
        awaited = self.held.awaited(job)
        if now >= self._overdue_at(job.job.id):
            return awaited
        if not self.held.silent or now < (due or 0.0) + _SILENT_PATIENCE_S:
            return []
        return [copy for copy in awaited if self.held.silent.intersection(copy.devices)]


def _last_lines(log: str, count: int = 5) -> str:
    return "\n".join(log.strip().splitlines()[-count:])
