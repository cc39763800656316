"""What people asked of a run and were granted, as its state takes it in."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import TypeAlias

from hadar_cli.core import events
from hadar_cli.core.job_state import JobState

Grant: TypeAlias = (
    events.JobsAdded
    | events.JobsCancelled
    | events.JobsPaused
    | events.JobsContinued
    | events.PriorityChanged
    | events.NodeDrained
    | events.QueueClosed
    | events.RequestRefused
    | events.NodesReplaced
)


def check(event: Grant, jobs: Mapping[int, JobState], granted: Container[str]) -> None:
    """Raises ValueError or LookupError for what cannot be granted, or was before."""
    if event.request and event.request in granted:
        raise ValueError(f"request {event.request} was answered before")
    if isinstance(event, events.JobsAdded):
        _check_added(event, jobs)
    for number in getattr(event, "jobs", ()) if not isinstance(event, events.JobsAdded) else ():
        if problem := _problem(event, jobs[number]):
            raise ValueError(f"job {jobs[number].job.name!r} {problem}")


def _problem(event: Grant, job: JobState) -> str:
    """Why it cannot have been granted of this job."""
    match event:
        case events.JobsCancelled() if job.is_trained or job.is_cancelled:
            return "is over: it cannot be cancelled"
        case events.JobsPaused() if job.is_over or job.is_cancelled or job.is_paused:
            return "is over or paused: it cannot be paused"
        case events.JobsContinued() if not job.is_paused:
            return "is not paused"
    return ""


def _check_added(event: events.JobsAdded, jobs: Mapping[int, JobState]) -> None:
    """A job that ``run.json`` has already is the same one."""
    taken = {one.job.name: number for number, one in jobs.items()}
    for job in event.jobs:
        if taken.setdefault(job.name, job.id) != job.id:
            raise ValueError(f"there is a job {job.name!r} already")
        if job.id in jobs and jobs[job.id].job != job:
            raise ValueError(f"there is another job with the number {job.id}")


def apply(event: Grant, jobs: dict[int, JobState]) -> None:
    """Takes in what it changes of jobs."""
    match event:
        case events.JobsAdded():
            jobs |= {job.id: JobState(job) for job in event.jobs if job.id not in jobs}
        case events.JobsCancelled():
            for number in event.jobs:
                jobs[number].cancel(event.t)
        case events.JobsPaused() | events.JobsContinued():
            for number in event.jobs:
                jobs[number].is_paused = isinstance(event, events.JobsPaused)
        case events.PriorityChanged():
            for number in event.jobs:
                jobs[number].priority = event.priority
