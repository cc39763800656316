"""What becomes of a job and of a device where copies fail: counted by pair, judged by pair.

A job that does not work on one device goes on on the others. Out of memory, it is first tried there
with smaller pieces of its batch. It fails only where no device is left for it, and then alone.
"""

from __future__ import annotations

import math

from hadar_cli.core import events
from hadar_cli.core.estimates.suitability import Suitability
from hadar_cli.core.job_state import Failure, JobState
from hadar_cli.core.model import Job
from hadar_cli.core.reasons import Absence, Loss
from hadar_cli.core.state import RunState
from hadar_cli.engine.occupancy import Occupancy
from hadar_cli.engine.ports import Failed
from hadar_cli.engine.tracker import Tracker
from hadar_cli.errors import HadarError, PausedError, RefusedError, UnfinishedError

AWAY_S = 3600.0  # so long a machine that was there is waited for
_NAMED = 3  # of the jobs that an error is about


class Failures:
    """Decides, after every copy that failed or was refused, who is still worth a try."""

    def __init__(
        self, tracker: Tracker, held: Occupancy, suitability: Suitability, forks: bool = True
    ) -> None:
        self._tracker, self._held, self._suitability = tracker, held, suitability
        self._forks = forks  # or else a job has several devices because it asks for them

    def leave_device(self, report: Failed, device: str) -> None:
        """Gives the device up if, after this failure, no copy can be expected to do better."""
        job = self._tracker.state.started[report.attempt].job
        if report.reason is Loss.CARD_TAKEN:
            self._tracker.lose_device(device, Absence.TAKEN, report.why)
        elif report.reason.is_unfit:
            self._tracker.lose_device(device, Absence.UNFIT, report.why)
        elif report.reason.is_node_fault or report.reason.is_too_large:
            return
        elif self._held.fails_too_often(device, job):
            why = f"copy after copy fails there; last: {report.why}"
            self._tracker.lose_device(device, Absence.FAILING, why)

    def judge(self, attempt: str) -> None:
        """Avoids a pair that does not work; without any pair left, the job has failed."""
        state = self._tracker.state
        copy = state.started[attempt]
        job = state.jobs[copy.job]
        last = job.last_failure
        is_last = last is not None and last.attempt == attempt
        device = last.device if last and is_last else copy.device
        is_needed = not job.is_over or job.is_unmeasured
        # Another copy may have shown before that the two do not fit, while this one was at work.
        is_avoided = (copy.job, device) in state.avoided
        if not (is_needed and (is_avoided or self._suitability.allows(copy.job, (device,)))):
            return
        if last and not is_avoided:
            if why := self._misfit(job, copy, last) if is_last else None:
                self._tracker.avoid(copy.job, device, Loss.OUT_OF_MEMORY, why)
            elif (failures := job.failures.get(device, 0)) > job.job.retry:
                why = f"it failed there {failures} times in a row, last: {last.why}"
                self._tracker.avoid(copy.job, device, last.reason, why)
        is_idle = not job.active and not job.handed_in
        must_share = not self._forks or job.job.mode == "share"
        cannot_share = last is not None and is_last and last.reason is Loss.CANNOT_SHARE
        if is_idle and cannot_share and must_share:
            self._tracker.fail(job)  # it would fare no better anywhere
        elif is_idle and self._fails_everywhere(job):
            self._tracker.fail(job)

    def _misfit(self, job: JobState, copy: events.CopyStarted, last: Failure) -> str | None:
        """Why the job is too large for the copy's device, if it has turned out to be."""
        if last.reason is Loss.CANNOT_SPLIT:
            return f"it does not fit there, and its batch cannot be split: {last.why}"
        if last.reason is Loss.OUT_OF_MEMORY:
            pieces = job.pieces[last.device]
            if copy.purpose != events.TRAIN or pieces > job.job.most_pieces:
                return f"it does not fit there, however small its micro-batches: {last.why}"
        return None

    def _fails_everywhere(self, job: JobState) -> bool:
        """Whether it has failed on every device that is left to it, and often enough."""
        if not job.failures and self._suitability.is_everything_allowed:
            return False
        left = self._suitability.devices_for(job.job.id)
        if not left:
            return True
        fails = [job.failures.get(device, 0) for device in left]
        return all(fails) and sum(job.failures.values()) > job.job.retry


