"""How every job came along: its commits, losses and measured quality, each with its time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hadar_cli.core import events
from hadar_cli.core.measures.metrics import mean_loss
from hadar_cli.core.model import Job
from hadar_cli.core.state import RunState


@dataclass(frozen=True, slots=True)
class Commit:
    """A merge that made steps count; steps are totals after it."""

    t: float
    steps: int
    effective_steps: float
    loss: float | None
    copies: int


@dataclass(frozen=True, slots=True)
class Measurement:
    """Quality on held-out data, of the weights of one generation; 0 are the untrained ones."""

    t: float
    generation: int
    values: Mapping[str, float]


@dataclass(slots=True)
class JobHistory:
    job: Job
    commits: list[Commit] = field(default_factory=list)
    measurements: list[Measurement] = field(default_factory=list)
    finished_at: float | None = None
    weights: str | None = None  # the hash of its last committed checkpoint


def follow(jobs: Sequence[Job], happened: Iterable[events.Event]) -> list[JobHistory]:
    """The jobs' histories, in the order of the mix."""
    histories = {job.id: JobHistory(job) for job in jobs}
    state = RunState(jobs)
    handed_in: dict[str, events.CopyFinished] = {}
    for event in state.following(happened):
        match event:
            case events.CopyFinished():
                handed_in[event.attempt] = event
                started = state.started[event.attempt]
                history, job = histories[started.job], state.jobs[started.job]
                if event.quality:
                    measured = Measurement(event.t, started.generation, event.quality)
                    history.measurements.append(measured)
                    history.weights = job.weights
            case events.WeightsMerged() if event.accepted:
                copies = [handed_in[attempt] for attempt in event.accepted]
                job, history = state.jobs[event.job], histories[event.job]
                history.commits.append(
                    Commit(
                        event.t, len(job.done), job.effective_steps, mean_loss(copies), len(copies)
                    )
                )
                history.finished_at, history.weights = job.finished_at, job.weights
    return list(histories.values())
