"""What happens in a run, in words: one home for the live view, the plain lines and the page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import get_args

from hadar_cli.core import events
from hadar_cli.core.grants import Grant
from hadar_cli.core.reasons import Absence, Loss
from hadar_cli.core.state import JobState, RunState
from hadar_cli.report.format import brief, count, figures, listed, plain

_LONGEST = 200  # of words that come from a node
_LONGEST_LINE = 2000
_SIDE_TASKS = {
    "evaluate": "measures",
    "prepare": "prepares for",
}


def describe(event: events.Event, state: RunState) -> str:
    """Any event in one line; ``state`` already holds it."""
    return plain(_describe(event, state), _LONGEST_LINE)


def _describe(event: events.Event, state: RunState) -> str:
    match event:
        case events.HeadStarted():
            return _head_started(event, state)
        case events.RoundPlanned():
            return _planned(event, state)
        case events.CopyStarted() if event.purpose in _SIDE_TASKS:
            return f"{event.device} {_SIDE_TASKS[event.purpose]} {job_name(state, event.job)}"
        case events.CopyStarted():
            steps = count(event.quota, "step")
            return f"{listed(event.devices)} trains {job_name(state, event.job)}: {steps}"
        case events.CopyFinished():
            return _finished(event, state)
        case events.CopyLost():
            return _copy_lost(event, state)
        case events.WeightsMerged():
            return _merged(event, state)
        case events.DeviceLost():
            return device_lost(event, _copies_on(event.device, state), state)
        case events.DeviceReturned():
            return f"{event.device} is back"
        case _ if isinstance(event, get_args(Grant)):
            return _granted(event, state)
    return _ended(event, state)


def _granted(event: Grant, state: RunState) -> str:
    """What somebody asked for, and what became of it."""
    match event:
        case events.NodesReplaced():
            is_more = event.added and not event.gone
            return f"goes on on {'more' if is_more else 'other'} machines: {event.text}"
        case events.JobsAdded():
            steps = count(sum(job.target_steps for job in event.jobs), "step")
            return f"added {listed([job.name for job in event.jobs])}: {steps}"
        case events.JobsCancelled():
            return f"cancelled {_jobs(event.jobs, state)}: copies hand in, what is merged is kept"
        case events.JobsPaused():
            return f"paused {_jobs(event.jobs, state)}: copies hand in, nothing more is started"
        case events.JobsContinued():
            return f"goes on with {_jobs(event.jobs, state)}"
        case events.PriorityChanged():
            return f"priority {event.priority} for {_jobs(event.jobs, state)}"
        case events.NodeDrained():
            return f"drains {event.node}: its copies hand in, nothing more is started there"
        case events.QueueClosed():
            return "no more work will come: the run ends with what it has"
    return f"a request was refused: {plain(event.why, _LONGEST)}"


def _jobs(jobs: Iterable[int], state: RunState) -> str:
    return listed([job_name(state, job) for job in jobs])


def _ended(event: events.Event, state: RunState) -> str:
    """Of jobs, of pairs and of runs."""
    match event:
        case events.PairAvoided():
            why = plain(event.why, _LONGEST)
            return f"{job_name(state, event.job)} is not given to {event.device} any more: {why}"
        case events.DeviceTooDear():
            cost = f"handing in takes {event.cost_s:.1f} s there, more than a copy brings"
            return f"{job_name(state, event.job)} is not forked to {event.device}: {cost}"
        case events.DeviceWanted():
            if not event.by:
                return f"{event.device} is not shared with other runs any more"
            return f"{event.device} is shared by turns with {plain(listed(event.by), _LONGEST)}"
        case events.SlotTooShort():
            return f"{job_name(state, event.job)}: {event.text}"
        case events.MilestonePassed():
            return _passed(event, state)
        case events.JobFailed():
            why = plain(event.why, _LONGEST)
            return f"{job_name(state, event.job)} failed {why}; the others go on"
        case events.JobCutShort():
            job = state.jobs[event.job]
            steps = f"{len(job.done):,} of {job.job.target_steps:,} steps"
            return f"{job_name(state, event.job)} ends here, with {steps}: {event.why}"
        case events.RunStopped():
            done, target = total_steps(state)
            why, lost = plain(event.why, _LONGEST), not_handed_in(event)
            return f"stopped ({why}): {done:,} of {target:,} steps are kept{lost}"
        case _:
            return _run_finished(event.t, state)


def _run_finished(t: float, state: RunState) -> str:
    jobs = state.jobs.values()
    cancelled = sum(job.is_cancelled for job in jobs)
    early = sum(bool(job.cut_short) and not job.is_cancelled for job in jobs)
    told = f"done: {count(len(jobs) - cancelled - early, 'job')} trained in {brief(t)}"
    told += f", {early} ended early" if early else ""
    return f"{told}, {cancelled} cancelled" if cancelled else told


def _passed(event: events.MilestonePassed, state: RunState) -> str:
    job, name = state.jobs[event.job], job_name(state, event.job)
    promote, stop = job.job.promote, job.job.stop
    goes_on = f"{name} goes on after step {event.step:,}"
    told = ", ".join(plain(figure, 30) for figure in job.quality or {}) or "nothing"
    if not promote or not is_at_rung(event, state):
        if stop and _lacks_metric(event, state):
            what = f"it does not report {plain(stop.metric, 30)!r}, only {told}"
            return f"{goes_on}, and nothing will stop it early: {what}"
        return goes_on
    if event.score is None:
        what = f"it does not report {plain(promote.metric, 30)!r}, only {told}"
        return f"{goes_on} without being judged: {what}"
    score = f"{plain(promote.metric, 30)} {figures(event.score)}"
    return f"{name} is promoted at step {event.step:,}: {score}"


def is_at_rung(event: events.MilestonePassed, state: RunState) -> bool:
    """Whether its sweep decides there who trains on; else only its ``stop`` does."""
    promote = state.jobs[event.job].job.promote
    return promote is not None and event.step in promote.rungs


def _lacks_metric(event: events.MilestonePassed, state: RunState) -> bool:
    """Whether it has just turned out that the job does not report what is to stop it."""
    job = state.jobs[event.job]
    stop = job.job.stop
    if stop is None or event.step != stop.every:
        return False
    return job.score_at(event.step, stop.metric) is None


def not_handed_in(event: events.RunStopped) -> str:
    """What a run that ended early did not wait for; nothing, mostly."""
    if not event.not_handed_in:
        return ""
    steps = count(sum(event.not_handed_in.values()), "step")
    devices = listed(sorted(event.not_handed_in))
    return f"; {devices} did not hand in: {steps} and more, which hadar resume does again"


def is_news(event: events.Event, state: RunState) -> bool:
    """Whether the event is worth a line of its own; the others are a run's daily bread."""
    match event:
        case events.HeadStarted():
            return event.epoch > 1 and not event.goes_on
        case events.CopyFinished():
            return bool(event.quality)
        case events.MilestonePassed():
            return is_at_rung(event, state) or _lacks_metric(event, state)
        case events.WeightsMerged():
            return bool(event.refused) or state.jobs[event.job].is_trained
        case events.CopyLost():
            # What a lost device held is told with the device.
            device = event.device or state.device_of(event.attempt)
            is_told = event.node_fault and device in state.lost_devices
            return not is_told and not state.was_called_back(event)
    return not isinstance(event, events.RoundPlanned | events.CopyStarted)


