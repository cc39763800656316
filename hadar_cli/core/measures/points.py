"""A run as points on curves, for tools that draw them: a series for each job, one for devices.

The points are a fold over the journal and are never taken back. So whoever has some of them, and
sees the journal again from its beginning, can tell which are missing by counting.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from hadar_cli.core import events
from hadar_cli.core.job_state import JobState
from hadar_cli.core.measures.metrics import mean_loss
from hadar_cli.core.measures.timeline import Tracing
from hadar_cli.core.model import Job
from hadar_cli.core.state import RunState

DEVICES = "_devices"  # the series of all devices; no job's name begins like this
_ODD = re.compile(r"[^A-Za-z0-9_.: -]")
_LONGEST = 80


@dataclass(frozen=True, slots=True)
class Point:
    """Values of a series. ``step`` is how many steps of the job count; of devices, whole seconds
    of the run, which ``t`` has exactly."""

    series: str
    t: float
    step: int
    values: Mapping[str, float]


@dataclass(slots=True)
class _Course:
    """What the curves of one job need from one event to the next."""

    since: float | None = None  # the time of its last merge, or when its first copy began
    steps: list[int] = field(default_factory=lambda: [0])  # counted, by generation


class Points:
    """Folds events into points."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self.state = RunState(jobs)
        self.is_over = False
        self._courses: dict[int, _Course] = {}
        self._handed_in: dict[str, events.CopyFinished] = {}
        self._tracing = Tracing({})
        self._seen: dict[str, int] = {}  # spans of each device that have their points
        self._until: dict[str, float] = {}

    def take(self, event: events.Event) -> list[Point]:
        """What the event adds."""
        self.state.apply(event)
        self.is_over = isinstance(event, events.RunFinished)
        points = list(self._of_jobs(event))
        points += self._of_devices(event)
        return points

    @property
    def standings(self) -> dict[str, str]:
        """By series: `running`, `finished` or `failed`."""
        told = {job.job.name: _standing(job) for job in self.state.jobs.values()}
        return {**told, DEVICES: "finished" if self.is_over else "running"}

    # -- jobs ------------------------------------------------------------------------------------

    def _of_jobs(self, event: events.Event) -> Iterator[Point]:
        match event:
            case events.CopyStarted() if event.purpose == events.TRAIN:
                course = self._course(event.job)
                course.since = event.t if course.since is None else course.since
            case events.CopyFinished():
                if event.steps:
                    self._handed_in[event.attempt] = event
                if event.quality:
                    yield self._measured(event, event.quality)
            case events.WeightsMerged():
                copies = [self._handed_in.pop(attempt) for attempt in event.accepted]
                if copies:
                    yield self._merged(event, copies)

    def _course(self, job: int) -> _Course:
        return self._courses.setdefault(job, _Course())

    def _measured(self, event: events.CopyFinished, quality: Mapping[str, float]) -> Point:
        """Quality is of the weights that the copy was given, not of those it handed in."""
        started = self.state.started[event.attempt]
        values: dict[str, float] = {}
        for name, value in quality.items():
            tag = _tag("quality", name)
            while tag in values:
                tag += "_"
            values[tag] = value
        step = self._course(started.job).steps[started.generation]
        return Point(self.state.jobs[started.job].job.name, event.t, step, values)

    def _merged(self, event: events.WeightsMerged, copies: list[events.CopyFinished]) -> Point:
        job, course = self.state.jobs[event.job], self._course(event.job)
        counted, since = len(job.done), course.since
        values = {
            "progress/merges": float(job.generation),
            "progress/effective_steps": job.effective_steps,
            "progress/copies": float(len(copies)),
        }
        if since is not None and event.t > since:
            values["progress/steps_per_s"] = (counted - course.steps[-1]) / (event.t - since)
        loss = mean_loss(copies)
        if loss is not None:
            values["loss"] = loss
        course.since = event.t
        course.steps.append(counted)
        return Point(job.job.name, event.t, counted, values)

    # -- devices ---------------------------------------------------------------------------------

    def _of_devices(self, event: events.Event) -> Iterator[Point]:
        """How much of the time since its last copy ended a device has trained."""
        tracing = self._tracing
        if isinstance(event, events.CopyStarted):
            for device in event.devices:
                tracing.spans.setdefault(device, [])
        tracing.add(event)
        match event:
            case events.CopyFinished() | events.CopyLost():
                devices: Iterable[str] = self.state.started[event.attempt].devices
            case events.RunStopped() | events.RunFinished() | events.NodesReplaced():
                devices = list(tracing.spans)
            case _:
                return
        for device in devices:
            yield from self._trained(device)
            if isinstance(event, events.RunStopped | events.RunFinished):
                yield from self._utilisation(device, tracing.now, 0.0)

    def _trained(self, device: str) -> Iterator[Point]:
        spans = self._tracing.spans[device]
        for span in spans[self._seen.get(device, 0) :]:
            yield from self._utilisation(device, span.end, span.train_s)
        self._seen[device] = len(spans)

    def _utilisation(self, device: str, end: float, train_s: float) -> Iterator[Point]:
        begin = self._until.get(device, 0.0)
        if end > begin:
            self._until[device] = end
            values = {_tag("utilisation", device): train_s / (end - begin)}
            yield Point(DEVICES, end, int(end), values)


def _standing(job: JobState) -> str:
    if job.failed:
        return "failed"
    return "finished" if job.is_over else "running"


def _tag(group: str, name: str) -> str:
    """A name that a script or an inventory chose, as all tools take it: it names no path."""
    return f"{group}/{_ODD.sub('_', name[:_LONGEST]).strip('. ') or 'unnamed'}"