def next_chance(state: RunState, suitability: Suitability, is_any_idle: bool, now: float) -> float:
    """When something may be started again, now that nothing can, unless a device comes back before;
    raises if nothing ever will.

    Who uses a card may not be told for a moment; where it never was, that will not change. An hour
    without a network, at night, is no reason to stop: machines that were there are waited for.
    """
    lost = state.lost_devices.items()
    away = {device: loss.t + AWAY_S for device, loss in lost if loss.reason is Absence.AWAY}
    awaited = {device for device, loss in lost if loss.reason.will_end}
    awaited |= {device for device, until in away.items() if now < until}
    if not state.started:
        untold = Absence.UNTOLD
        awaited -= {one for one, loss in lost if loss.reason is untold}
    there = (job.job.id for job in state.unfinished if job.job.arrives_s <= now)
    is_wanted = any(awaited.intersection(suitability.devices_for(job)) for job in there)
    arrivals = [job.job.arrives_s for job in state.unfinished if job.job.arrives_s > now]
    if awaited and (is_wanted or not is_any_idle):  # whoever is idle may be too small for it
        return min(
            [*arrivals, *(until for until in away.values() if now < until)], default=math.inf
        )
    if not arrivals or not is_any_idle:
        raise _explain_idleness(state, suitability, is_any_idle)
    return min(arrivals)


def _explain_idleness(state: RunState, suitability: Suitability, is_any_idle: bool) -> HadarError:
    """Why nothing can be started although there is work, for whoever waits for it."""
    lost = state.lost_devices
    jobs = (*state.unfinished, *state.unmeasured)
    left = {j.job.id: set(suitability.devices_for(j.job.id)) - lost.keys() for j in jobs}
    if narrow := [j.job for j in jobs if 0 < len(left[j.job.id]) < j.job.least_gpus]:
        return _explain_narrowness(narrow[0], sorted(left[narrow[0].id]), state)
    if is_any_idle and any(left.values()):
        return HadarError("the policy left every device idle although there is work to do")
    names = [repr(job.job.name) for job in jobs]
    more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
    waiting = ", ".join([*names[:_NAMED], *more])
    reasons = _reasons(state, jobs[0].job)
    what = f"no device is left for job {waiting} ({reasons or 'none is large enough'})"
    if lost and all(loss.reason is Absence.REFUSED for loss in lost.values()):
        return RefusedError(what)
    return UnfinishedError(what, fix="other machines can take over: hadar resume --nodes FILE")


def _explain_narrowness(job: Job, left: list[str], state: RunState) -> UnfinishedError:
    """A gang that cannot come together any more."""
    count, reasons = job.least_gpus, _reasons(state, job)
    devices = f"{count} devices at once, and only {', '.join(left)} of those that reach each other"
    what = f"job {job.name!r} asks for {devices} is left ({reasons or 'none of the others fits'})"
    fix = "elastic: true in the mix lets a job run on fewer; or: hadar resume --nodes FILE"
    return UnfinishedError(what, fix=fix)


def _reasons(state: RunState, job: Job) -> str:
    """Why devices cannot train the job, each reason told once."""
    whys = {device: one.why for device, one in state.lost_devices.items()}
    whys |= {d: one.why for (number, d), one in state.avoided.items() if number == job.id}
    devices: dict[str, list[str]] = {}
    for device, why in whys.items():
        devices.setdefault(why, []).append(device)
    return "; ".join(f"{', '.join(names)}: {why}" for why, names in devices.items())


def require_end(state: RunState) -> None:
    """Raises where jobs are left that failed, or that somebody has paused."""
    if state.failed:
        raise _explain_failed(state.failed)
    if state.resting:
        raise _explain_resting([job for job in state.resting if job.is_paused] or state.resting)


def _explain_failed(jobs: list[JobState]) -> UnfinishedError:
    """The end of a run of which some jobs failed, and the others are done."""
    told = [f"job {job.job.name!r} failed: {job.failed.why}" for job in jobs if job.failed]
    first = jobs[0]
    log = _last_lines(first.failed.log) if first.failed else ""
    advice = f"see more by: hadar logs {first.job.name}", "mend it, then: hadar resume"
    return UnfinishedError("; ".join(told), fix="\n".join(filter(None, (log, *advice))))


def _explain_resting(jobs: list[JobState]) -> PausedError:
    """The end of a run in which nothing is left but what somebody has paused."""
    names = " ".join(job.job.name for job in jobs[:_NAMED])
    told = ", ".join(repr(job.job.name) for job in jobs[:_NAMED])
    more = f" and {len(jobs) - _NAMED} more" if len(jobs) > _NAMED else ""
    are = f"job {told} is" if len(jobs) == 1 else f"jobs {told}{more} are"
    return PausedError(f"{are} paused", fix=f"hadar continue RUN {names}")


def _last_lines(log: str, count: int = 5) -> str:
    return "\n".join(log.strip().splitlines()[-count:])
