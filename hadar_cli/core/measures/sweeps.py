"""What a sweep came to: its trials side by side, and the best of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hadar_cli.core import events
from hadar_cli.core.estimates.quality import higher_is_better
from hadar_cli.core.job_state import JobState
from hadar_cli.core.model import Job
from hadar_cli.core.state import RunState


@dataclass(frozen=True, slots=True)
class Point:
    """A measurement of a trial, after so many counted steps."""

    t: float
    steps: int
    value: float


@dataclass(frozen=True, slots=True)
class TrialSummary:
    """``standing`` is how its job ended, or training."""

    name: str
    params: Mapping[str, str | bool | int | float]
    standing: str
    steps: int
    value: float | None
    promoted_at: tuple[int, ...]
    points: tuple[Point, ...]


@dataclass(frozen=True, slots=True)
class SweepSummary:
    """``best`` is the trial to use: the best by the metric among those that trained longest."""

    sweep: str
    metric: str | None
    higher_is_better: bool | None
    rungs: tuple[int, ...]
    steps: int
    steps_of_full_training: int
    best: str | None
    trials: tuple[TrialSummary, ...]


def sweeps_of(jobs: Sequence[Job], happened: Iterable[events.Event]) -> list[SweepSummary]:
    """The run's sweeps, their trials by number."""
    state = RunState(jobs)
    points: dict[int, list[Point]] = {}
    metrics: dict[str, str] = {}
    for event in state.following(happened):
        if isinstance(event, events.CopyFinished) and event.quality:
            job = state.jobs[state.started[event.attempt].job]
            if not job.job.trial:
                continue
            metric = metrics.setdefault(job.job.trial.sweep, _metric(job.job, event.quality))
            if metric in event.quality:
                steps = len(job.done) if state.started[event.attempt].generation else 0
                point = Point(event.t, steps, event.quality[metric])
                points.setdefault(job.job.id, []).append(point)
    grouped: dict[str, list[JobState]] = {}
    for job in state.jobs.values():
        if job.job.trial:
            grouped.setdefault(job.job.trial.sweep, []).append(job)
    return [_summary(name, trials, metrics.get(name), points) for name, trials in grouped.items()]


def _metric(job: Job, quality: Mapping[str, float]) -> str:
    search = job.trial.search if job.trial else None
    asked = next((one.metric for one in (job.promote, search, job.stop) if one), "")
    return asked or next(iter(quality))


def _summary(
    name: str, jobs: list[JobState], metric: str | None, points: Mapping[int, list[Point]]
) -> SweepSummary:
    jobs = sorted(jobs, key=lambda job: job.job.trial.number if job.job.trial else 0)
    first = jobs[0]
    higher = higher_is_better(metric, first.higher_is_better) if metric else None
    trials = tuple(_trial(job, points.get(job.job.id, [])) for job in jobs)
    return SweepSummary(
        sweep=name,
        metric=metric,
        higher_is_better=higher,
        rungs=first.job.promote.rungs if first.job.promote else (),
        steps=sum(trial.steps for trial in trials),
        steps_of_full_training=sum(job.job.target_steps for job in jobs),
        best=_best(trials, higher),
        trials=trials,
    )


def _trial(job: JobState, points: Sequence[Point]) -> TrialSummary:
    trial = job.job.trial
    assert trial
    rungs = job.job.promote.rungs if job.job.promote else ()
    trained = [point for point in points if point.steps]
    return TrialSummary(
        name=job.job.name,
        params=trial.params,
        standing=job.ending or "training",
        steps=len(job.done),
        value=trained[-1].value if trained else None,
        promoted_at=tuple(step for step in rungs if step in job.passed),
        points=tuple(points),
    )


def _best(trials: Sequence[TrialSummary], higher: bool | None) -> str | None:
    """Fewer steps are no fair comparison: those who came furthest are compared."""
    judged = [trial for trial in trials if trial.value is not None]
    if not judged or higher is None:
        return None
    furthest = max(len(trial.promoted_at) for trial in judged)
    finalists = [trial for trial in judged if len(trial.promoted_at) == furthest]
    sign = -1 if higher else 1
    return min(finalists, key=lambda trial: sign * (trial.value or 0.0)).name