def tone(event: events.Event) -> str:
    """`good`, `bad` or empty: how to colour the words. Entries can also be `quiet`."""
    match event:
        case events.JobCutShort() if event.is_planned:
            return ""
        case events.CopyLost() | events.DeviceLost() | events.JobCutShort() | events.RunStopped():
            return "bad"
        case events.PairAvoided() | events.DeviceTooDear() | events.JobFailed():
            return "bad"
        case events.SlotTooShort() | events.RequestRefused():
            return "bad"
        case events.WeightsMerged() if event.refused:
            return "bad"
        case events.WeightsMerged() | events.DeviceReturned() | events.RunFinished():
            return "good"
    return ""


def total_steps(state: RunState) -> tuple[int, int]:
    """Steps committed, and steps wanted, of all jobs."""
    target = sum(job.job.target_steps for job in state.jobs.values())
    return target - sum(job.remaining for job in state.jobs.values()), target


def device_lost(
    event: events.DeviceLost, copies: Iterable[events.CopyStarted], state: RunState
) -> str:
    """The loss of a device that held these copies."""
    if event.reason is Absence.AWAITED:
        return plain(f"{event.device} is waited for: {event.why}", _LONGEST_LINE)
    copies = list(copies)
    if event.reason.is_polite:
        after = ", so its copy hands in" if copies else ""
        return plain(f"{event.device} is left alone{after}: {event.why}", _LONGEST_LINE)
    held = [f"{count(copy.quota, 'step')} of {job_name(state, copy.job)}" for copy in copies]
    after = f"its {listed(held)} go back to the pool" if held else "the others take its work"
    lost = f"{event.device} lost; {after} ({plain(event.why, _LONGEST)})"
    return plain(lost, _LONGEST_LINE)


# -- single events -------------------------------------------------------------------------------


def job_name(state: RunState, job: int) -> str:
    return plain(state.jobs[job].job.name, 40)


def _copies_on(device: str, state: RunState) -> list[events.CopyStarted]:
    jobs = state.jobs.values()
    return [copy for job in jobs for copy in job.active.values() if device in copy.devices]


def _head_started(event: events.HeadStarted, state: RunState) -> str:
    done, target = total_steps(state)
    if event.epoch == 1:
        return f"started: {count(len(state.jobs), 'job')}, {count(target, 'step')}"
    return f"resumed with {done:,} of {target:,} steps done"


def _planned(event: events.RoundPlanned, state: RunState) -> str:
    jobs = len({job for job, _, _ in event.stints})
    devices = count(len(event.devices), "device")
    return f"round {event.round}: {count(jobs, 'job')} on {devices}"


def _finished(event: events.CopyFinished, state: RunState) -> str:
    started = state.started[event.attempt]
    job = state.jobs[started.job]
    if event.quality:
        return _quality(job, event.quality, started.generation)
    if started.purpose in _SIDE_TASKS:
        return (
            f"{started.device} {_SIDE_TASKS[started.purpose]} {job_name(state, started.job)}: ready"
        )
    steps = count(event.steps, "step")
    return f"{started.place} handed in {steps} of {job_name(state, started.job)}"


def _quality(job: JobState, quality: dict[str, float], generation: int) -> str:
    name = plain(job.job.name, 40)
    if generation == 0:
        return f"{name} untrained: {_listed(quality)}"
    before = f" (untrained: {_listed(job.untrained)})" if job.untrained else ""
    return f"{name} trained: {_listed(quality)}{before}"


def _listed(quality: dict[str, float]) -> str:
    return ", ".join(f"{plain(name, 30)} {figures(v)}" for name, v in quality.items())


def _copy_lost(event: events.CopyLost, state: RunState) -> str:
    started = state.started[event.attempt]
    line = f"{job_name(state, started.job)} on {started.place} failed: {plain(event.why, _LONGEST)}"
    log = event.log.strip().splitlines()
    if log and log[-1] not in event.why:
        line += f" ({plain(log[-1], _LONGEST)})"
    pieces = 2 * started.micro_batches
    if event.reason is Loss.OUT_OF_MEMORY and pieces <= state.jobs[started.job].job.most_pieces:
        line += f"; next it tries its batches in {pieces} pieces there"
    steps = started.quota
    return f"{line}; its {count(steps, 'step')} go back to the pool" if steps else line


def _merged(event: events.WeightsMerged, state: RunState) -> str:
    job, name = state.jobs[event.job], job_name(state, event.job)
    if event.refused:
        copies = "; ".join(
            f"{state.device_of(attempt)}: {plain(why, _LONGEST)}" for attempt, why in event.refused
        )
        return f"{name}: refused the weights of {copies}; the steps go back to the pool"
    if job.is_trained:
        took = brief(event.t - job.job.arrives_s)
        return f"{name} done in {took}: {job.job.target_steps:,} steps"
    done = job.job.target_steps - job.remaining
    copies = copies_of(len(event.accepted), name)
    copies += f", {len(event.late)} of them late" if event.late else ""
    so_far = f"{done:,} of {job.job.target_steps:,} steps counted so far"
    return f"merged {copies}: {so_far}, {job.effective_steps:,.0f} effective"


def copies_of(number: int, job: str) -> str:
    return f"1 copy of {job}" if number == 1 else f"{number} copies of {job}"
